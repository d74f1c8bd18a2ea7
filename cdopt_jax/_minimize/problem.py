"""The problem as the methods see it: a list of matrices, values and derivatives.

A point is a list with one entry for each leaf of the parameters: matrices
``(*batch, n, p)`` for a constrained leaf, the leaf itself for a free one. All methods
work on such lists. This is the one file of the solver that knows masks and readings.

Points may be complex. Their inner product is then the real part of the complex one, and
a gradient is the direction of steepest ascent, the conjugate of that of ``jax.grad``.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from cdopt_jax import stiefel
from cdopt_jax._checks import in_double_precision
from cdopt_jax._leaves.masks import Mask, select
from cdopt_jax._leaves.paths import describe_leaf, leaf_paths
from cdopt_jax._leaves.reading import Reading, Stiefel
from cdopt_jax._math.automatic_beta import weight
from cdopt_jax._math.products import (
    Form,
    adjoint,
    is_complex,
    map_correction,
    mm,
    norm,
    phi,
    real_dtype,
)
from cdopt_jax.prox import Regularizer

Point = list[Array]

EDGE = 0.5
"""The ‖E‖_F outside of which no step may lead: far out h is unbounded below."""

NEAR = 1e-2
"""The ‖E‖ from which A leads to a point with ‖E‖ of 1e-6, hardly off the manifold."""

APPLICATIONS = 8
"""The most applications of A to one candidate. In exact arithmetic three lead from
`EDGE` to `NEAR`; in single precision an ill-conditioned B never gets there."""

PROXIMAL_STEPS, PROXIMAL_ACCURACY = 500, 0.1
"""The most steps, and the relative accuracy, of the proximal map in a metric."""


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


class _Accelerated(NamedTuple):
    """The state of the proximal map in a metric.

    Attributes:
        z: The last point.
        ahead: The point from which the next step is taken.
        momentum: Nesterov's sequence.
        excess: By how much the residual exceeds the accuracy that is asked for.
        taken: How many steps were taken.
    """

    z: Point
    ahead: Point
    momentum: Array
    excess: Array
    taken: Array


class Look(NamedTuple):
    """The objective around a point.

    Attributes:
        value: The objective f + r.
        whole_value: The same with r at its full strength.
        gradient: The gradient of f.
        subgradient: A subgradient of r.
        bend: ∇²f(x)[x], how the gradient of f changes along x itself.
    """

    value: Array
    whole_value: Array
    gradient: Point
    subgradient: Point
    bend: Point

    @property
    def slope(self) -> Array:
        """The size of the gradient of f and of the subgradient of r together."""
        return optax.tree.norm(self.gradient) + optax.tree.norm(self.subgradient)

    @property
    def curvature(self) -> Array:
        """The size of the bend, which is that of a gradient."""
        return optax.tree.norm(self.bend)

    @property
    def whole(self) -> Point:
        """The subgradient of f + r."""
        return optax.tree.add(self.gradient, self.subgradient)


@dataclasses.dataclass(frozen=True)
class Structure:
    """What is known of the parameters before their values are: a part of the program.

    Attributes:
        treedef: The structure of the parameters.
        shapes: The shape of each leaf.
        dtypes: The dtype of each leaf.
        paths: The path of each leaf.
        constraints: How each leaf is read, without metrics that are arrays; None if
            free.
        readings: How the methods read each leaf. Nonnegative columns are matrices of
            their own.
    """

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    paths: tuple[str, ...]
    constraints: tuple[Reading | None, ...]
    readings: tuple[Reading | None, ...]

    @property
    def unscaled(self) -> "Structure":
        """The same without scales: matrices are then the entries of leaves."""
        plain = [r and dataclasses.replace(r, scale=1.0) for r in self.readings]
        return dataclasses.replace(self, readings=tuple(plain))

    def describe(self, index: int) -> str:
        """A leaf in words, for an error."""
        like = jax.ShapeDtypeStruct(self.shapes[index], self.dtypes[index])
        return describe_leaf(self.paths[index], like)


def structure_of(
    params: optax.Params, mask: Mask
) -> tuple[Structure, list[Array | None]]:
    """The structure of parameters, and the metrics that are arrays, leaf by leaf.

    Args:
        params: The parameters.
        mask: Which leaves are constrained.
    """
    leaves, treedef = jax.tree.flatten(params)
    paths = leaf_paths(params)
    readings = select(params, mask)
    metrics: list[Array | None] = []
    plain: list[Reading | None] = []
    for reading in readings:
        if reading is None or reading.B is None or callable(reading.B):
            metrics.append(None)
            plain.append(reading)
        else:
            metrics.append(jnp.asarray(reading.B))
            plain.append(dataclasses.replace(reading, B=None))
    structure = Structure(
        treedef=treedef,
        shapes=tuple(jnp.shape(leaf) for leaf in leaves),
        dtypes=tuple(jnp.result_type(leaf) for leaf in leaves),
        paths=tuple(paths),
        constraints=tuple(plain),
        readings=tuple(plain),
    )
    return structure, metrics


class Problem(NamedTuple):
    """f + r over the parameters, of which some leaves are orthonormal.

    Attributes:
        f: From the parameters to a scalar.
        regularizer: The term r, or None.
        structure: The structure of the parameters.
        metrics: Of each leaf, the metric B that is an array, or None.
        factors: Of a metric B = LLᴴ, the factor L; None where there is none to be used.
            A point then holds y = Lᴴx, for which the constraint is yᴴy = I.
        unit: What f and r are multiplied by. It makes gradients a number of order one,
            so that nothing depends on the unit in which the user's objective is given.
        strength: What r is multiplied by besides.
        tolerance: What the certificate must fall below.
        beta: The weight of the penalty in h.
    """

    f: Callable[[Any], Array]
    regularizer: Regularizer | None
    structure: Structure
    metrics: list[Array | None]
    factors: list[Array | None]
    unit: Array | float = 1.0
    strength: Array | float = 1.0
    tolerance: Array | float = 0.0
    beta: Array | float = 1.0

    @property
    def readings(self) -> list[Reading | None]:
        """How each leaf is read; None where it is free."""
        pairs = zip(self.structure.readings, self.metrics, strict=True)
        return [
            r if r is None or b is None else dataclasses.replace(r, B=b)
            for r, b in pairs
        ]

    @property
    def mask(self) -> Any:
        """The mask that reads the parameters in the same way."""

        def spec(r):
            if r is None:
                return False
            axes = {"rows": r.rows, "columns": r.columns, "blocks": r.blocks}
            return Stiefel(**axes, B=r.B, scale=r.scale)

        return self.structure.treedef.unflatten(map(spec, self.readings))

    @property
    def forms(self) -> list[Form | None]:
        """In which form the columns of each matrix are orthonormal; None if free."""
        pairs = zip(self.readings, self.factors, strict=True)
        return [
            None if r is None else r.form if factor is None else Form()
            for r, factor in pairs
        ]

    def factorised(self) -> "Problem":
        """The problem in the coordinates y = Lᴴx where a metric B = LLᴴ is an array.

        A step along the gradient of f is then as long as the curvature of the problem
        allows; in x it is shorter by the condition number of B.
        """

        def factor(r, b):
            return None if b is None or r.layout is not None else jnp.linalg.cholesky(b)

        pairs = zip(self.structure.readings, self.metrics, strict=True)
        return self._replace(factors=[factor(*pair) for pair in pairs])

    def read(self, params: optax.Params) -> Point:
        """Parameters as a point."""
        x = self._matrices(params)
        pairs = zip(x, self.factors, strict=True)
        return [a if factor is None else mm(adjoint(factor), a) for a, factor in pairs]

    def write(self, x: Point) -> Any:
        """A point as parameters."""

        def one(a, dtype, r, factor):
            if factor is not None:
                a = _solve(partial(solve_triangular, adjoint(factor)), a)
            return a if r is None else r.write(a, dtype)

        rows = zip(x, self.structure.dtypes, self.readings, self.factors, strict=True)
        return self.structure.treedef.unflatten(one(*row) for row in rows)

    def write_gradient(self, g: Point) -> Any:
        """A gradient with respect to a point, as one with respect to parameters.

        Only without factors: a point is then the parameters divided by their scales.
        """
        pairs = zip(g, self.structure.readings, strict=True)
        return self.write([a if r is None else a / r.scale**2 for a, r in pairs])

    def smooth(self, x: Point) -> Array:
        """The term f, in the unit of the problem."""
        return self.unit * self.f(self.write(x))

    def regular(self, x: Point) -> Array:
        """The term r, in the unit of the problem; zero if there is none."""
        if self.regularizer is None:
            return jnp.zeros((), real_dtype(x[0].dtype))
        value = self.regularizer.value(self.write(x)).astype(real_dtype(x[0].dtype))
        return self.unit * self.strength * value

    def value(self, x: Point) -> Array:
        """The objective f + r, in the unit of the problem."""
        return self.smooth(x) + self.regular(x)

    def evaluate(self, x: Point) -> tuple[Array, Point]:
        """The objective f + r and the gradient of f.

        Where the gradient is not finite the value is infinite: no step leads there.
        """
        value, gradient = value_and_gradient(self.smooth)(x)
        sound = jnp.isfinite(optax.tree.sum(gradient))
        return jnp.where(sound, value + self.regular(x), jnp.inf), gradient

    def look(self, x: Point) -> Look:
        """The objective around a point, by one derivative of the gradient of f."""
        # Backwards twice, since functions with a derivative rule of their own may have
        # no forward mode.
        (value, gradient), pull = jax.vjp(value_and_gradient(self.smooth), x)
        # The Hessian is symmetric, and its transpose has conjugates on both sides.
        (bend,) = pull((jnp.zeros_like(value), optax.tree.conj(x)))
        regular = self.regular(x)
        return Look(
            value=value + regular,
            whole_value=value + regular / self.strength,
            gradient=gradient,
            subgradient=gradient_of(self.regular)(x),
            bend=optax.tree.conj(bend),
        )

    def prox(self, x: Point, step: Array, near: Point) -> Point:
        """The proximal map of r at x, whose result is expected near another point."""
        if self.regularizer is None:
            return x
        return self.read(self.prox_parameters(x, step, near))

    def prox_parameters(self, x: Point, step: Array, near: Point) -> Any:
        """The proximal map as parameters, on which its zeros are exact.

        In the coordinates y = Lᴴz/c of parameters z it is the strongly convex problem
        argmin_z r(z) + ‖Lᴴz/c − y‖²/(2·step). With one c for all leaves and without
        factors L that is the proximal map of r for the stepsize c²·step. Otherwise it
        is solved by accelerated proximal steps in z.
        """
        step = step * self.unit * self.strength
        if self.regularizer is None:
            return self.write(x)
        scales = set(self._scales)
        if all(factor is None for factor in self.factors) and len(scales) == 1:
            return self.regularizer.prox(self.write(x), step * scales.pop() ** 2)
        return self._prox_in_metric(x, step, near)

    @property
    def _scales(self):
        """The scale of each leaf; 1 if it is free."""
        return [1.0 if r is None else r.scale for r in self.structure.readings]

    def _prox_in_metric(self, y, step, near):
        assert self.regularizer is not None
        prox = self.regularizer.prox
        plain = self._replace(
            factors=[None] * len(self.factors),
            structure=self.structure.unscaled,
        )
        leaves = list(zip(self.factors, self._scales, strict=True))

        def times(z):
            """Lᴴz/c."""
            rows = zip(z, leaves, strict=True)
            return [(a if f is None else mm(adjoint(f), a)) / c for a, (f, c) in rows]

        def transposed(w):
            rows = zip(w, leaves, strict=True)
            return [(a if f is None else mm(f, a)) / c for a, (f, c) in rows]

        def undone(w):
            """The inverse of `transposed`."""

            def one(a, factor, c):
                lower = partial(solve_triangular, factor, lower=True)
                return c * (a if factor is None else _solve(lower, a))

            return [one(a, *leaf) for a, leaf in zip(w, leaves, strict=True)]

        # ‖B‖_F and the largest row sum both bound the largest eigenvalue.
        bounds = [
            1 / c**2
            if b is None or f is None
            else jnp.minimum(jnp.linalg.norm(b), jnp.max(jnp.sum(jnp.abs(b), axis=1)))
            / c**2
            for b, (f, c) in zip(self.metrics, leaves, strict=True)
        ]
        steepest = jnp.max(jnp.stack([jnp.asarray(b, step.dtype) for b in bounds]))

        def body(c):
            slope = transposed(optax.tree.sub(times(c.ahead), y))
            ahead = optax.tree.add_scale(c.ahead, -1 / steepest, slope)
            new = plain.read(prox(plain.write(ahead), step / steepest))
            moved = optax.tree.sub(new, c.ahead)
            # What is left of 0 ∈ L⁻¹∂r(z) + Lᵀz − y, for the subgradient at hand.
            left = optax.tree.sub(
                times(moved), optax.tree.scale(steepest, undone(moved))
            )
            wanted = PROXIMAL_ACCURACY * optax.tree.norm(
                optax.tree.sub(times(new), near)
            )
            turned = dot(moved, optax.tree.sub(new, c.z)) < 0
            momentum = jnp.where(turned, 1.0, c.momentum)
            grown = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
            share = jnp.where(turned, 0.0, (momentum - 1) / grown)
            return _Accelerated(
                z=new,
                ahead=optax.tree.add_scale(new, share, optax.tree.sub(new, c.z)),
                momentum=grown,
                excess=optax.tree.norm(left) - wanted,
                taken=c.taken + 1,
            )

        start = plain.read(self.write(near))
        one = jnp.ones((), step.dtype)
        first = _Accelerated(
            z=start,
            ahead=start,
            momentum=one,
            excess=one,
            taken=jnp.zeros((), jnp.int32),
        )
        last = lax.while_loop(
            lambda c: (c.excess > 0) & (c.taken < PROXIMAL_STEPS), body, first
        )
        return plain.write(last.z)

    def dissolve(self, x: Point) -> Point:
        """A on the matrices."""
        return [
            a if form is None else stiefel.dissolve(a, **form.arguments)
            for a, form in zip(x, self.forms, strict=True)
        ]

    def measure(self, y: Point) -> list[Measured]:
        """How far each leaf is from the manifold."""

        def one(a, form):
            if form is None:
                return Measured(
                    matrix=a,
                    image=jnp.zeros_like(a),
                    correction=None,
                    distance=jnp.zeros((), real_dtype(a.dtype)),
                )
            return _measure(form, a, form.apply(a))

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

        def one(b, right, form):
            if form is None or form.B is None:
                return right
            values, vectors = jnp.linalg.eigh(phi(form.gram(b, b)))
            right = mm(mm(adjoint(vectors), right), vectors)
            s = 2 * right / (values[..., :, None] + values[..., None, :])
            return mm(mm(vectors, s), adjoint(vectors))

        return [
            one(*row) for row in zip(bx, self.inner(bx, g), self.forms, strict=True)
        ]

    def tangent(self, bx: Point, g: Point) -> Point:
        """The orthogonal projection of g to the tangent space."""
        return optax.tree.sub(g, self.multiply(bx, self.normal(bx, g)))

    def image(self, x: Point) -> Point:
        """Bx for each constrained leaf, x itself for the others."""
        return [
            a if form is None else form.apply(a)
            for a, form in zip(x, self.forms, strict=True)
        ]

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

    def descent(self, x: Point, g: Point) -> Point:
        """J_A J_A* g, the direction of Algorithm 1 for the gradient g of f at A(x)."""
        # Without a metric J_A is a projection on the manifold, and one is enough.
        return [
            v if form is None or form.B is None else stiefel.jvp(a, v, **form.arguments)
            for a, v, form in zip(x, self.adjoint(x, g), self.forms, strict=True)
        ]

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
        found = [
            jnp.max(stiefel.feasibility(a, **form.arguments))
            for a, form in zip(x, self.forms, strict=True)
            if form is not None
        ]
        return jnp.max(jnp.stack(found))

    def true_feasibility(self, params: optax.Params) -> Array:
        """The largest ‖xᵀBx − I‖_F of parameters, in their own coordinates."""
        structure = dataclasses.replace(
            self.structure, readings=self.structure.constraints
        )
        plain = self._replace(factors=[None] * len(self.factors), structure=structure)
        return plain.feasibility(plain.read(params))

    def penalties(self, x: Point) -> Array:
        """The sum of ‖E‖²/4 of each constrained leaf."""
        found = [
            jnp.sum(stiefel.penalty(a, **form.arguments))
            for a, form in zip(x, self.forms, strict=True)
            if form is not None
        ]
        return jnp.stack(found)

    def automatic_beta(self, g: Point) -> Array:
        """The automatic β of each constrained leaf for a gradient; 1 for zero."""
        found = [
            jnp.max(weight(a, form))
            for a, form in zip(g, self.forms, strict=True)
            if form is not None
        ]
        betas = jnp.stack(found)
        return jnp.where(betas > 0, betas, 1)

    def beta_by_path(self, betas: Array) -> dict[str, Array]:
        """The β of each constrained leaf by its path, in the unit of the user."""
        pairs = zip(self.structure.paths, self.structure.readings, strict=True)
        paths = [path for path, r in pairs if r is not None]
        return dict(zip(paths, betas / self.unit, strict=True))

    def dissolved(self, x: Point, betas: Array) -> Array:
        """The constraint dissolving function h, with a wall around its region.

        Far out f∘A falls faster than the penalty rises, with the tenth power of x for
        a quadratic f. The wall rises with the twelfth, is twice differentiable, and
        zero where ‖E‖_F is below `EDGE`.
        """
        penalties = self.penalties(x)
        out = jnp.maximum(4 * jnp.sum(penalties) - EDGE**2, 0)
        h = self.value(self.dissolve(x)) + jnp.sum(betas * penalties)
        return h + 16 * jnp.max(betas) * out**3

    def _matrices(self, params):
        pairs = zip(jax.tree.leaves(params), self.readings, strict=True)
        return [jnp.asarray(leaf) if r is None else r.read(leaf) for leaf, r in pairs]


def dot(a: Point, b: Point) -> Array:
    """The Euclidean inner product, of complex points its real part."""
    return jnp.real(jnp.asarray(optax.tree.vdot(a, b)))


def value_and_gradient(f: Callable[[Point], Array]) -> Callable[[Point], Any]:
    """From a point to the value of a real function and its gradient."""

    def both(x):
        value, gradient = jax.value_and_grad(f)(x)
        return value, optax.tree.conj(gradient)

    return both


def gradient_of(f: Callable[[Point], Array]) -> Callable[[Point], Point]:
    """From a point to the gradient of a real function."""
    return lambda x: optax.tree.conj(jax.grad(f)(x))


def real_parts(x: Point) -> Point:
    """A point as one of real arrays: complex ones become a real and an imaginary part.

    Inner products and lengths are the same.
    """
    pairs = [(jnp.real(a), jnp.imag(a)) if is_complex(a) else (a,) for a in x]
    return [part for pair in pairs for part in pair]


def from_real_parts(parts: Point, like: Point) -> Point:
    """The inverse of `real_parts`, given any point of the same dtypes."""
    left = iter(parts)
    return [
        lax.complex(next(left), next(left)) if is_complex(a) else next(left)
        for a in like
    ]


def feasibility_on_host(problem: Problem, params: optax.Params) -> float:
    """The largest ‖xᴴBx − I‖_F, by NumPy in double precision."""
    grams = [_gram_on_host(x, b) for _, _, x, b in _on_host(problem, params)]
    off = [np.linalg.norm(m - np.eye(m.shape[-1]), axis=(-2, -1)) for m in grams]
    return max(float(np.max(e)) for e in off)


def projected_on_host(problem: Problem, params: optax.Params) -> Any:
    """The nearest point of the manifold, by NumPy in double precision.

    In single precision xᵀBx cannot be formed to better than the condition number of B
    times the precision, and no projection can be better than that.
    """
    leaves, treedef = jax.tree.flatten(params)
    for index, r, x, b in _on_host(problem, params):
        values, vectors = np.linalg.eigh(_gram_on_host(x, b))
        back = np.swapaxes(vectors, -1, -2).conj()
        root = (vectors / np.sqrt(values)[..., None, :]) @ back
        dtype = leaves[index].dtype
        leaves[index] = r.write(jnp.asarray(x @ root, dtype), dtype)
    return treedef.unflatten(leaves)


def _on_host(problem, params):
    """Of each constrained leaf its index, reading, matrices and metric."""
    rows = zip(jax.tree.leaves(params), problem.readings, problem.metrics, strict=True)
    for index, (leaf, r, metric) in enumerate(rows):
        if r is None or callable(r.B):
            continue
        x = in_double_precision(r.read(leaf))
        b = np.eye(x.shape[-2]) if metric is None else in_double_precision(metric)
        yield index, r, x, b


def _gram_on_host(x, b):
    return np.swapaxes(x, -1, -2).conj() @ (b @ x)


def _measure(form, a, image):
    e = form.residual(a, image)
    square = mm(e, e)
    return Measured(
        matrix=a,
        image=image,
        correction=map_correction(e, square),
        distance=jnp.max(jnp.sqrt(norm(square))),
    )


def _solve(solver, right):
    """A triangular system for each matrix of a batch."""
    return jnp.vectorize(solver, signature="(n,p)->(n,p)")(right)
