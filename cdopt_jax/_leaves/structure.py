"""What is known of a tree and its mask before values are: which leaves, read how.

A `View` is a structure with the values of the constrained leaves. The solver chooses
its programs by the structure alone, and moves free leaves, too.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cdopt_jax._math.products import real_dtype

from .masks import Mask
from .paths import describe_leaf
from .reading import Reading, Stiefel


@dataclasses.dataclass(frozen=True)
class Structure:
    """The leaves of a tree, without their values and without metrics that are arrays.

    Attributes:
        treedef: The structure of the tree.
        shapes: The shape and the dtype of each leaf.
        paths: The path of each leaf.
        readings: How each leaf is read; None if it is free.
        slots: Which of the metrics that are arrays each leaf has; None for none.
    """

    treedef: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    paths: tuple[str, ...]
    readings: tuple[Reading | None, ...]
    slots: tuple[int | None, ...]

    @property
    def dtype(self) -> Any:
        """The real dtype of a function of the tree."""
        # Not by promotion, which JAX's strict mode refuses.
        dtypes = [jnp.dtype(jnp.float32), *(real_dtype(s.dtype) for s in self.shapes)]
        return max(dtypes, key=lambda dtype: jnp.finfo(dtype).bits)

    @property
    def scales(self) -> list[float]:
        """The scale of each leaf; 1 if it is free."""
        return [1.0 if r is None else r.scale for r in self.readings]

    @property
    def unscaled(self) -> "Structure":
        """The same without scales: matrices are then the entries of leaves."""
        return self.read_as(
            r and dataclasses.replace(r, scale=1.0) for r in self.readings
        )

    def read_as(self, readings: Iterable[Reading | None]) -> "Structure":
        """The same leaves, read in another way."""
        return dataclasses.replace(self, readings=tuple(readings))

    def describe(self, index: int) -> str:
        """A leaf in words, for an error."""
        return describe_leaf(self.paths[index], self.shapes[index])

    def by_path(self, values: Iterable[Any]) -> dict[str, Any]:
        """A value for each constrained leaf, by the path of the leaf."""
        pairs = zip(self.paths, self.readings, strict=True)
        paths = [path for path, r in pairs if r is not None]
        return dict(zip(paths, values, strict=True))

    def read(self, tree: Any) -> list[Array]:
        """The matrices of the constrained leaves among the free leaves themselves."""
        pairs = zip(jax.tree.leaves(tree), self.readings, strict=True)
        return [jnp.asarray(a) if r is None else r.read(a) for a, r in pairs]

    def write(self, arrays: Sequence[Array]) -> Any:
        """The tree that `read` would make these arrays of."""
        rows = zip(arrays, self.shapes, self.readings, strict=True)
        return self.treedef.unflatten(
            a if r is None else r.write(a, shape.dtype) for a, shape, r in rows
        )

    def with_metrics(self, metrics: Sequence[Any]) -> list[Reading | None]:
        """The readings, with the metrics that are arrays."""
        return attach_metrics(self.readings, self.slots, metrics)

    def mask(self, metrics: Sequence[Any]) -> Mask:
        """The mask that reads the tree in the same way."""

        def spec(r):
            if r is None:
                return False
            axes = {"rows": r.rows, "columns": r.columns, "blocks": r.blocks}
            return Stiefel(**axes, B=r.B, scale=r.scale)

        return self.treedef.unflatten(map(spec, self.with_metrics(metrics)))


def detach_metrics(
    readings: Sequence[Reading | None],
) -> tuple[tuple[Reading | None, ...], tuple[int | None, ...], list[Any]]:
    """Readings without the metrics that are arrays, the place of each, the metrics.

    A metric that several leaves share is one argument of a program.
    """
    arrays = [None if r is None or callable(r.B) else r.B for r in readings]
    metrics = {id(b): b for b in arrays if b is not None}
    order = list(metrics)
    slots = tuple(None if b is None else order.index(id(b)) for b in arrays)
    bare = [
        r and (r if callable(r.B) else dataclasses.replace(r, B=None)) for r in readings
    ]
    return tuple(bare), slots, list(metrics.values())


def attach_metrics(
    bare: Sequence[Reading | None], slots: Sequence[int | None], metrics: Sequence[Any]
) -> list[Reading | None]:
    """The inverse of `detach_metrics`."""
    return [
        r if r is None or slot is None else dataclasses.replace(r, B=metrics[slot])
        for r, slot in zip(bare, slots, strict=True)
    ]
