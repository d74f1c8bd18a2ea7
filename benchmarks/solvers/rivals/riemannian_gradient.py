"""Riemannian gradient descent by QR: Barzilai-Borwein, nonmonotone line search."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax import lax

from benchmarks.shared.algebra import inner, norm, product, symmetric
from benchmarks.shared.problems import Problem
from benchmarks.solvers.signature import Solver, is_matrix, metric, quotient

# Wen and Yin's settings: sufficient descent, shrinking, and the memory of the reference
# value of Zhang and Hager.
DESCENT, SHRINK, MEMORY = 1e-4, 0.2, 0.85
FIRST, SHRINKS = 1e-3, 20
# A step ‖τD‖_F longer than this many times √p goes nowhere new, and would cost the QR
# decomposition its accuracy.
LONGEST = 30.0


class Tangent(NamedTuple):
    """A gradient D, and the matrix by which inner products with it are formed."""

    d: jax.Array
    lowered: jax.Array


class GradientState(NamedTuple):
    """The state of Riemannian gradient descent.

    Attributes:
        x: The iterate.
        lowered: BX, or X itself where the inner product is the Euclidean one.
        value: f there.
        gradient: Its Riemannian gradient.
        rate: The step size to be tried next.
        reference: The value from which descent is demanded.
        weight: How many values that is an average of, discounted.
        step: How many steps were taken.
        factor: The Cholesky factor of a B that is an array, or None.
    """

    x: jax.Array
    lowered: jax.Array
    value: jax.Array
    gradient: Tangent
    rate: jax.Array
    reference: jax.Array
    weight: jax.Array
    step: jax.Array
    factor: jax.Array | None


def riemannian_gradient() -> Solver:
    """Riemannian gradient descent for smooth f over XᵀX = I, or XᵀBX = I.

    The steps alternate between the two of Barzilai and Borwein, and are shortened until
    f falls below a discounted average of its last values. The Q of X − τD is found by
    the Cholesky decomposition of its Gram matrix, which is I + τ²DᵀBD: as accurate
    here as Householder's way, and several times faster.

    Where B is an array, it makes the metric, as in Manopt: the gradient is
    B⁻¹G − XΦ(XᵀG), B being factorised once. Where B is a function, its inverse is not
    at hand; the metric is the Euclidean one, with the gradient G − BXS for the S that
    makes it tangent, a Lyapunov equation of p×p.

    References:
        Wen and Yin, "A feasible method for optimization with orthogonality
        constraints", Mathematical Programming, 2013. Absil, Mahony and Sepulchre,
        "Optimization Algorithms on Matrix Manifolds", 2008. Iannazzo and Porcelli,
        "The Riemannian Barzilai-Borwein method with nonmonotone line search", IMA
        Journal of Numerical Analysis, 2018.
    """

    def init(problem: Problem) -> GradientState:
        x, B = problem.start, metric(problem)
        factor = None
        if B is not None and not callable(B):
            factor = jsl.cholesky(jnp.asarray(B, x.dtype), lower=True)
        bx = _apply(B, x)
        value, g = jax.value_and_grad(problem.f)(x)
        gradient = _gradient(B, factor, x, bx, g)
        one = jnp.ones([], x.dtype)
        return GradientState(
            x=x,
            lowered=bx,
            value=value,
            gradient=gradient,
            # Of the start's own size, if FIRST would be longer than that.
            rate=jnp.minimum(FIRST, norm(x) / norm(gradient.d)),
            reference=value,
            weight=one,
            step=jnp.zeros([], jnp.int32),
            factor=factor,
        )

    def step(problem: Problem, state: GradientState) -> GradientState:
        x, gradient, B = state.x, state.gradient, metric(problem)
        slope = inner(gradient.d, gradient.lowered)
        slack = 4 * jnp.finfo(x.dtype).eps * jnp.abs(state.reference)
        width = jnp.sqrt(jnp.asarray(x.shape[1], x.dtype))
        length = norm(gradient.d)
        most = LONGEST * width / jnp.where(length > 0, length, 1)

        def trial(carry):
            i, rate, *_ = carry
            rate = SHRINK * rate
            moved, lowered = _orthonormal(B, x - rate * gradient.d)
            # With its gradient: the first trial is the last in most steps.
            value, g = jax.value_and_grad(problem.f)(moved)
            return i + 1, rate, moved, lowered, value, g

        def continues(carry):
            i, rate, _, _, new, _ = carry
            enough = new <= state.reference - DESCENT * rate * slope + slack
            return ~enough & (i < SHRINKS)

        first = jnp.minimum(state.rate, most) / SHRINK
        begin = (0, first, x, state.lowered, jnp.full_like(state.value, jnp.inf), x)
        _, rate, moved, bx, value, g = lax.while_loop(continues, trial, begin)
        new = _gradient(B, state.factor, moved, bx, g)

        # In the metric: of two vectors, one is lowered.
        euclidean = state.factor is None
        s = moved - x
        s_lowered = s if euclidean else bx - state.lowered
        y, y_lowered = new.d - gradient.d, new.lowered - gradient.lowered
        long = quotient(inner(s, s_lowered), inner(s, y_lowered), rate)
        short = quotient(inner(s, y_lowered), inner(y, y_lowered), rate)
        following = jnp.where(state.step % 2 == 0, long, short)
        weight = MEMORY * state.weight + 1
        reference = (MEMORY * state.weight * state.reference + value) / weight
        return GradientState(
            x=moved,
            lowered=bx,
            value=value,
            gradient=new,
            rate=jnp.clip(following, 1e-20, 1e20),
            reference=reference,
            weight=weight,
            step=state.step + 1,
            factor=state.factor,
        )

    def applies(problem: Problem) -> bool:
        return problem.smooth and problem.regularizer is None and is_matrix(problem)

    return Solver(init=init, step=step, point=lambda state: state.x, applies=applies)


def _apply(B: Any, x: jax.Array) -> jax.Array:
    if B is None:
        return x
    return jnp.asarray(B(x)) if callable(B) else product(jnp.asarray(B, x.dtype), x)


def _orthonormal(B, x):
    """The Q of x in the metric, and BQ."""
    bx = _apply(B, x)
    lower = jnp.linalg.cholesky(symmetric(product(x.T, bx)))

    def divide(v):
        return jsl.solve_triangular(lower, v.T, lower=True).T

    q = divide(x)
    return q, (q if B is None else divide(bx))


def _gradient(B, factor, x, bx, g):
    if factor is not None:
        s = symmetric(product(x.T, g))
        raised = jsl.cho_solve((factor, True), g)
        return Tangent(d=raised - product(x, s), lowered=g - product(bx, s))
    if B is None:
        d = g - product(x, symmetric(product(x.T, g)))
        return Tangent(d=d, lowered=d)
    # MS + SM = 2Φ(XᵀBG) with M = XᵀB²X, in the eigenvectors of M.
    values, vectors = jnp.linalg.eigh(symmetric(product(bx.T, bx)))
    right = 2 * symmetric(product(bx.T, g))
    right = product(product(vectors.T, right), vectors)
    s = right / (values[:, None] + values)
    d = g - product(bx, product(product(vectors, s), vectors.T))
    return Tangent(d=d, lowered=d)
