"""How one leaf is read as matrices with orthonormal columns.

A leaf with a scale c is read as matrices by dividing it by c, and written back by
multiplying it: all that is computed with has orthonormal columns, XᴴBX = I. An update
of a leaf is read in the same way, and so is a gradient. The map x ↦ cx takes a gradient
g to cg, so what is read as g/c stands for the gradient c²·(g/c). What is linear in the
gradient need not know; a penalty that is added to it must be divided by c².

Everything here is decided from shapes and dtypes, at trace time, so that it works on
abstract parameters and costs nothing in the compiled program.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from cdopt_jax._checks import (
    check_count,
    check_scale,
    complex_metric_fault,
    definiteness_fault,
    metric_fault,
    takes,
)
from cdopt_jax._errors import error, naming
from cdopt_jax._math.products import Form, Metric, widen
from cdopt_jax._math.sharding import (
    Layout,
    hidden,
    mapped_axes,
    plan,
    unknown_axes,
    whole_shape,
)

from .paths import describe_leaf, listing

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
    transpose is constrained: the rows are orthonormal. A leaf may be complex.

    Attributes:
        rows: The axes flattened to rows; None for all that are not columns.
        columns: The axes flattened to columns. With ``()`` there is one column, so
            ``Stiefel(rows=-1, columns=())`` makes unit vectors.
        B: The metric of the generalized constraint xᵀBx = I: an ``(n, n)`` array or a
            callable x ↦ Bx, where n is the larger side of the matrix.
        blocks: Into how many equal blocks the columns are cut, each a matrix of its
            own, as the gates or the queries, keys and values of a fused kernel are.
        sharding: The leaf's layout on a mesh, where its type does not show it: inside
            ``shard_map``, and on Auto axes if anything but its first row axis and its
            batch is split. On Explicit axes it is read from the leaf.
        scale: The length c of the columns: the constraint is xᵀBx = c²I. Distances from
            it are relative to it: where another docstring has ‖xᵀBx − I‖, it is
            ‖xᵀBx/c² − I‖ for a leaf with a scale.

    Examples:
        Attention's query kernel ``(in, heads, head_dim)``, one matrix for each head;
        `layers` has this and other readings under the names of the layers:

        >>> import cdopt_jax as cdx
        >>> per_head = cdx.Stiefel(rows=0, columns=2)
        >>> mask = cdx.where("*/query/kernel", spec=per_head)
    """

    rows: Axes | None = None
    columns: Axes = -1
    B: Metric = None
    blocks: int = 1
    sharding: PartitionSpec | None = None
    scale: float = 1.0

    def __post_init__(self):
        with naming("Stiefel"):
            self._check()

    def _check(self):
        for label in ("rows", "columns"):
            axes = getattr(self, label)
            given = axes if isinstance(axes, tuple) else (axes,)
            if not (label == "rows" and axes is None) and not all(
                isinstance(a, int) and not isinstance(a, bool) for a in given
            ):
                raise error(
                    f"{label} must be an axis or a tuple of axes; it is {axes!r}."
                )
        check_count("blocks", self.blocks)
        object.__setattr__(self, "scale", check_scale(self.scale))
        if isinstance(self.sharding, NamedSharding):
            object.__setattr__(self, "sharding", self.sharding.spec)
        if self.sharding is not None and not isinstance(self.sharding, PartitionSpec):
            raise error(
                "sharding must be a jax.sharding.PartitionSpec, with an entry for each "
                f"axis of the leaf; it is {self.sharding!r}."
            )
        if self.B is None:
            return
        if callable(self.B) and not isinstance(self.B, type):
            if not takes(self.B, 1):
                raise error(
                    "B must be a function of one argument, x ↦ Bx, or an array; "
                    f"{self.B!r} does not take one argument."
                )
            return
        if fault := metric_fault(self.B) or definiteness_fault(self.B):
            raise error(f"{fault}.")

    def __repr__(self):
        given = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) is not f.default
        }
        if self.B is not None and not callable(self.B):
            given["B"] = f"<array of shape {jnp.shape(self.B)}>"
        return f"Stiefel({', '.join(f'{k}={v}' for k, v in given.items())})"

    def __eq__(self, other):
        if not isinstance(other, Stiefel):
            return NotImplemented
        return self._key == other._key

    def __hash__(self):
        return hash(self._key)

    @property
    def _key(self):
        axes = self.rows, self.columns
        return *axes, id(self.B), self.blocks, self.sharding, self.scale


@dataclasses.dataclass(frozen=True)
class Reading:
    """A `Stiefel` settled for one leaf: from the leaf to its matrices and back.

    Attributes:
        batch: The axes of the batch.
        rows: The axes of the rows.
        columns: The axes of the columns.
        shape: The shape of the leaf.
        B: The metric.
        blocks: Into how many blocks the columns are cut.
        told: Whether the mask says where the leaf lies on a mesh.
        scale: What the leaf is divided by to have orthonormal columns.
        computed_shape: The shape computed with: padded, or a device's own part.
        layout: Where the leaf lies on a mesh, if that is known and matters.
        across: The mapped axes that split the batch, inside ``shard_map``.
        hidden_layout: A layout that a traced program would have to know and will not.
    """

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    shape: tuple[int, ...]
    B: Metric
    blocks: int
    told: bool = False
    scale: float = 1.0
    computed_shape: tuple[int, ...] = ()
    layout: Layout | None = None
    across: tuple[str, ...] = ()
    hidden_layout: PartitionSpec | None = None

    @property
    def matrix(self) -> tuple[int, int]:
        """The sizes of rows and columns, before a wide matrix is transposed."""
        return self._size(self.rows), self._size(self.columns) // self.blocks

    @property
    def stack(self) -> tuple[int, ...]:
        """How many matrices there are, axis by axis."""
        cut = (self.blocks,) if self.blocks > 1 else ()
        return self._sizes(self.batch) + cut

    @property
    def wide(self) -> bool:
        """Whether it is the transpose that is constrained."""
        n, p = self.matrix
        return n < p

    @property
    def form(self) -> Form:
        """The form in which the columns of the matrices are orthonormal."""
        form = Form(B=self.B, across=self.across)
        if self.layout is None:
            return form
        layout = self.layout
        form = form._replace(axis_name=layout.over or None)
        if not layout.pad:
            return form
        return form._replace(indicator=lambda: self._arranged(jnp.ones(layout.given)))

    def read(self, leaf: Array) -> Array:
        """The leaf as ``(*batch, n, p)`` with n ≥ p, in the computation's dtype."""
        x = self._arranged(leaf)
        return x if self.scale == 1 else x / self.scale

    def _arranged(self, leaf):
        x = jnp.asarray(leaf)
        x = x if self.layout is None else self.layout.enter(x)
        x = x.astype(widen(x.dtype))
        x = x.transpose(self._order)
        x = x.reshape(self._matrix_shape)
        if self.blocks > 1:
            # Not at once: on Explicit axes a reshape may not merge and cut axes.
            *batch, n, p = self._matrix_shape
            x = x.reshape(*batch, n, self.blocks, p // self.blocks).swapaxes(-3, -2)
        return x.mT if self.wide else x

    def write(self, x: Array, dtype: Any) -> Array:
        """The inverse of `read`, in the given dtype."""
        x = x if self.scale == 1 else x * self.scale
        x = x.mT if self.wide else x
        if self.blocks > 1:
            x = x.swapaxes(-3, -2).reshape(self._matrix_shape)
        x = x.reshape([self.computed_shape[a] for a in self._order])
        x = x.transpose(tuple(np.argsort(self._order)))
        x = x if self.layout is None else self.layout.leave(x)
        return x.astype(dtype)

    @property
    def _matrix_shape(self):
        """The shape of the matrices as they are computed with, before they are cut."""
        sizes = [self.computed_shape[a] for a in self.batch]
        n = math.prod(self.computed_shape[a] for a in self.rows)
        p = math.prod(self.computed_shape[a] for a in self.columns)
        return (*sizes, n, p)

    @property
    def _order(self):
        return self.batch + self.rows + self.columns

    def _sizes(self, axes):
        return tuple(self.shape[a] for a in axes)

    def _size(self, axes):
        return math.prod(self._sizes(axes))


def _what_to_write(shape):
    """How to say in which way a leaf of this shape is meant to be read."""
    window = len(shape) - 2
    stack = " × ".join(str(n) for n in shape[:-2])
    rows = tuple(range(len(shape) - 1))
    return (
        f"Write layers.dense() for a stack of {stack} matrices, as scan and vmap over "
        f"layers make it; layers.conv({window}) for the kernel of a convolution, or "
        f"layers.torch_conv({window}) in the layout of PyTorch and Equinox; "
        "layers.attention() or layers.attention_out() for a kernel with an axis of "
        "heads; or "
        f"Stiefel(rows={rows}, columns=-1) for one matrix of "
        f"{math.prod(shape[:-1])} × {shape[-1]}."
    )


def settle(path: str, leaf: Any, spec: Stiefel) -> Reading:
    """The spec applied to a leaf's shape, or an error that names the leaf."""

    def fault(must, then):
        return error(f"{must}; {describe_leaf(path, leaf)}. {then}")

    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if spec.sharding is not None and shape is not None:
        if len(spec.sharding) > len(shape):
            raise fault(
                f"the sharding {spec.sharding} must have an entry for each axis",
                f"The leaf has {len(shape)} axes.",
            )
        if unknown := unknown_axes(leaf, spec.sharding):
            raise fault(
                f"the sharding {spec.sharding} must name axes of the leaf's mesh, and "
                f"{listing(sorted(unknown))} is not one",
                "Give the PartitionSpec the leaf was placed with.",
            )
        shape = whole_shape(leaf, spec.sharding)
    if shape is None or dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
        raise fault(
            "a constrained leaf must be a floating-point array, real or complex",
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
    if ndim not in (2, 4) and spec.rows is None and spec.columns == -1:
        raise fault(
            "a leaf that has neither two axes nor four can be read in several ways, "
            "and the mask must say in which",
            _what_to_write(shape),
        )
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
    width = math.prod(shape[a] for a in columns)
    if width % spec.blocks:
        raise fault(
            f"the {width} columns of {spec} must divide into {spec.blocks} blocks",
            "Give the number of gates, groups or heads of this layer as blocks.",
        )
    here = tuple(leaf.shape)
    reading = Reading(
        batch=batch,
        rows=rows,
        columns=columns,
        shape=tuple(shape),
        B=spec.B,
        blocks=spec.blocks,
        told=spec.sharding is not None,
        scale=spec.scale,
        computed_shape=here,
    )
    n = max(reading.matrix)
    if spec.B is not None and not callable(spec.B):
        if jnp.shape(spec.B) != (n, n):
            raise fault(
                f"B must have shape {(n, n)}, the larger side of the matrix; it has "
                f"{jnp.shape(spec.B)}",
                "Give this leaf a Stiefel(…) with a B of its own.",
            )
        if misfit := complex_metric_fault(spec.B, dtype):
            raise error(f"{misfit}; {describe_leaf(path, leaf)}.")
    tall, other = (columns, rows) if reading.wide else (rows, columns)
    across = mapped_axes(leaf, spec.sharding, batch)
    reading = dataclasses.replace(reading, across=across)
    layout = plan(leaf, spec.sharding, tall, other, movable=spec.B is None)
    if layout is None:
        return reading
    if reading.wide and spec.blocks > 1:
        raise fault(
            "a leaf cut into blocks that are wider than high must not be split among "
            f"devices along its rows or columns, as {layout.home} does",
            "Split its batch axes, or none.",
        )
    # A flattened axis is split as its first part is.
    moved = layout.away != layout.home or layout.host != tall[0]
    hidden_layout = hidden(leaf) if moved and spec.sharding is None else None
    tall = tuple(sorted(tall, key=lambda a: (a != layout.host, tall.index(a))))
    rows, columns = (other, tall) if reading.wide else (tall, other)
    return dataclasses.replace(
        reading,
        rows=rows,
        columns=columns,
        computed_shape=layout.shape,
        layout=layout,
        hidden_layout=hidden_layout,
    )
