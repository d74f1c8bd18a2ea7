"""The leaves of the parameters as a point of the solver, and the way back.

This is no `View`, which holds the values of constrained leaves, stacked by shape. A
program is chosen before values are known, and a method moves free leaves, too.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.linalg import solve_triangular

from cdopt_jax._leaves.masks import Mask, select
from cdopt_jax._leaves.paths import describe_leaf, leaf_paths
from cdopt_jax._leaves.reading import Reading, Stiefel
from cdopt_jax._leaves.view import attach_metrics, detach_metrics
from cdopt_jax._math.products import Form, adjoint, mm, real_dtype

from .manifold import Manifold
from .points import Point


@dataclasses.dataclass(frozen=True)
class Structure:
    """What is known of the parameters before their values are: a part of the program.

    Attributes:
        treedef: The structure of the parameters.
        shapes: The shape and the dtype of each leaf.
        paths: The path of each leaf.
        constraints: How each leaf is read, without metrics that are arrays; None if
            free.
        readings: How the methods read each leaf. Nonnegative columns are matrices of
            their own.
        slots: Which of the metrics that are arrays each leaf has; None for none.
    """

    treedef: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    paths: tuple[str, ...]
    constraints: tuple[Reading | None, ...]
    readings: tuple[Reading | None, ...]
    slots: tuple[int | None, ...]

    @property
    def dtype(self) -> Any:
        """The real dtype of the objective."""
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
        plain = [r and dataclasses.replace(r, scale=1.0) for r in self.readings]
        return dataclasses.replace(self, readings=tuple(plain))

    def describe(self, index: int) -> str:
        """A leaf in words, for an error."""
        return describe_leaf(self.paths[index], self.shapes[index])


class Leaves(NamedTuple):
    """How parameters are read as a point, and a point is written as parameters.

    Attributes:
        structure: The structure of the parameters.
        metrics: The metrics that are arrays.
        factors: Of each leaf, the factor L of its metric B = LLᴴ; None where there is
            none to be used. A point then holds y = Lᴴx, for which the constraint is
            yᴴy = I.
    """

    structure: Structure
    metrics: list[Array]
    factors: list[Array | None]

    @property
    def readings(self) -> list[Reading | None]:
        """How each leaf is read; None where it is free."""
        structure = self.structure
        return attach_metrics(structure.readings, structure.slots, self.metrics)

    @property
    def manifold(self) -> Manifold:
        """The forms in which the columns of the matrices are orthonormal."""
        pairs = zip(self.readings, self.factors, strict=True)
        return Manifold([r and (r.form if f is None else Form()) for r, f in pairs])

    @property
    def mask(self) -> Mask:
        """The mask that reads the parameters in the same way."""

        def spec(r):
            if r is None:
                return False
            axes = {"rows": r.rows, "columns": r.columns, "blocks": r.blocks}
            return Stiefel(**axes, B=r.B, scale=r.scale)

        return self.structure.treedef.unflatten(map(spec, self.readings))

    @property
    def plain(self) -> "Leaves":
        """The same without factors."""
        return self._replace(factors=[None] * len(self.factors))

    def factorised(self) -> "Leaves":
        """The coordinates y = Lᴴx where a metric B = LLᴴ is an array.

        A step along the gradient of f is then as long as the curvature of the problem
        allows; in x it is shorter by the condition number of B.
        """

        def factor(r, slot):
            if slot is None or r.layout is not None:
                return None
            return jnp.linalg.cholesky(self.metrics[slot])

        pairs = zip(self.structure.readings, self.structure.slots, strict=True)
        return self._replace(factors=[factor(*pair) for pair in pairs])

    def read(self, params: optax.Params) -> Point:
        """Parameters as a point."""

        def one(leaf, r, factor):
            a = jnp.asarray(leaf) if r is None else r.read(leaf)
            return a if factor is None else mm(adjoint(factor), a)

        rows = zip(jax.tree.leaves(params), self.readings, self.factors, strict=True)
        return [one(*row) for row in rows]

    def write(self, x: Point) -> optax.Params:
        """A point as parameters."""

        def one(a, shape, r, factor):
            if factor is not None:
                a = solve(partial(solve_triangular, adjoint(factor)), a)
            return a if r is None else r.write(a, shape.dtype)

        rows = zip(x, self.structure.shapes, self.readings, self.factors, strict=True)
        return self.structure.treedef.unflatten(one(*row) for row in rows)

    def write_gradient(self, g: Point) -> optax.Params:
        """A gradient with respect to a point, as one with respect to parameters.

        Only without factors: a point is then the parameters divided by their scales.
        """
        pairs = zip(g, self.structure.scales, strict=True)
        return self.write([a if c == 1 else a / c**2 for a, c in pairs])

    def feasibility(self, params: optax.Params) -> Array:
        """The largest ‖xᵀBx − I‖_F of parameters, in their own coordinates."""
        readings = self.structure.constraints
        structure = dataclasses.replace(self.structure, readings=readings)
        leaves = self.plain._replace(structure=structure)
        return leaves.manifold.feasibility(leaves.read(params))

    def by_path(self, values: Array) -> dict[str, Array]:
        """A value for each constrained leaf, by the path of the leaf."""
        pairs = zip(self.structure.paths, self.structure.readings, strict=True)
        paths = [path for path, r in pairs if r is not None]
        return dict(zip(paths, values, strict=True))


def leaves_of(params: optax.Params, mask: Mask) -> Leaves:
    """The leaves of parameters, of which a mask says which are constrained."""
    leaves, treedef = jax.tree.flatten(params)
    readings, slots, metrics = detach_metrics(select(params, mask))
    structure = Structure(
        treedef=treedef,
        shapes=tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves),
        paths=tuple(leaf_paths(params)),
        constraints=readings,
        readings=readings,
        slots=slots,
    )
    return Leaves(
        structure=structure,
        metrics=[jnp.asarray(b) for b in metrics],
        factors=[None] * len(leaves),
    )


def solve(solver: Callable[[Array], Array], right: Array) -> Array:
    """A triangular system for each matrix of a batch."""
    return jnp.vectorize(solver, signature="(n,p)->(n,p)")(right)
