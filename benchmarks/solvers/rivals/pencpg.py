"""PenCPG: proximal gradient steps on an exact penalty function, for the ℓ2,1 norm."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import cdopt_jax as cdx
from benchmarks.shared.algebra import inner, norm, product, symmetric
from benchmarks.shared.problems import Problem
from benchmarks.solvers.signature import (
    Solver,
    is_stiefel,
    proximal,
    quotient,
    row_weights,
)

FIRST, SHARE, LONGEST = 5, 0.001, 1e5


class PenCPGState(NamedTuple):
    """The state of PenCPG.

    Attributes:
        x: The iterate, near the manifold.
        direction: The gradient of the smooth part of the penalty function, without the
            derivative of the multiplier.
        step: How many steps were taken.
        beta: The penalty parameter β.
        rate: The step size to be taken next.
    """

    x: jax.Array
    direction: jax.Array
    step: jax.Array
    beta: jax.Array
    rate: jax.Array


def pencpg(*, beta: float | None = None, radius: float = 1.1) -> Solver:
    """Proximal gradient steps on f + r − ⟨Λ(X), E⟩/2 + (β/4)‖E‖², E = XᵀX − I.

    Λ(X) = Φ(Xᵀ∇f(X)) + Φ(Xᵀ∂r(X)) is the multiplier of a stationary point in closed
    form, single-valued for r = Σᵢ γᵢ‖Xᵢ‖₂. The step is

        X⁺ = argmin ⟨D, Y⟩ + r(Y) + ‖Y − X‖²/(2η) over ‖Y‖_F ≤ K,
        D = ∇f(X) − XΛ(X) + βXE,

    that is the proximal map of r and a scaling into the ball, for r is positively
    homogeneous; η alternates between the two steps of Barzilai and Borwein.

    Args:
        beta: β; a tenth of ‖∇f‖_F at the start, as in the authors' package, if None.
        radius: K in units of √p.

    References:
        Xiao, Liu and Yuan, "Exact penalty function for ℓ2,1 norm minimization over the
        Stiefel manifold", SIAM Journal on Optimization, 2021.
    """

    def direction(problem: Problem, x, beta):
        g = jax.grad(problem.f)(x)
        pulled = g + jax.grad(_regularizer(problem).value)(x)
        multiplier = symmetric(product(x.T, pulled))
        turned = beta * cdx.stiefel.residual(x) - multiplier
        return g + product(x, turned)

    def init(problem: Problem) -> PenCPGState:
        x = problem.start
        size = norm(jax.grad(problem.f)(x))
        weight = 0.1 * size if beta is None else jnp.asarray(beta, x.dtype)
        d = direction(problem, x, weight)
        rate = SHARE / (size + norm(d))
        none = jnp.zeros([], jnp.int32)
        return PenCPGState(x=x, direction=d, step=none, beta=weight, rate=rate)

    def step(problem: Problem, state: PenCPGState) -> PenCPGState:
        x, old, k, weight, rate = state
        new = proximal(problem, x - rate * old, rate)
        longest = radius * jnp.sqrt(jnp.asarray(x.shape[1], x.dtype))
        new = new * jnp.minimum(1, longest / norm(new))
        d = direction(problem, new, weight)
        s, y = new - x, d - old
        long = quotient(inner(s, s), inner(s, y), rate)
        short = quotient(inner(s, y), inner(y, y), rate)
        following = jnp.minimum(jnp.where(k % 2 == 0, long, short), LONGEST)
        following = jnp.where(k + 1 < FIRST, rate, following)
        return PenCPGState(x=new, direction=d, step=k + 1, beta=weight, rate=following)

    def applies(problem: Problem) -> bool:
        made_for = problem.smooth and is_stiefel(problem)
        return made_for and row_weights(problem) is not None

    return Solver(init=init, step=step, point=lambda state: state.x, applies=applies)


def _regularizer(problem):
    if problem.regularizer is None:
        raise ValueError("pencpg: needs a regularizer, a sum of norms of rows.")
    return problem.regularizer
