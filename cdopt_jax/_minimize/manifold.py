"""The constraint on points of the solver: the map A, tangent spaces, distances."""

from collections.abc import Callable, Sequence
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

APPLICATIONS = 2
"""How often the residual is that of A at most, before A leads to `NEAR` or nearer. A
takes ‖E‖ to its third power at least, and `EDGE` to 0.125 and then to 0.002."""


Images = Sequence[Array | None]
"""Matrices B times those of a point, where they are kept."""


class Measured(NamedTuple):
    """A matrix that may be off the manifold, and how far off it is.

    Attributes:
        matrix: The matrix a.
        image: Ba; None for a free leaf.
        residual: E and E²; None for a free leaf.
        distance: The largest ‖E‖, in Schatten's norm of order four, which is within
            p^(1/4) of the largest eigenvalue.
    """

    matrix: Array
    image: Array | None
    residual: tuple[Array, Array] | None
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
            if form is None:
                zero = jnp.zeros((), real_dtype(a.dtype))
                return Measured(matrix=a, image=None, residual=None, distance=zero)
            image = form.apply(a)
            e = form.residual(a, image)
            square = mm(e, e)
            return Measured(
                matrix=a,
                image=image,
                residual=(e, square),
                distance=_distance(square),
            )

        return [one(*row) for row in zip(y, self.forms, strict=True)]

    def restore(self, measured: list[Measured]) -> tuple[Point, Images]:
        """A of measured matrices, by A again where they are far off, and `kept` of it.

        B is not applied again.
        """
        new, images = [], []
        for m in measured:
            if m.residual is None:
                new.append(m.matrix)
                images.append(None)
            else:
                assert m.image is not None
                w = _factor(*m.residual, m.distance)
                new.append(m.matrix + mm(m.matrix, w))
                images.append(m.image + mm(m.image, w))
        # XLA leaves out the images that are not kept.
        return new, self.kept(images)

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

    def kept(self, bx: Images) -> Images:
        """Of Bx what is worth keeping beside x: None where there is no metric."""
        pairs = zip(bx, self.forms, strict=True)
        return [
            None if form is None or form.B is None else image for image, form in pairs
        ]

    def unkept(self, x: Point, kept: Images) -> Point:
        """Bx, from x and what was kept of it."""
        pairs = zip(x, kept, strict=True)
        return [a if image is None else image for a, image in pairs]

    def project(self, x: Point) -> Point:
        """The nearest point of the manifold.

        Points of the solver are near to it as a rule, and A twice leads there: four
        products, where those that bring any matrix there are forty.
        """
        measured = self.measure(x)

        def near():
            closer, _ = self.restore(measured)
            return self.restore(self.measure(closer))[0]

        def far():
            return self._map(lambda form, a: stiefel.project(a, **form.arguments), x)

        distance = jnp.max(jnp.stack([m.distance for m in measured]))
        return lax.cond(distance < EDGE, near, far)

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


def _distance(square):
    return jnp.max(jnp.sqrt(norm(square)))


def _factor(e, square, distance):
    """The w with which a + aw is A of a, or A again and again until that is near.

    The residual of A(a) is E³(40I − 15E + 9E²)/64, so that no matrix of the size of a
    is formed but the last.
    """

    def again(carry):
        count, e, square, _, w = carry
        cube = mm(e, square)
        e = (40 * cube + mm(cube, 9 * square - 15 * e)) / 64
        square = mm(e, e)
        c = map_correction(e, square)
        return count + 1, e, square, _distance(square), w + c + mm(w, c)

    def far(carry):
        count, _, _, distance, _ = carry
        return (distance > NEAR) & (count < APPLICATIONS)

    # Once is enough but after long steps.
    start = jnp.zeros((), jnp.int32), e, square, distance, map_correction(e, square)
    return lax.while_loop(far, again, start)[-1]
