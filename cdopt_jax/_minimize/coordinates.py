"""The coordinates in which the methods work, and the way from parameters and back."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.linalg import solve_triangular

from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.structure import Structure
from cdopt_jax._leaves.view import View
from cdopt_jax._math.products import Form, adjoint, mm

from .manifold import Manifold
from .points import Point
from .static import as_array


class Coordinates(NamedTuple):
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
    def manifold(self) -> Manifold:
        """The forms in which the columns of the matrices are orthonormal."""
        readings = self.structure.with_metrics(self.metrics)
        pairs = zip(readings, self.factors, strict=True)
        return Manifold([r and (r.form if f is None else Form()) for r, f in pairs])

    @property
    def mask(self) -> Mask:
        """The mask that reads the parameters in the same way."""
        return self.structure.mask(self.metrics)

    @property
    def plain(self) -> "Coordinates":
        """The same without factors."""
        return plain(self.structure, self.metrics)

    def factorised(self) -> "Coordinates":
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
        pairs = zip(self.structure.read(params), self.factors, strict=True)
        return [a if f is None else mm(adjoint(f), a) for a, f in pairs]

    def write(self, x: Point) -> optax.Params:
        """A point as parameters."""

        def one(a, factor):
            if factor is None:
                return a
            return solve(partial(solve_triangular, adjoint(factor)), a)

        pairs = zip(x, self.factors, strict=True)
        return self.structure.write([one(*pair) for pair in pairs])

    def write_gradient(self, g: Point) -> optax.Params:
        """A gradient with respect to a point, as one with respect to parameters.

        Only without factors: a point is then the parameters divided by their scales.
        """
        pairs = zip(g, self.structure.scales, strict=True)
        return self.write([a if c == 1 else a / c**2 for a, c in pairs])


def plain(structure: Structure, metrics: list[Array]) -> Coordinates:
    """The coordinates without factors."""
    none: list[Array | None] = [None] * len(structure.paths)
    return Coordinates(structure=structure, metrics=metrics, factors=none)


def coordinates(params: optax.Params, mask: Mask) -> Coordinates:
    """The coordinates of parameters, of which a mask says which are constrained."""
    view = View(params, mask)
    return plain(view.structure, [as_array(b) for b in view.metrics])


def solve(solver: Callable[[Array], Array], right: Array) -> Array:
    """A triangular system for each matrix of a batch."""
    return jnp.vectorize(solver, signature="(n,p)->(n,p)")(right)
