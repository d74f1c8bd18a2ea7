"""Derivatives of a solution, by the implicit function theorem.

A solution x of a smooth problem satisfies ∇f(x, a) = BxS and xᵀBx = I, with the
symmetric S. If a changes by ȧ and B by Ḃ, x changes by a normal part −x(xᵀḂx)/2, which
follows from the constraint, and a tangential part v, which solves

    P(∇²f[v] − BvS) = −P(∂ₐ∇f[ȧ] + ∇²f[n] − BnS − ḂxS),

P being the orthogonal projection to the tangent space and n the normal part. The left
side is symmetric, and positive semidefinite at a minimum. Conjugate gradients that
begin at zero find the solution of least norm where a solution is unique only up to
rotation.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from .loop import Ending
from .phase import Phase
from .points import Point, dot, from_real_parts, gradient_of, real_parts
from .problem import Problem
from .result import History
from .setup import Data, Setup, problem_of
from .traced import traced

ITERATIONS = 1000
"""The most steps of conjugate gradients."""


def solve(
    setup: Setup, data: Data, x0: optax.Params, phases: list[Phase]
) -> tuple[Ending, History]:
    """A run as one program that can be differentiated with respect to its data."""

    @jax.custom_jvp
    def solution(data, x0):
        return traced(setup, data, x0, phases)

    @lambda rule: solution.defjvp(rule, symbolic_zeros=True)
    def _(primals, tangents):
        data, x0 = primals
        change, _ = tangents
        _check(setup)
        end, history = solution(data, x0)
        by_args = jax.tree.map(_dense, data.args, change.args)
        by_metrics = jax.tree.map(_dense, data.metrics, change.metrics)
        problem = problem_of(setup, data, None)

        def rebuilt(args, metrics):
            changed = data._replace(args=args, metrics=metrics)
            return problem_of(setup, changed, None)

        x = problem.coordinates.read(end.projected)
        given, change = (data.args, data.metrics), (by_args, by_metrics)
        normal, tangential = _derivative(problem, rebuilt, x, given, change)
        _, params = jax.jvp(
            problem.coordinates.write, (x,), (optax.tree.add(normal, tangential),)
        )
        # Along the tangent the objective does not change, to first order.
        _, value = jax.jvp(
            lambda args, metrics, x: rebuilt(args, metrics).value(x),
            (*given, x),
            (*change, normal),
        )
        still = jax.tree.map(_still, end)._replace(
            params=params, projected=params, proximal=params, value=value
        )
        return (end, history), (still, jax.tree.map(_still, history))

    return solution(data, x0)


def _derivative(
    problem: Problem,
    rebuilt: Callable[..., Problem],
    x: Point,
    given: tuple[list[Array], list[Array]],
    change: tuple[list[Array], list[Array]],
) -> tuple[Point, Point]:
    """How the solution moves: the normal part and the tangential one."""
    bx = problem.manifold.image(x)
    gradient = gradient_of(problem.smooth)(x)
    s = problem.manifold.normal(bx, gradient)

    def lagrangian(x, args, metrics):
        """∇f(x) − BxS, with S as it is."""
        here = rebuilt(args, metrics)
        g = gradient_of(here.smooth)(x)
        return optax.tree.sub(g, here.manifold.multiply(here.manifold.image(x), s))

    def hessian(v):
        return jax.jvp(lambda x: lagrangian(x, *given), (x,), (v,))[1]

    # In real coordinates: the operator is not linear over the complex numbers.
    def operator(parts):
        v = problem.manifold.tangent(bx, from_real_parts(parts, x))
        return real_parts(problem.manifold.tangent(bx, hessian(v)))

    def gram(metrics):
        here = rebuilt(given[0], metrics)
        return here.manifold.inner(x, here.manifold.image(x))

    _, stretched = jax.jvp(gram, (given[1],), (change[1],))
    normal = optax.tree.scale(-0.5, problem.manifold.multiply(x, stretched))
    _, pushed = jax.jvp(lambda a, b: lagrangian(x, a, b), given, change)
    right = problem.manifold.tangent(bx, optax.tree.add(pushed, hessian(normal)))
    tangential = lax.custom_linear_solve(
        operator,
        real_parts(optax.tree.scale(-1, right)),
        _conjugate_gradients,
        symmetric=True,
    )
    return normal, problem.manifold.tangent(bx, from_real_parts(tangential, x))


class _Conjugate(NamedTuple):
    """The state of conjugate gradients.

    Attributes:
        x: The solution so far.
        residual: What is left of the right side.
        direction: The next direction.
        square: The square of the norm of the residual.
        steepest: The largest curvature seen.
        flat: Whether a direction had none, as those in the null space have.
        taken: How many steps were taken.
    """

    x: Point
    residual: Point
    direction: Point
    square: Array
    steepest: Array
    flat: Array
    taken: Array


def _conjugate_gradients(matvec: Callable[[Point], Point], b: Point) -> Point:
    """The solution of least norm of a semidefinite system."""
    first = optax.tree.norm(b, squared=True)
    precision = jnp.finfo(first.dtype).eps

    def body(c):
        image = matvec(c.direction)
        size = optax.tree.norm(c.direction, squared=True)
        bend = dot(c.direction, image)
        steepest = jnp.maximum(c.steepest, bend / size)
        # What rounding leaves in the null space must not be divided by nothing.
        flat = ~(bend > 100 * precision * steepest * size)
        length = jnp.where(flat, 0, c.square / jnp.where(flat, 1, bend))
        residual = optax.tree.add_scale(c.residual, -length, image)
        square = optax.tree.norm(residual, squared=True)
        return _Conjugate(
            x=optax.tree.add_scale(c.x, length, c.direction),
            residual=residual,
            direction=optax.tree.add_scale(residual, square / c.square, c.direction),
            square=square,
            steepest=steepest,
            flat=flat,
            taken=c.taken + 1,
        )

    def goes_on(c):
        left = c.square > precision**1.5 * first
        return left & ~c.flat & (c.taken < ITERATIONS)

    zero = jnp.zeros_like(first)
    start = _Conjugate(
        x=optax.tree.zeros_like(b),
        residual=b,
        direction=b,
        square=first,
        steepest=zero,
        flat=jnp.zeros((), bool),
        taken=jnp.zeros((), jnp.int32),
    )
    return lax.while_loop(goes_on, body, start).x


def _check(setup):
    if setup.regularizer is not None:
        raise ValueError(
            "minimize: a solution cannot be differentiated where there is a "
            "regularizer, for it need not be differentiable; minimise a smooth "
            "objective, or stop gradients with jax.lax.stop_gradient."
        )
    if not setup.method.smooth or setup.batch is not None:
        raise ValueError(
            f"minimize: a solution of method={setup.method.name!r} cannot be "
            'differentiated; choose "proximal", "tangential", "lbfgs" or "newton".'
        )


def _dense(primal, tangent):
    return _still(primal) if isinstance(tangent, SymbolicZero) else tangent


def _still(primal):
    """The zero tangent of an array."""
    if jnp.issubdtype(jnp.result_type(primal), jnp.inexact):
        return jnp.zeros_like(primal)
    return np.zeros(jnp.shape(primal), jax.dtypes.float0)
