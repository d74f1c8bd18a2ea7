"""Regularizers: convex terms r(x) of an objective, each with its proximal map.

A regularizer works on a whole tree of parameters, an array being the simplest. Its
weight is one number for all leaves or a tree of them, as deep as it needs to be:
``l1({"Conv_0": 1e-4, "Dense_0": {"kernel": 1e-5, "bias": 0}})``. A weight of zero
leaves its leaf alone.

A regularizer made here is itself a tree, whose leaves are its weights. Two of the same
kind differ in their leaves only, so that `minimize` compiles one program for both.

Of a complex entry it is the modulus that is shrunk; the entry keeps its phase.
"""

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.tree_util import Partial
from jax.typing import ArrayLike

from ._checks import check_number, is_known
from ._errors import error, naming, public, user_code
from ._leaves.paths import broadcast_prefix, describe_leaf, leaf_paths
from ._math.products import (
    beside,
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

    value: Callable[[optax.Params], Array]
    prox: Callable[[optax.Params, ArrayLike], Any]

    def keeps_nonnegative(self, tree: optax.Params) -> list[bool]:
        """Whether r is infinite where a leaf has a negative entry, leaf by leaf."""
        kind = self.value.func if isinstance(self.value, Partial) else None
        if not isinstance(self.value, Partial) or kind != _NONNEGATIVE_L1.value:
            return [False] * len(jax.tree.leaves(tree))
        (weights,) = self.value.args
        return [item is not None for item in _NONNEGATIVE_L1.weighted(weights, tree)]


def l1(weight: Any) -> Regularizer:
    """weight·Σ|x|, which makes entries exactly zero.

    Examples:
        >>> import jax.numpy as jnp
        >>> from cdopt_jax import prox
        >>> print(prox.l1(0.5).prox(jnp.array([1.0, -0.25, -3.0]), 1.0))
        [ 0.5 -0.  -2.5]
    """
    return _regularizer(_L1, weight=weight)


@public("prox.l21")
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
    whole = all(isinstance(a, int) and not isinstance(a, bool) for a in axes)
    if not axes or not whole or len(set(axes)) < len(axes):
        raise error(
            "axis must be an axis, such as -1, or a tuple of different axes, such as "
            f"(0, 1); it is {axis!r}."
        )
    return _regularizer(_groups(axes), weight=weight)


def elastic_net(l1_weight: Any, l2_weight: Any) -> Regularizer:
    """l1_weight·Σ|x| + (l2_weight/2)·Σ|x|²."""
    return _regularizer(_ELASTIC_NET, l1_weight=l1_weight, l2_weight=l2_weight)


def nonnegative_l1(weight: Any) -> Regularizer:
    """weight·Σx where x ≥ 0, infinite elsewhere. A leaf of weight zero is free.

    Orthonormal columns that are nonnegative have no row in common. `minimize` has its
    own phases for them, of which ``result.method`` is ``"nonnegative"``. Complex leaves
    have no order, and are refused unless their weight is zero.
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
        axes: The axes along which a group of entries extends.
    """

    name: str
    of_leaf: Callable[..., Array]
    shrink: Callable[..., Array]
    axes: tuple[int, ...] = ()
    ordered: bool = False

    def value(self, weights: dict[str, Any], tree: optax.Params) -> Array:
        """The sum over the leaves."""
        items = self.weighted(weights, tree)
        return jnp.asarray(sum(self.of_leaf(*item) for item in items if item))

    def prox(self, weights: dict[str, Any], tree: optax.Params, step: ArrayLike) -> Any:
        """The proximal map, leaf by leaf."""
        leaves, treedef = jax.tree.flatten(tree)
        with user_code(), naming(f"prox.{self.name}"):
            check_number("step", step, zero=True)

        def one(leaf, item):
            if item is None:
                return leaf
            step_here = jnp.asarray(step, real_dtype(item[0].dtype))
            return self.shrink(*item, step_here).astype(jnp.result_type(leaf))

        return treedef.unflatten(map(one, leaves, self.weighted(weights, tree)))

    def weighted(self, weights: dict[str, Any], tree: optax.Params) -> list[Any]:
        """Each leaf with its weights, in the dtype of the computation, or None."""
        # Also where a transformation calls it: the mistake is in the weights.
        with user_code(), naming(f"prox.{self.name}"):
            columns = [broadcast_prefix(k, w, tree) for k, w in weights.items()]
            rows = zip(leaf_paths(tree), jax.tree.leaves(tree), *columns, strict=True)
            return [self._row(list(weights), *row) for row in rows]

    def _row(self, labels, path, leaf, *ws):
        if all(_is_zero(w) for w in ws):
            return None
        x = jnp.asarray(leaf)
        kind = jnp.floating if self.ordered else jnp.inexact
        if not jnp.issubdtype(x.dtype, kind):
            wanted = "floating point"
            if self.ordered:
                wanted = "real, since complex numbers have no order"
            raise error(
                f"a regularized leaf must be {wanted}; {describe_leaf(path, x)}. Give "
                "this leaf the weight 0."
            )
        along = {a % x.ndim for a in self.axes if -x.ndim <= a < x.ndim}
        if len(along) < len(self.axes):
            raise error(
                f"a regularized leaf must have the axes {self.axes}, and they must "
                f"differ; {describe_leaf(path, x)}. Give this leaf the weight 0."
            )
        groups = tuple(1 if i in along else n for i, n in enumerate(x.shape))
        for label, w in zip(labels, ws, strict=True):
            if not _broadcasts(jnp.shape(w), groups):
                raise error(
                    f"{label} must be a number, or an array that broadcasts to "
                    f"{groups}, the shape of {'the groups' if along else 'the leaf'}; "
                    f"{describe_leaf(path, x)}, and its {label} has shape "
                    f"{jnp.shape(w)}."
                )
        x = x.astype(widen(x.dtype))
        real = real_dtype(x.dtype)
        return x, *(of_rank(jnp.asarray(w, real), x.ndim) for w in ws)


def _broadcasts(shape, to):
    """Whether an array of one shape can be repeated to have the other."""
    if len(shape) > len(to):
        return False
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return all(n in (1, m) for n, m in pairs)


def _soft(x, threshold):
    return jnp.sign(x) * beside(jnp.maximum(jnp.abs(x) - threshold, 0), x)


_L1 = _Leafwise(
    "l1",
    lambda x, w: jnp.sum(w * jnp.abs(x)),
    lambda x, w, step: _soft(x, step * w),
)
_ELASTIC_NET = _Leafwise(
    "elastic_net",
    lambda x, w1, w2: jnp.sum(w1 * jnp.abs(x) + w2 / 2 * squared_modulus(x)),
    lambda x, w1, w2, step: _soft(x, step * w1) / beside(1 + step * w2, x),
)
_NONNEGATIVE_L1 = _Leafwise(
    "nonnegative_l1",
    lambda x, w: jnp.where(jnp.all(x >= 0), jnp.sum(w * x), jnp.inf),
    lambda x, w, step: jnp.maximum(x - step * w, 0),
    ordered=True,
)


# One object for each set of axes: a program is known by the objects that it calls.
@lru_cache(maxsize=64)
def _groups(axes: tuple[int, ...]) -> _Leafwise:
    def norms(x):
        square = jnp.sum(squared_modulus(x), axis=axes, keepdims=True)
        # The derivative of √ at 0 is infinite; of a zero group it must be zero.
        return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)

    def of_leaf(x, w):
        return jnp.sum(w * norms(x))

    def shrink(x, w, step):
        size, threshold = norms(x), step * w
        kept = size > threshold
        share = 1 - threshold / jnp.where(kept, size, 1)
        return jnp.where(kept, x * beside(share, x), 0)

    return _Leafwise("l21", of_leaf, shrink, axes)


def _zero(tree):
    del tree
    return jnp.zeros((), jnp.float32)


def _identity(tree, step):
    del step
    return tree


def _regularizer(kind, **weights):
    """The regularizer of a kind, its weights checked where they are known."""
    with naming(f"prox.{kind.name}"):
        for label, tree in weights.items():
            _check_weights(label, tree)
    return Regularizer(Partial(kind.value, weights), Partial(kind.prox, weights))


def _is_zero(w):
    return is_known(w) and not np.any(np.asarray(w))


def _check_weights(label, tree):
    if not jax.tree.leaves(tree):
        raise error(f"{label} must be a number ≥ 0; it is {tree!r}.")
    for path, w in zip(leaf_paths(tree), jax.tree.leaves(tree), strict=True):
        where = f"{label} at {path!r}" if path else label
        if not _is_real(w):
            raise error(
                f"{where} must be a number ≥ 0 or an array of them; it is "
                + (f"of dtype {w.dtype}." if hasattr(w, "dtype") else f"{w!r}.")
            )
        if not is_known(w):
            continue
        # By NumPy: inside ``jit``, JAX would not tell.
        entries = np.ravel(w)
        wrong = entries[~((entries >= 0) & np.isfinite(entries))]
        if wrong.size:
            raise error(
                f"{where} must be ≥ 0 and finite, for r must be convex; it "
                f"{'holds' if np.ndim(w) else 'is'} {wrong[0]}."
            )


def _is_real(w):
    if isinstance(w, bool) or not (isinstance(w, int | float) or hasattr(w, "dtype")):
        return False
    dtype = jnp.result_type(w)
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
