"""Initial weights that are on the manifold already."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array

from cdopt_jax import stiefel
from cdopt_jax._checks import check_dtype, check_key, check_shape
from cdopt_jax._errors import error, naming, public

from .reading import Stiefel, settle


def initializer(
    spec: Stiefel | None = None, shape: Sequence[int] | None = None
) -> Callable[..., Array]:
    """An initializer whose arrays are orthonormal, for any reading of them.

    Args:
        spec: How the array is read as matrices, the same as in the mask; by default
            ``Stiefel()``.
        shape: The shape in which the kernel is read, where the layer asks for another
            of the same size: Flax's attention layers have kernels of shape
            ``(in, heads, head_dim)`` and ask for ``(in, heads * head_dim)``.

    Returns:
        A function of a key, a shape and a dtype, as ``kernel_init`` and the like of
        Flax's layers take it. Each matrix is uniformly random.

    Raises:
        ValueError: At once, if ``spec`` is no `Stiefel` or ``shape`` no shape; from
            the initializer, on a shape or dtype that cannot be read so, or of another
            size than ``shape``.

    Examples:
        >>> import flax.linen as nn, jax, jax.numpy as jnp, cdopt_jax as cdx
        >>> layer = nn.Conv(8, (3, 3), kernel_init=cdx.initializer(cdx.layers.conv()))
        >>> params = layer.init(jax.random.key(0), jnp.zeros((1, 5, 5, 2)))["params"]
        >>> bool(cdx.feasibility(params, cdx.where("kernel"))["kernel"] < 1e-5)
        True
    """
    spec = Stiefel() if spec is None else spec
    with naming("initializer"):
        if not isinstance(spec, Stiefel):
            raise error(
                f"spec must be a Stiefel(…), as those of cdx.layers; it is {spec!r}."
            )
        if shape is not None:
            check_shape(shape)

    @public("initializer")
    def init(key: Array, asked: Any, dtype: Any = None, **_: Any) -> Array:
        check_key(key)
        check_shape(asked)
        dtype = check_dtype(dtype)
        read = tuple(asked if shape is None else shape)
        if math.prod(read) != math.prod(asked):
            raise error(
                f"the layer asks for an array of shape {tuple(asked)}, with "
                f"{math.prod(asked)} entries, but shape={read} has {math.prod(read)}; "
                "give the shape of the layer's kernel."
            )
        leaf = jax.ShapeDtypeStruct(read, dtype)
        try:
            reading = settle("", leaf, spec)
        except ValueError as misfit:
            raise ValueError(
                f"{misfit} If the layer has its kernel in another shape than it asks "
                "for, as attention has, give that: initializer(spec, "
                "shape=(features, heads, head_dim))."
            ) from None
        tall = sorted(reading.matrix, reverse=True)
        x = stiefel.random(key, (*reading.stack, *tall), dtype, B=reading.B)
        return reading.write(x, dtype).reshape(asked)

    return init
