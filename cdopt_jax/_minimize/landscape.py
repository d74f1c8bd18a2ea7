"""The problem as the methods see it: a list of matrices, values and derivatives.

A point is a list with one entry for each leaf of the parameters: matrices
``(*batch, n, p)`` for a constrained leaf, the leaf itself for a free one. All methods
work on such lists.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from cdopt_jax import stiefel
from cdopt_jax._leaves.masks import select
from cdopt_jax._leaves.reading import Reading
from cdopt_jax._math.automatic_beta import weight
from cdopt_jax._math.products import Form, map_correction, mm, norm, phi
from cdopt_jax.prox import Regularizer

Point = list[Array]

EDGE = 0.5
"""The ‖E‖_F outside of which no step may lead: far out h is unbounded below."""


NEAR = 1e-2
"""The ‖E‖ from which A leads to a point with ‖E‖ of 1e-6, hardly off the manifold."""


class Far(NamedTuple):
    """Matrices that may be off the manifold.

    Attributes:
        a: The matrices.
        b: The metric applied to them.
        c: The P − I with which A(a) = a + ac; None for a free leaf.
        off: The largest ‖E‖, in Schatten's norm of order four, which is within p^(1/4)
            of the largest eigenvalue.
    """

    a: Array
    b: Array
    c: Array | None
    off: Array


class Landscape(NamedTuple):
    """f + r over the parameters, of which some leaves are orthonormal.

    Attributes:
        f: From the parameters to a scalar.
        regularizer: The term r, or None.
        readings: Of each leaf, how it is read; None where it is free.
        factors: Of a metric B = LLᵀ, the factor L; None where there is none to be used.
            A point then holds y = Lᵀx, for which the constraint is yᵀy = I.
        like: Parameters, or their shapes: the structure that ``f`` expects.
    """

    f: Callable[[Any], Array]
    regularizer: Regularizer | None
    readings: list[Reading | None]
    factors: list[Array | None]
    like: Any

    @property
    def forms(self) -> list[Form | None]:
        """In which form the columns of each matrix are orthonormal; None if free."""
        pairs = zip(self.readings, self.factors, strict=True)
        return [
            None if r is None else r.form if factor is None else Form()
            for r, factor in pairs
        ]

    def factorised(self) -> list[Array | None]:
        """The factors of metrics that are arrays, for methods to use their geometry.

        A condition number less. A regularizer forbids it, its proximal map being that
        of x.
        """

        def factor(r):
            if self.regularizer is not None or r is None or r.B is None:
                return None
            plain = not callable(r.B) and r.layout is None
            return jnp.linalg.cholesky(jnp.asarray(r.B)) if plain else None

        return [factor(r) for r in self.readings]

    def read(self, params: chex.ArrayTree) -> Point:
        """Parameters as a point."""
        rows = zip(jax.tree.leaves(params), self.readings, self.factors, strict=True)

        def one(leaf, r, factor):
            x = leaf if r is None else r.read(leaf)
            return x if factor is None else mm(factor.T, x)

        return [one(*row) for row in rows]

    def write(self, x: Point) -> Any:
        """A point as parameters."""
        leaves, treedef = jax.tree.flatten(self.like)

        def one(a, leaf, r, factor):
            if factor is not None:
                a = jnp.vectorize(
                    partial(solve_triangular, factor.T), signature="(n,p)->(n,p)"
                )(a)
            return a if r is None else r.write(a, leaf.dtype)

        rows = zip(x, leaves, self.readings, self.factors, strict=True)
        return treedef.unflatten(one(*row) for row in rows)

    def smooth(self, x: Point) -> Array:
        """The term f."""
        return self.f(self.write(x))

    def regular(self, x: Point) -> Array:
        """The term r, zero if there is none."""
        if self.regularizer is None:
            return jnp.zeros((), x[0].dtype)
        return self.regularizer.value(self.write(x)).astype(x[0].dtype)

    def value(self, x: Point) -> Array:
        """The objective f + r."""
        return self.smooth(x) + self.regular(x)

    def prox(self, x: Point, step: Array) -> Point:
        """The proximal map of r."""
        if self.regularizer is None:
            return x
        return self.read(self.regularizer.prox(self.write(x), step))

    def dissolve(self, x: Point) -> Point:
        """A on the matrices."""
        return [
            a if form is None else stiefel.dissolve(a, **form.arguments)
            for a, form in zip(x, self.forms, strict=True)
        ]

    def measured(self, y: Point) -> list[Far]:
        """How far each leaf is from the manifold."""

        def one(a, form):
            if form is None:
                return Far(a, jnp.zeros_like(a), None, jnp.zeros((), a.dtype))
            return _far(form, a, form.apply(a))

        return [one(*row) for row in zip(y, self.forms, strict=True)]

    def restored(self, fars: list[Far]) -> tuple[Point, Point]:
        """A of what was measured, by A again where that is far, and B times it.

        B is not applied again.
        """

        def one(far, form):
            if form is None:
                return far

            def again(far):
                a = far.a + mm(far.a, far.c)
                return _far(form, a, a if form.B is None else far.b + mm(far.b, far.c))

            # Once is enough but for long steps.
            further = lax.while_loop(
                lambda far: (far.off > NEAR) & (far.off < EDGE), again, far
            )
            return again(further)

        ends = [one(*row) for row in zip(fars, self.forms, strict=True)]
        return [end.a for end in ends], [end.b for end in ends]

    def normal(self, bx: Point, g: Point) -> Point:
        """The S for which g − BxS is the projection of g to the tangent space.

        S is Φ(xᵀg) without a metric. With one, S solves MS + SM = 2Φ(xᵀBg) with
        M = xᵀB²x, here in the eigenvectors of M. The gradient of f∘A would need no
        such equation, but is not orthogonal to the normal space, and steps along it are
        shorter by as much as B is ill-conditioned. Zero for a free leaf.
        """

        def one(b, right, form):
            if form is None or form.B is None:
                return right
            values, vectors = jnp.linalg.eigh(phi(form.gram(b, b)))
            right = mm(mm(vectors.mT, right), vectors)
            s = 2 * right / (values[..., :, None] + values[..., None, :])
            return mm(mm(vectors, s), vectors.mT)

        return [
            one(*row) for row in zip(bx, self.inner(bx, g), self.forms, strict=True)
        ]

    def tangent(self, bx: Point, g: Point) -> Point:
        """The orthogonal projection of g to the tangent space."""
        return minus(g, self.multiply(bx, self.normal(bx, g)))

    def project(self, x: Point) -> Point:
        """The nearest point of the manifold."""
        return [
            a if form is None else stiefel.project(a, **form.arguments)
            for a, form in zip(x, self.forms, strict=True)
        ]

    def adjoint(self, x: Point, g: Point) -> Point:
        """The gradient of f∘A at x, where that of f at A(x) is g."""
        return [
            w if form is None else stiefel.vjp(a, w, **form.arguments)
            for a, w, form in zip(x, g, self.forms, strict=True)
        ]

    def tangential(self, x: Point, d: Point) -> Point:
        """J_A d, for a direction d that is an image of its adjoint."""
        # Without a metric the two are the same projection, and one is enough.
        return [
            v if form is None or form.B is None else stiefel.jvp(a, v, **form.arguments)
            for a, v, form in zip(x, d, self.forms, strict=True)
        ]

    def inner(self, a: Point, b: Point) -> Point:
        """Φ(aᵀb) for each constrained leaf, zero for the others."""
        return [
            jnp.zeros((), u.dtype) if form is None else phi(form.gram(u, v))
            for u, v, form in zip(a, b, self.forms, strict=True)
        ]

    def multiply(self, y: Point, s: Point) -> Point:
        """Products ys for each constrained leaf, zero for the others."""
        rows = zip(y, s, self.forms, strict=True)
        return [jnp.zeros_like(a) if form is None else mm(a, b) for a, b, form in rows]

    def feasibility(self, x: Point) -> Array:
        """The largest ‖E‖_F."""
        found = [
            jnp.max(stiefel.feasibility(a, **form.arguments))
            for a, form in zip(x, self.forms, strict=True)
            if form is not None
        ]
        return jnp.max(jnp.stack(found))

    def penalty(self, x: Point) -> Array:
        """The sum of ‖E‖²/4."""
        found = [
            jnp.sum(stiefel.penalty(a, **form.arguments))
            for a, form in zip(x, self.forms, strict=True)
            if form is not None
        ]
        return jnp.sum(jnp.stack(found))

    def weight(self, g: Point) -> Array:
        """The automatic β that gradients of that size ask for."""
        found = [
            jnp.max(weight(a, form))
            for a, form in zip(g, self.forms, strict=True)
            if form is not None
        ]
        return jnp.max(jnp.stack(found))

    def dissolved(self, x: Point, beta: Array) -> Array:
        """The constraint dissolving function h, with a wall around its region.

        Far out f∘A falls faster than the penalty rises, with the tenth power of x for
        a quadratic f. The wall rises with the twelfth, is twice differentiable, and
        zero where ‖E‖_F is below `EDGE`.
        """
        squares = 4 * self.penalty(x)
        out = jnp.maximum(squares - EDGE**2, 0)
        h = self.value(self.dissolve(x)) + beta * self.penalty(x)
        return h + 16 * beta * out**3

    def stationarity(self, x: Point) -> Array:
        """The norm of the projected gradient of f + r, by automatic differentiation."""
        return length(self.adjoint(x, jax.grad(self.value)(x)))


def _far(form, a, b):
    e = form.residual(a, b)
    square = mm(e, e)
    return Far(a, b, map_correction(e, square), jnp.max(jnp.sqrt(norm(square))))


def landscape(
    f: Callable[[Any], Array],
    mask: Any,
    regularizer: Regularizer | None,
    params: chex.ArrayTree,
) -> Landscape:
    """The landscape of ``f`` + ``regularizer`` around ``params``.

    Args:
        f: From the parameters to a scalar.
        mask: Which leaves are constrained.
        regularizer: The term r, or None.
        params: The parameters.
    """
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), params)
    readings = select(params, mask)
    return Landscape(f, regularizer, readings, [None] * len(readings), like)


def dot(a: Point, b: Point) -> Array:
    """The Euclidean inner product."""
    found = [
        jnp.tensordot(u, v, axes=u.ndim, precision="highest")
        for u, v in zip(a, b, strict=True)
    ]
    return sum(found[1:], found[0])


def length(a: Point) -> Array:
    """The Euclidean norm."""
    return jnp.sqrt(dot(a, a))


def along(x: Point, step: Any, d: Point) -> Point:
    """The point x + step·d."""
    return [u + step * v for u, v in zip(x, d, strict=True)]


def minus(a: Point, b: Point) -> Point:
    """The difference a − b."""
    return along(a, -1, b)
