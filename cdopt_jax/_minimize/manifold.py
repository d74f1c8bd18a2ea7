"""The constraint on points of the solver: the map A, tangent spaces, distances."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array, lax

from cdopt_jax import stiefel
from cdopt_jax._math.automatic_beta import weight
from cdopt_jax._math.products import (
    Form,
    adjoint,
    map_correction,
    mm,
    norm,
    phi,
    real_dtype,
)

from .points import Point

EDGE = 0.5
"""The ‖E‖_F outside of which no step may lead: far out h is unbounded below."""

NEAR = 1e-2
"""The ‖E‖ from which A leads to a point with ‖E‖ of 1e-6, hardly off the manifold."""

APPLICATIONS = 8
"""The most applications of A to one candidate. In exact arithmetic three lead from
`EDGE` to `NEAR`; in single precision an ill-conditioned B never gets there."""


class Measured(NamedTuple):
    """A matrix that may be off the manifold, and how far off it is.

    Attributes:
        matrix: The matrix a.
        image: Ba.
        correction: The P − I with which A(a) = a + a(P − I); None for a free leaf.
        distance: The largest ‖E‖, in Schatten's norm of order four, which is within
            p^(1/4) of the largest eigenvalue.
    """

    matrix: Array
    image: Array
    correction: Array | None
    distance: Array


class Manifold(NamedTuple):
    """The points of which the matrices have orthonormal columns.

    Attributes:
        forms: In which form the columns of each leaf are orthonormal; None if free.
    """

    forms: list[Form | None]

    def _map(self, fn: Callable[..., Array], *points: Point) -> Point:
        """``fn`` of each form and its matrices; free leaves are those of the last."""
        rows = zip(self.forms, *points, strict=True)
        return [row[-1] if form is None else fn(form, *row) for form, *row in rows]

    def _numbers(self, fn: Callable[[Form, Array], Array], x: Point) -> Array:
        """A vector with the number that ``fn`` makes of each constrained leaf."""
        pairs = zip(self.forms, x, strict=True)
        return jnp.stack([fn(form, a) for form, a in pairs if form is not None])

    def dissolve(self, x: Point) -> Point:
        """A on the matrices."""
        return self._map(lambda form, a: stiefel.dissolve(a, **form.arguments), x)

    def measure(self, y: Point) -> list[Measured]:
        """How far each leaf is from the manifold."""

        def one(a, form):
            if form is not None:
                return _measure(form, a, form.apply(a))
            zero = jnp.zeros((), real_dtype(a.dtype))
            image = jnp.zeros_like(a)
            return Measured(matrix=a, image=image, correction=None, distance=zero)

        return [one(*row) for row in zip(y, self.forms, strict=True)]

    def restore(self, measured: list[Measured]) -> tuple[Point, Point]:
        """A of measured matrices, by A again where they are far off, and B times it.

        B is not applied again.
        """

        def one(first, form):
            if form is None:
                return first

            def again(m):
                a = m.matrix + mm(m.matrix, m.correction)
                image = a if form.B is None else m.image + mm(m.image, m.correction)
                return _measure(form, a, image)

            def body(carry):
                count, m = carry
                return count + 1, again(m)

            def far(carry):
                count, m = carry
                off = (m.distance > NEAR) & (m.distance < EDGE)
                return off & (count < APPLICATIONS)

            # Once is enough but after long steps.
            _, nearer = lax.while_loop(far, body, (jnp.zeros((), jnp.int32), first))
            return again(nearer)

        ends = [one(*row) for row in zip(measured, self.forms, strict=True)]
        return [end.matrix for end in ends], [end.image for end in ends]

    def normal(self, bx: Point, g: Point) -> Point:
        """The S for which g − BxS is the projection of g to the tangent space.

        S is Φ(xᴴg) without a metric. With one, S solves MS + SM = 2Φ(xᴴBg) with
        M = xᴴB²x, here in the eigenvectors of M. The gradient of f∘A would need no
        such equation, but is not orthogonal to the normal space, and steps along it are
        shorter by as much as B is ill-conditioned. Zero for a free leaf.
        """

        def one(form, b, right):
            if form.B is None:
                return right
            values, vectors = jnp.linalg.eigh(phi(form.gram(b, b)))
            right = mm(mm(adjoint(vectors), right), vectors)
            s = 2 * right / (values[..., :, None] + values[..., None, :])
            return mm(mm(vectors, s), adjoint(vectors))

        return self._map(one, bx, self.inner(bx, g))

    def tangent(self, bx: Point, g: Point) -> Point:
        """The orthogonal projection of g to the tangent space."""
        return optax.tree.sub(g, self.multiply(bx, self.normal(bx, g)))

    def image(self, x: Point) -> Point:
        """Bx for each constrained leaf, x itself for the others."""
        return self._map(lambda form, a: form.apply(a), x)

    def project(self, x: Point) -> Point:
        """The nearest point of the manifold."""
        return self._map(lambda form, a: stiefel.project(a, **form.arguments), x)

    def adjoint(self, x: Point, g: Point) -> Point:
        """The gradient of f∘A at x, where that of f at A(x) is g."""
        return self._map(lambda form, a, w: stiefel.vjp(a, w, **form.arguments), x, g)

    def descent(self, x: Point, g: Point) -> Point:
        """J_A J_A* g, the direction of Algorithm 1 for the gradient g of f at A(x)."""

        def one(form, a, v):
            # Without a metric J_A is a projection on the manifold, and one is enough.
            return v if form.B is None else stiefel.jvp(a, v, **form.arguments)

        return self._map(one, x, self.adjoint(x, g))

    def inner(self, a: Point, b: Point) -> Point:
        """Φ(aᴴb) for each constrained leaf, zero for the others."""
        return [
            jnp.zeros((), u.dtype) if form is None else phi(form.gram(u, v))
            for u, v, form in zip(a, b, self.forms, strict=True)
        ]

    def multiply(self, y: Point, s: Point) -> Point:
        """Products ys for each constrained leaf, zero for the others."""
        rows = zip(y, s, self.forms, strict=True)
        return [jnp.zeros_like(a) if form is None else mm(a, b) for a, b, form in rows]

    def feasibility(self, x: Point) -> Array:
        """The largest ‖E‖_F in the coordinates of the methods."""

        def one(form, a):
            return jnp.max(stiefel.feasibility(a, **form.arguments))

        return jnp.max(self._numbers(one, x))

    def penalties(self, x: Point) -> Array:
        """The sum of ‖E‖²/4 of each constrained leaf."""

        def one(form, a):
            return jnp.sum(stiefel.penalty(a, **form.arguments))

        return self._numbers(one, x)

    def automatic_beta(self, g: Point) -> Array:
        """The automatic β of each constrained leaf for a gradient; 1 for zero."""
        betas = self._numbers(lambda form, a: jnp.max(weight(a, form)), g)
        return jnp.where(betas > 0, betas, 1)


def _measure(form, a, image):
    e = form.residual(a, image)
    square = mm(e, e)
    return Measured(
        matrix=a,
        image=image,
        correction=map_correction(e, square),
        distance=jnp.max(jnp.sqrt(norm(square))),
    )
