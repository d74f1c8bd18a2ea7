"""SLPG: linearised proximal steps that need no penalty and no retraction."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import cdopt_jax as cdx
from benchmarks.shared.algebra import inner, norm, product, symmetric
from benchmarks.shared.problems import Problem
from benchmarks.solvers.signature import (
    Solver,
    is_finite,
    is_stiefel,
    proximal,
    quotient,
    row_weights,
)

# The authors' settings: their first steps, in units of 1/L, and how many of them; the
# longest step; and the inner iterations for a multiplier that has no closed form.
SMOOTH, L21, GENERAL = 0.01, 0.001, 0.01
FIRST_SMOOTH, FIRST = 3, 5
LONGEST_L21, LONGEST = 1e5, 1e10
INNER, MEMORY = 5, 11
# Where A is not applied any more, and how often a step is halved for that.
FAR, HALVINGS = 0.5, 40


class SLPGState(NamedTuple):
    """The state of SLPG.

    Attributes:
        x: The iterate, near the manifold.
        gradient: The tangential part of ∇f there.
        direction: That with the multiplier of the constraint, XΛ, added.
        step: How many steps were taken.
        unit: 1/L of the first steps.
        rate: The step size to be taken next.
        rates: The last ones; None where the multiplier has a closed form.
        dual: The multiplier Λ, likewise.
    """

    x: jax.Array
    gradient: jax.Array
    direction: jax.Array
    step: jax.Array
    unit: jax.Array
    rate: jax.Array
    rates: jax.Array | None
    dual: jax.Array | None


def slpg() -> Solver:
    """The sequential linearised proximal gradient method.

    X⁺ = A(prox_{ηr}(X − η(P_T(∇f(X)) + XΛ))) with A(X) = X(3I − XᵀX)/2, so that only
    products of matrices are needed. Λ is the multiplier of the tangential proximal
    problem. Where r is a sum of norms of rows it is −Φ(Xᵀ∂r(X)), whichever subgradient
    is taken; without r it is zero; else five iterations of Arrow and Hurwicz improve
    the last one. η is the step of Barzilai and Borwein.

    A diverges far from the manifold. Without r the authors then replace it by
    X((I + XᵀX)/2)⁻¹. With r their code has no such guard, and from a random start its
    first long step may end in a NaN; here η is halved until A applies, as their theory
    supposes, which changes nothing in a run that needs no guard.

    References:
        Xiao, Liu and Yuan, "A penalty-free infeasible approach for a class of nonsmooth
        optimization problems over the Stiefel manifold", arXiv 2103.03514, and the
        authors' package pystop.
    """

    def init(problem: Problem) -> SLPGState:
        x = problem.start
        g = jax.grad(problem.f)(x)
        gradient = cdx.stiefel.tangent(x, g)
        unit = 1 / (norm(g) + norm(gradient))
        dual = rates = None
        share = SMOOTH
        if problem.regularizer is not None:
            share = L21
            if row_weights(problem) is None:
                share = GENERAL
                zero = jnp.zeros((x.shape[1], x.shape[1]), x.dtype)
                dual = _multiplier(problem, x, gradient, share * unit, zero, 0)
                rates = jnp.full(MEMORY, jnp.nan, x.dtype)
        return SLPGState(
            x=x,
            gradient=gradient,
            direction=_direction(problem, x, gradient, dual),
            step=jnp.zeros([], jnp.int32),
            unit=unit,
            rate=share * unit,
            rates=rates,
            dual=dual,
        )

    def step(problem: Problem, state: SLPGState) -> SLPGState:
        x, rate, dual, rates = state.x, state.rate, state.dual, state.rates
        smooth = problem.regularizer is None
        if smooth:
            new = _correct(_correct(x - rate * state.direction))
        else:
            new, rate = _near(problem, state)
            new = _cubic(new)
        gradient = cdx.stiefel.tangent(new, jax.grad(problem.f)(new))
        if dual is not None and rates is not None:
            rates = rates.at[state.step % MEMORY].set(rate)
            usual = jnp.clip(jnp.nanmean(rates), 1e-5 * state.unit, 1e10 * state.unit)
            enough = 1000 * cdx.stiefel.feasibility(new)
            dual = _multiplier(problem, new, gradient, usual, dual, enough)
        direction = _direction(problem, new, gradient, dual)
        s, y = new - x, direction - state.direction
        if smooth:
            following, first = quotient(inner(s, y), inner(y, y), rate), FIRST_SMOOTH
        else:
            following, first = quotient(inner(s, s), inner(s, y), rate), FIRST
        longest = LONGEST_L21 if not smooth and dual is None else LONGEST
        following = jnp.where(
            state.step + 1 < first, rate, jnp.minimum(following, longest)
        )
        return SLPGState(
            x=new,
            gradient=gradient,
            direction=direction,
            step=state.step + 1,
            unit=state.unit,
            rate=following,
            rates=rates,
            dual=dual,
        )

    def applies(problem: Problem) -> bool:
        return problem.smooth and is_stiefel(problem) and is_finite(problem)

    return Solver(init=init, step=step, point=lambda state: state.x, applies=applies)


def _direction(problem, x, gradient, dual):
    if problem.regularizer is None:
        return gradient
    if dual is None:
        slope = jax.grad(problem.regularizer.value)(x)
        dual = -symmetric(product(x.T, slope))
    return gradient + product(x, symmetric(dual))


def _multiplier(problem, x, gradient, rate, dual, tolerance):
    """Steps of Arrow and Hurwicz for the tangential proximal problem."""

    def improve(carry):
        i, dual, _ = carry
        direction = gradient + product(x, dual)
        moved = proximal(problem, x - rate * direction, rate)
        error = symmetric(product(x.T, (moved - x) / rate))
        return i + 1, dual + error, norm(error)

    def continues(carry):
        return (carry[0] < INNER) & (carry[2] >= tolerance)

    begin = (0, dual, jnp.asarray(jnp.inf, x.dtype))
    return lax.while_loop(continues, improve, begin)[1]


def _cubic(x):
    return 1.5 * x - product(x, product(x.T, x) / 2)


def _near(problem, state):
    """The proximal point, its step halved while it is far from the manifold."""

    def halve(carry):
        i, rate, _ = carry
        rate = rate / 2
        return i + 1, rate, proximal(problem, state.x - rate * state.direction, rate)

    def continues(carry):
        i, _, x = carry
        far = (cdx.stiefel.feasibility(x) >= FAR) & (i < HALVINGS)
        return (i == 0) | far

    begin = (0, 2 * state.rate, state.x)
    _, rate, x = lax.while_loop(continues, halve, begin)
    return x, rate


def _correct(x):
    def far(x):
        gram = product(x.T, x)
        return jnp.linalg.solve((gram + jnp.eye(x.shape[1], dtype=x.dtype)) / 2, x.T).T

    return lax.cond(cdx.stiefel.feasibility(x) < FAR, _cubic, far, x)
