"""Which leaves of a tree are constrained, and how each is read as matrices.

Everything here is decided from paths, shapes and dtypes, at trace time, so that it
works on abstract parameters and costs nothing in the compiled program.
"""

import dataclasses
import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._algebra import widen
from ._faults import metric_fault
from ._paths import describe_leaf, leaf_paths, listing, spread
from .stiefel import Metric

Axes = int | tuple[int, ...]


def _tuple(axes):
    return (axes,) if isinstance(axes, int) else tuple(axes)


@dataclasses.dataclass(frozen=True, eq=False)
class Stiefel:
    """How one leaf is read as matrices with orthonormal columns.

    The ``rows`` axes are flattened to rows and the ``columns`` axes to columns, each in
    the order given; every other axis is batch, with one matrix for each of its
    indices. By default the last axis is the columns and the rest are the rows, which
    is the paper's reshape and Flax's layout. Where that makes a wide matrix, its
    transpose is constrained: the rows are orthonormal.

    Attributes:
        rows: The axes flattened to rows; None for all that are not columns.
        columns: The axes flattened to columns. With ``()`` there is one column, so
            ``Stiefel(rows=-1, columns=())`` makes unit vectors.
        B: The metric of the generalized constraint xᵀBx = I: an ``(n, n)`` array or a
            callable x ↦ Bx, where n is the larger side of the matrix.

    Examples:
        Attention's query kernel ``(in, heads, head_dim)``, one matrix for each head:

        >>> import cdopt_jax as cdx
        >>> per_head = cdx.Stiefel(rows=0, columns=2)
        >>> mask = cdx.where("*/query/kernel", spec=per_head)
    """

    rows: Axes | None = None
    columns: Axes = -1
    B: Metric = None

    def __post_init__(self):
        for label in ("rows", "columns"):
            axes = getattr(self, label)
            given = axes if isinstance(axes, tuple) else (axes,)
            if not (label == "rows" and axes is None) and not all(
                isinstance(a, int) and not isinstance(a, bool) for a in given
            ):
                raise ValueError(
                    f"Stiefel: {label} must be an axis or a tuple of axes; it is "
                    f"{axes!r}."
                )
        if self.B is None or callable(self.B):
            return
        if fault := metric_fault(self.B):
            raise ValueError(f"Stiefel: {fault}.")

    def __eq__(self, other):
        if not isinstance(other, Stiefel):
            return NotImplemented
        same_axes = (self.rows, self.columns) == (other.rows, other.columns)
        return same_axes and self.B is other.B

    def __hash__(self):
        return hash((self.rows, self.columns, id(self.B)))


_DEFAULT = Stiefel()


@dataclasses.dataclass(frozen=True)
class Reading:
    """A `Stiefel` settled for one leaf: from the leaf to its matrices and back."""

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    shape: tuple[int, ...]
    B: Metric

    @property
    def matrix(self) -> tuple[int, int]:
        """The sizes of rows and columns, before a wide matrix is transposed."""
        return self._size(self.rows), self._size(self.columns)

    @property
    def wide(self) -> bool:
        """Whether it is the transpose that is constrained."""
        n, p = self.matrix
        return n < p

    def read(self, leaf: Array) -> Array:
        """The leaf as ``(*batch, n, p)`` with n ≥ p, in the computation's dtype."""
        leaf = jnp.asarray(leaf)
        x = leaf.astype(widen(leaf.dtype))
        x = x.transpose(self._order).reshape(*self._sizes(self.batch), *self.matrix)
        return x.mT if self.wide else x

    def write(self, x: Array, dtype: Any) -> Array:
        """The inverse of `read`, in the given dtype."""
        x = (x.mT if self.wide else x).reshape(self._sizes(self._order))
        return x.transpose(tuple(np.argsort(self._order))).astype(dtype)

    @property
    def _order(self):
        return self.batch + self.rows + self.columns

    def _sizes(self, axes):
        return tuple(self.shape[a] for a in axes)

    def _size(self, axes):
        return math.prod(self._sizes(axes))


Mask = Any
"""None for every leaf; a tree, or its upper levels, of True, False and `Stiefel`; or a
callable from the parameters to one, such as `where` makes."""


@dataclasses.dataclass(frozen=True)
class _Where:
    patterns: tuple[str, ...]
    spec: Stiefel

    def __call__(self, tree: Any) -> Any:
        paths = leaf_paths(tree)
        for pattern in self.patterns:
            if not any(fnmatchcase(path, pattern) for path in paths):
                raise ValueError(
                    f"where: the pattern {pattern!r} matches no leaf; the leaves are: "
                    f"{listing(paths)}."
                )
        chosen = [any(fnmatchcase(q, p) for p in self.patterns) for q in paths]
        entries = [self.spec if c else False for c in chosen]
        return jax.tree.structure(tree).unflatten(entries)


def where(*patterns: str, spec: Stiefel = _DEFAULT) -> Callable[[Any], Any]:
    """A mask by name: the leaves whose path matches one of the patterns.

    Args:
        *patterns: Shell patterns on the '/'-joined path. ``*`` crosses '/' too, so
            ``"*kernel"`` finds every kernel and ``"*/kernel"`` all below the top.
        spec: How each of those leaves is read as matrices.

    Returns:
        A callable from a tree to a mask, for every function here that takes a mask.

    Raises:
        ValueError: At once, without patterns; and from the mask, where a pattern
            matches nothing, with the paths there are.

    Examples:
        >>> import jax.numpy as jnp, cdopt_jax as cdx
        >>> params = {"Dense_0": {"kernel": jnp.eye(3, 2), "bias": jnp.zeros(2)}}
        >>> cdx.where("*/kernel")(params)
        {'Dense_0': {'bias': False, 'kernel': Stiefel(rows=None, columns=-1, B=None)}}
    """
    if not patterns or not all(isinstance(p, str) for p in patterns):
        raise ValueError(
            f'where: give patterns, such as where("*/kernel"); got {patterns}.'
        )
    if not isinstance(spec, Stiefel):
        raise ValueError(f"where: spec must be a Stiefel(…); it is {spec!r}.")
    return _Where(patterns, spec)


def resolve(who: str, mask: Mask, tree: Any) -> Any:
    """The mask of a tree, which a callable makes of it.

    A module that can be called, as in Equinox, is a tree like any other.
    """
    if mask is Stiefel:
        raise ValueError(f"{who}: mask is the class Stiefel; write Stiefel().")
    made_by = callable(mask) and all(callable(m) for m in jax.tree.leaves(mask))
    return mask(tree) if made_by else mask


def select(who: str, tree: Any, mask: Mask) -> list[Reading | None]:
    """The reading of each leaf, in the order of ``jax.tree.leaves``; None if free.

    Args:
        who: The public function that asks, for its errors.
        tree: The parameters, or shapes and dtypes in their place.
        mask: Which leaves are constrained.
    """
    mask = resolve(who, mask, tree)
    leaves, paths = jax.tree.leaves(tree), leaf_paths(tree)
    if mask is None:
        entries = [True] * len(leaves)
    else:
        entries = spread(f"{who}: mask", mask, tree)
    readings = []
    for path, leaf, entry in zip(paths, leaves, entries, strict=True):
        if isinstance(entry, Stiefel):
            readings.append(_settle(who, path, leaf, entry))
        elif isinstance(entry, bool | np.bool_):
            readings.append(_settle(who, path, leaf, _DEFAULT) if entry else None)
        else:
            raise ValueError(
                f"{who}: mask must hold True, False or a Stiefel(…); at {path!r} it "
                f"holds {entry!r}."
            )
    if leaves and not any(readings):
        raise ValueError(
            f"{who}: mask selects no leaf, so nothing would be constrained; the leaves "
            f"are: {listing(paths)}."
        )
    return readings


def _settle(who, path, leaf, spec):
    """The spec applied to a leaf's shape, or an error that names the leaf."""

    def fault(must, then):
        return ValueError(f"{who}: {must}; {describe_leaf(path, leaf)}. {then}")

    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise fault(
            "a constrained leaf must be a real floating-point array",
            "Leave it out of the mask, or cast it.",
        )
    if 0 in shape:
        raise fault("a constrained leaf must not be empty", "Leave it out of the mask.")
    if not shape or (len(shape) == 1 and spec.rows is None and spec.columns == -1):
        raise fault(
            "a constrained leaf must have at least two axes",
            "Leave it out of the mask, or, for a vector of unit length, write "
            "Stiefel(rows=0, columns=()).",
        )
    ndim = len(shape)
    given = _tuple(spec.columns) + (() if spec.rows is None else _tuple(spec.rows))
    if any(not -ndim <= a < ndim for a in given):
        raise fault(
            f"the axes of {spec} must exist in the leaf",
            f"Its axes are 0 to {ndim - 1}.",
        )
    columns = tuple(a % ndim for a in _tuple(spec.columns))
    rest = tuple(a for a in range(ndim) if a not in columns)
    rows = rest if spec.rows is None else tuple(a % ndim for a in _tuple(spec.rows))
    if len(set(rows + columns)) < len(rows + columns):
        raise fault(
            f"the axes of {spec} must differ from each other",
            "An axis is rows, columns or batch.",
        )
    batch = tuple(a for a in rest if a not in rows)
    reading = Reading(batch, rows, columns, tuple(shape), spec.B)
    n = max(reading.matrix)
    if spec.B is not None and not callable(spec.B) and jnp.shape(spec.B) != (n, n):
        raise fault(
            f"B must have shape {(n, n)}, the larger side of the matrix; it has "
            f"{jnp.shape(spec.B)}",
            "Give this leaf a Stiefel(…) with a B of its own.",
        )
    return reading
