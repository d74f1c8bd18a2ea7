"""Regularizers: convex terms r(x) of an objective, each with its proximal map.

A regularizer works on a whole tree of parameters, an array being the simplest. Its
weight is one number for all leaves or a tree of them, as deep as it needs to be:
``l1({"Conv_0": 1e-4, "Dense_0": {"kernel": 1e-5, "bias": 0}})``. A weight of zero
leaves its leaf alone.

A regularizer made here is itself a tree, whose leaves are its weights. Two of the same
kind differ in their leaves only, so that `minimize` compiles one program for both.

Of a complex leaf |x| is the modulus, and what is shrunk keeps its phase.
"""

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.tree_util import Partial
from jax.typing import ArrayLike

from ._leaves.paths import broadcast_prefix, describe_leaf, leaf_paths
from ._math.products import (
    is_complex,
    of_rank,
    real_dtype,
    squared_modulus,
    widen,
)


class Regularizer(NamedTuple):
    """A convex function r and its proximal map, both of a tree.

    Any two callables make one. Weights that are to change without a new compilation
    belong into a ``jax.tree_util.Partial``, as they do in those of this module.

    Attributes:
        value: x ↦ r(x), a scalar.
        prox: (x, step) ↦ argmin_y r(y) + ‖y − x‖²/(2·step).
    """

    value: Callable[[chex.ArrayTree], Array]
    prox: Callable[[chex.ArrayTree, ArrayLike], Any]


def l1(weight: Any) -> Regularizer:
    """weight·Σ|x|, which makes entries exactly zero.

    Examples:
        >>> import jax.numpy as jnp
        >>> from cdopt_jax import prox
        >>> print(prox.l1(0.5).prox(jnp.array([1.0, -0.25, -3.0]), 1.0))
        [ 0.5 -0.  -2.5]
    """
    return _regularizer(_L1, weight=weight)


def l21(weight: Any, axis: int | tuple[int, ...] = -1) -> Regularizer:
    """weight·Σ‖group‖₂, which makes whole groups of entries exactly zero.

    Args:
        weight: The weight, or a tree of them.
        axis: The axes along which a group extends. Of a matrix, −1 makes its rows the
            groups and −2 its columns; of a convolution kernel, ``(0, 1, 3)`` groups
            all that reads one input channel.

    Returns:
        The regularizer.
    """
    axes = axis if isinstance(axis, tuple) else (axis,)
    if not all(isinstance(a, int) for a in axes) or len(set(axes)) < len(axes):
        raise ValueError(
            "prox.l21: axis must be an axis or a tuple of different axes; it is "
            f"{axis!r}."
        )
    return _regularizer(_groups(axes), weight=weight)


def elastic_net(l1_weight: Any, l2_weight: Any) -> Regularizer:
    """l1_weight·Σ|x| + (l2_weight/2)·Σ|x|²."""
    return _regularizer(_ELASTIC_NET, l1_weight=l1_weight, l2_weight=l2_weight)


def nonnegative_l1(weight: Any) -> Regularizer:
    """weight·Σx where x ≥ 0, infinite elsewhere. A leaf of weight zero is free.

    Complex leaves have no order, and are refused unless their weight is zero.
    """
    return _regularizer(_NONNEGATIVE_L1, weight=weight)


def none() -> Regularizer:
    """No regularizer: its value is zero and its proximal map the identity."""
    return Regularizer(_zero, _identity)


@dataclasses.dataclass(frozen=True, eq=False)
class _Leafwise:
    """A kind of regularizer, by its action on one leaf.

    Attributes:
        name: Its public name.
        of_leaf: From a leaf and its weights to r of the leaf.
        shrink: From a leaf, its weights and a step to the proximal map of the leaf.
        fits: Whether a leaf can be regularized.
        needs: What such a leaf is, in words.
    """

    name: str
    of_leaf: Callable[..., Array]
    shrink: Callable[..., Array]
    fits: Callable[[Array], bool] = lambda _: True
    needs: str = "a floating-point leaf"

    def value(self, weights: dict[str, Any], tree: chex.ArrayTree) -> Array:
        """The sum over the leaves."""
        items = self._weighted(weights, tree)
        return jnp.asarray(sum(self.of_leaf(*item) for item in items if item))

    def prox(
        self, weights: dict[str, Any], tree: chex.ArrayTree, step: ArrayLike
    ) -> Any:
        """The proximal map, leaf by leaf."""
        leaves, treedef = jax.tree.flatten(tree)

        def one(leaf, item):
            if item is None:
                return leaf
            step_here = jnp.asarray(step, real_dtype(item[0].dtype))
            return self.shrink(*item, step_here).astype(jnp.result_type(leaf))

        return treedef.unflatten(map(one, leaves, self._weighted(weights, tree)))

    def _weighted(self, weights, tree):
        """Each leaf with its weights, in the dtype of the computation, or None."""
        leaves = jax.tree.leaves(tree)
        columns = [
            broadcast_prefix(f"prox.{self.name}: {label}", w, tree)
            for label, w in weights.items()
        ]
        for path, leaf, *ws in zip(leaf_paths(tree), leaves, *columns, strict=True):
            if all(_is_zero(w) for w in ws):
                yield None
                continue
            x = jnp.asarray(leaf)
            if not jnp.issubdtype(x.dtype, jnp.inexact) or not self.fits(x):
                raise ValueError(
                    f"prox.{self.name}: needs {self.needs}; {describe_leaf(path, x)}."
                )
            x = x.astype(widen(x.dtype))
            real = real_dtype(x.dtype)
            yield x, *(of_rank(jnp.asarray(w, real), x.ndim) for w in ws)


def _soft(x, threshold):
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - threshold, 0)


_L1 = _Leafwise(
    "l1",
    lambda x, w: jnp.sum(w * jnp.abs(x)),
    lambda x, w, step: _soft(x, step * w),
)
_ELASTIC_NET = _Leafwise(
    "elastic_net",
    lambda x, w1, w2: jnp.sum(w1 * jnp.abs(x) + w2 / 2 * squared_modulus(x)),
    lambda x, w1, w2, step: _soft(x, step * w1) / (1 + step * w2),
)
_NONNEGATIVE_L1 = _Leafwise(
    "nonnegative_l1",
    lambda x, w: jnp.where(jnp.all(x >= 0), jnp.sum(w * x), jnp.inf),
    lambda x, w, step: jnp.maximum(x - step * w, 0),
    lambda x: not is_complex(x),
    "a real floating-point leaf, since complex numbers have no order",
)


# One object for each set of axes: a program is known by the objects that it calls.
@lru_cache(maxsize=64)
def _groups(axes: tuple[int, ...]) -> _Leafwise:
    def fits(x):
        return x.ndim > 0 and all(-x.ndim <= a < x.ndim for a in axes)

    def norms(x):
        square = jnp.sum(squared_modulus(x), axis=axes, keepdims=True)
        # The derivative of √ at 0 is infinite; of a zero group it must be zero.
        return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)

    def of_leaf(x, w):
        return jnp.sum(w * norms(x))

    def shrink(x, w, step):
        size, threshold = norms(x), step * w
        kept = size > threshold
        return jnp.where(kept, x * (1 - threshold / jnp.where(kept, size, 1)), 0)

    needs = f"a leaf with the axes {axes} (give others weight 0)"
    return _Leafwise("l21", of_leaf, shrink, fits, needs)


def _zero(tree):
    del tree
    return jnp.zeros((), jnp.float32)


def _identity(tree, step):
    del step
    return tree


def _regularizer(kind, **weights):
    """The regularizer of a kind, its weights checked where they are known."""
    for label, tree in weights.items():
        _check_weights(f"prox.{kind.name}", label, tree)
    return Regularizer(Partial(kind.value, weights), Partial(kind.prox, weights))


def _is_zero(w):
    return not isinstance(w, Tracer) and not np.any(np.asarray(w))


def _check_weights(who, label, tree):
    if not jax.tree.leaves(tree):
        raise ValueError(f"{who}: {label} must be a number ≥ 0; it is {tree!r}.")
    for path, w in zip(leaf_paths(tree), jax.tree.leaves(tree), strict=True):
        where = f"{label} at {path!r}" if path else label
        if not isinstance(w, int | float) and not hasattr(w, "dtype"):
            raise ValueError(
                f"{who}: {where} must be a number ≥ 0 or an array of them; it is {w!r}."
            )
        known = not isinstance(w, Tracer | jax.ShapeDtypeStruct)
        known = known and getattr(w, "is_fully_addressable", True)
        # By NumPy: inside ``jit``, JAX would not tell.
        if known and not np.all(np.asarray(w) >= 0):
            raise ValueError(
                f"{who}: {where} must be a number ≥ 0, for r must be convex; it is {w}."
            )
