"""The Riemannian subgradient method, its steps brought back by the polar factor."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import cdopt_jax as cdx
from benchmarks.shared.algebra import norm
from benchmarks.shared.methods.retraction import polar_gram
from benchmarks.shared.problems import Problem
from benchmarks.solvers.signature import Solver, is_finite, is_stiefel


class SubgradientState(NamedTuple):
    """The iterate, the steps taken, and the step size the scale c makes."""

    x: jax.Array
    step: jax.Array
    scale: jax.Array


def riemannian_subgradient(
    size: float = 1.0, *, decay: float | None = None, absolute: bool = False
) -> Solver:
    """X⁺ = polar(X − η_k P_T(∂F(X))), with η_k = c/√k, or c·ρᵏ with a decay ρ.

    F is all of f + r, a subgradient of it by automatic differentiation. The polar
    factor is taken by the Gram matrix, as the authors do: it is I plus a positive
    semidefinite matrix, so nothing is lost by that.

    Args:
        size: c, in units of ‖X₀‖_F/‖P_T(∂F(X₀))‖_F, the step that moves the start by
            its own size; c itself if ``absolute``. To be tuned to the problem.
        decay: ρ of the geometric steps, for which a sharp problem converges linearly if
            ρ is not too small; None for c/√k.
        absolute: Whether ``size`` is c.

    References:
        Li, Chen, Deng, Qu, Zhu and So, "Weakly convex optimization over Stiefel
        manifold using Riemannian subgradient-type methods", SIAM Journal on
        Optimization, 2021.
    """

    def subgradient(problem: Problem, x):
        return cdx.stiefel.tangent(x, jax.grad(problem.value)(x))

    def init(problem: Problem) -> SubgradientState:
        x = problem.start
        slope = norm(subgradient(problem, x))
        unit = norm(x) / jnp.where(slope > 0, slope, 1)
        scale = jnp.asarray(size, x.dtype) * (1 if absolute else unit)
        return SubgradientState(x=x, step=jnp.zeros([], jnp.int32), scale=scale)

    def step(problem: Problem, state: SubgradientState) -> SubgradientState:
        x, k, scale = state
        # The authors count from one.
        now = (k + 1).astype(x.dtype)
        rate = scale / jnp.sqrt(now) if decay is None else scale * decay**now
        moved = polar_gram(x - rate * subgradient(problem, x))
        return SubgradientState(x=moved, step=k + 1, scale=scale)

    def applies(problem: Problem) -> bool:
        return is_stiefel(problem) and is_finite(problem)

    return Solver(init=init, step=step, point=lambda state: state.x, applies=applies)
