"""What every method tells the driver."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cdopt_jax._minimize.landscape import Landscape, Point


class Method(NamedTuple):
    """A way to take steps, as functions of a landscape and of its own state.

    Attributes:
        init: From a landscape, a point on the manifold and a key to the state.
        step: From a landscape and a state to the state after one step.
        point: From a landscape and a state to the point reached.
        residual: From a landscape and a state to what must fall below the tolerance.
        stalled: From a state to whether further steps would change nothing.
        name: The method.
        certificate: What the residual is, in words.
        each_step: Whether the residual is cheap enough to be looked at in every step.
    """

    init: Callable[[Landscape, Point, Array], Any]
    step: Callable[[Landscape, Any], Any]
    point: Callable[[Landscape, Any], Point]
    residual: Callable[[Landscape, Any], Array]
    stalled: Callable[[Any], Array]
    name: str
    certificate: str
    each_step: bool = True


def chosen(flag: Array, yes: Any, no: Any) -> Any:
    """One of two trees."""
    return jax.tree.map(lambda a, b: where(flag, a, b), yes, no)


def where(flag: Array, a: Array, b: Array) -> Array:
    """One of two arrays, which may be keys."""
    if jnp.issubdtype(jnp.result_type(a), jax.dtypes.prng_key):
        return jax.lax.select(flag, a, b)
    return jnp.where(flag, a, b)
