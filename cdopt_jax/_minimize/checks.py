"""What `minimize` is given, checked before anything is computed."""

import math
import operator
from typing import SupportsIndex, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from cdopt_jax._errors import error
from cdopt_jax._leaves.paths import describe_leaf, leaf_paths
from cdopt_jax.prox import Regularizer


def check_options(
    f: object, regularizer: object, args: object, callback: object, starts: object
) -> None:
    """Raise on options that cannot be used."""
    if not callable(f):
        raise error(f"f must be a function of the parameters; it is {f!r}.")
    if regularizer is not None and not isinstance(regularizer, Regularizer):
        raise error(
            "regularizer must be a Regularizer(value, prox), such as prox.l1(0.1); "
            f"it is {regularizer!r}."
        )
    if not isinstance(args, tuple):
        raise error(
            "args must be the tuple of the further arguments of f, such as "
            f"args=(data,); it is of type {type(args).__name__}."
        )
    if callback is not None and not callable(callback):
        raise error(f"callback must be a function of an Info; it is {callback!r}.")
    if starts is not None:
        whole("starts", starts)


def whole(label: str, value: object) -> int:
    """A whole number above zero, of any type that is one."""
    try:
        number = operator.index(cast(SupportsIndex, value))
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise error(f"{label} must be a whole number above 0; it is {value!r}.")
    return number


def number(label: str, value: object) -> float | Array:
    """A number above zero, which may be traced."""
    if isinstance(value, Array):
        if value.ndim == 0 and (isinstance(value, Tracer) or value > 0):
            return value
    elif isinstance(value, int | float | np.number | np.ndarray):
        plain = np.ndim(value) == 0 and not isinstance(value, bool)
        if plain and value > 0 and math.isfinite(value):
            return float(value)
    raise error(f"{label} must be a number above zero; it is {value!r}.")


def weight(beta: object) -> float | Array:
    """The weight β, zero for the automatic one."""
    return 0 if isinstance(beta, str) and beta == "auto" else number("beta", beta)


def check_leaves(x0: optax.Params) -> None:
    """Raise on a start that is not floating point."""
    for path, leaf in zip(leaf_paths(x0), jax.tree.leaves(x0), strict=True):
        # Of an array, since `result_type` takes 0.1 ms.
        dtype = leaf.dtype if isinstance(leaf, Array) else jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.inexact):
            what = describe_leaf(path, leaf)
            raise error(f"x0 must be floating point, real or complex; {what}.")


def check_layout(x0: optax.Params, method: str) -> None:
    """Raise on a start that is split in a way that a method cannot compute with."""
    for path, leaf in zip(leaf_paths(x0), jax.tree.leaves(x0), strict=True):
        split = [names for names in jax.typeof(leaf).sharding.spec if names is not None]
        if split and method not in ("proximal", "continuation"):
            raise error(
                f"method={method!r} cannot compute with a leaf that is split along "
                f"Explicit axes; {describe_leaf(path, leaf)}, split along {split}. "
                'Write method="proximal", or make the mesh with '
                "axis_types=(jax.sharding.AxisType.Auto,)."
            )


def scalar(out: ArrayLike) -> Array:
    """What f returned, if it is a real scalar. Looked at when f is traced."""
    shape = jnp.shape(out) if hasattr(out, "shape") or jnp.isscalar(out) else None
    if shape != ():
        what = f"an array of shape {shape}" if shape else f"a {type(out).__name__}"
        raise error(
            f"f must return a scalar; it returns {what}. Write jnp.sum(…) or "
            "jnp.mean(…) around it."
        )
    dtype = jnp.result_type(out)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise error(
            "f must return a real floating-point number; it returns one of dtype "
            f"{dtype}. Write jnp.real(…) around a complex one."
        )
    return jnp.asarray(out)
