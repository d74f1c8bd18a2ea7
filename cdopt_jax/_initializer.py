"""Initial weights that are on the manifold already."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from . import stiefel
from ._reading import Stiefel, settle


def initializer(spec: Stiefel | None = None) -> Callable[..., Array]:
    """An initializer whose arrays are orthonormal, for any reading of them.

    Args:
        spec: How the array is read as matrices, the same as in the mask; by default
            ``Stiefel()``.

    Returns:
        A function of a key, a shape and a dtype, as ``kernel_init`` and the like of
        Flax's layers take it. Each matrix is uniformly random.

    Raises:
        ValueError: At once, if ``spec`` is no `Stiefel`; from the initializer, on a
            shape or dtype that cannot be read so.

    Examples:
        >>> import flax.linen as nn, jax, jax.numpy as jnp, cdopt_jax as cdx
        >>> layer = nn.Conv(8, (3, 3), kernel_init=cdx.initializer(cdx.layers.conv()))
        >>> params = layer.init(jax.random.key(0), jnp.zeros((1, 5, 5, 2)))["params"]
        >>> bool(cdx.feasibility(params, cdx.where("kernel"))["kernel"] < 1e-5)
        True
    """
    spec = Stiefel() if spec is None else spec
    if not isinstance(spec, Stiefel):
        raise ValueError(
            f"initializer: spec must be a Stiefel(…), as those of cdx.layers; it is "
            f"{spec!r}."
        )

    def init(key: Array, shape: Any, dtype: Any = None, **_: Any) -> Array:
        dtype = jnp.result_type(float if dtype is None else dtype)
        leaf = jax.ShapeDtypeStruct(tuple(shape), dtype)
        reading = settle("initializer", "", leaf, spec)
        tall = sorted(reading.matrix, reverse=True)
        x = stiefel.random(key, (*reading.stack, *tall), dtype, B=reading.B)
        return reading.write(x, dtype)

    return init
