"""ManPG and ManPG-Ada: proximal steps in the tangent space, and a line search."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.shared.algebra import norm
from benchmarks.shared.methods.proximal import solve_tangential
from benchmarks.shared.methods.retraction import polar_gram
from benchmarks.shared.problems import Problem
from benchmarks.solvers.signature import (
    Solver,
    is_finite,
    is_stiefel,
    proximal,
    regularizer_value,
)

# The authors' settings.
SHORTEST = 1e-4
GROWTH = 1.01
# ‖Φ(XᵀV)‖_F at which a subproblem is solved: their criterion at its loosest, tighter as
# V gets small, since an error e changes the model by the order of e and the promised
# descent is of the order of ‖V‖².
LOOSEST, TIGHTEST, SHARE = 1e-7, 1e-14, 1e-4
POWERS = 50


class ManPGState(NamedTuple):
    """The state of ManPG.

    Attributes:
        x: The iterate.
        value: The objective there.
        dual: The multiplier of the last subproblem, where the next one starts.
        rate: The step size t of the proximal step.
        least: The first one, 1/L.
        size: ‖V‖_F of the last proximal step; ‖V‖_F/t measures stationarity.
    """

    x: jax.Array
    value: jax.Array
    dual: jax.Array
    rate: jax.Array
    least: jax.Array
    size: jax.Array


def lipschitz(problem: Problem, x: jax.Array) -> jax.Array:
    """The largest absolute eigenvalue of the Hessian of f at a point.

    By power iteration. Where f has no curvature, a small share of its slope instead.
    """
    slope, hessian = jax.linearize(jax.grad(problem.f), x)

    def power(_, carry):
        v, _ = carry
        turned = hessian(v)
        size = norm(turned)
        return turned / jnp.where(size > 0, size, 1), size

    v = jax.random.normal(jax.random.key(0), x.shape, x.dtype)
    begin = (v / norm(v), jnp.zeros([], x.dtype))
    _, largest = lax.fori_loop(0, POWERS, power, begin)
    return jnp.maximum(largest, 1e-3 * norm(slope) / norm(x))


def manpg(*, adaptive: bool = False) -> Solver:
    """The manifold proximal gradient method.

    V minimises ⟨∇f(X), V⟩ + r(X + V) + ‖V‖²/(2t) over the tangent space, by a
    regularised semismooth Newton method, and X⁺ = polar(X + αV) with the largest
    α = 1, 1/2, … for which the objective falls by α‖V‖²/(2t). t = 1/L, L the Lipschitz
    constant of ∇f at the start. Where no α ≥ 1e-4 will do, the iterate stays.

    Args:
        adaptive: ManPG-Ada: t grows by 1.01 after a full step, and shrinks by that,
            down to 1/L at the least, after any other.

    References:
        Chen, Ma, So and Zhang, "Proximal gradient method for nonsmooth optimization
        over the Stiefel manifold", SIAM Journal on Optimization, 2020, Algorithms 1
        and 2, and the authors' code.
    """

    def init(problem: Problem) -> ManPGState:
        x = problem.start
        rate = 1 / lipschitz(problem, x)
        dual = jnp.zeros((x.shape[1], x.shape[1]), x.dtype)
        one = jnp.ones([], x.dtype)
        return ManPGState(
            x=x, value=problem.value(x), dual=dual, rate=rate, least=rate, size=one
        )

    def step(problem: Problem, state: ManPGState) -> ManPGState:
        x, value, dual, rate, least, size = state
        solved = solve_tangential(
            x,
            rate * jax.grad(problem.f)(x),
            lambda z: rate * regularizer_value(problem, z),
            lambda z: proximal(problem, z, rate),
            dual,
            tolerance=jnp.clip(SHARE * size**2, TIGHTEST, LOOSEST),
        )
        v = solved.y
        promised = jnp.sum(v**2) / (2 * rate)
        slack = 4 * jnp.finfo(x.dtype).eps * jnp.abs(value)

        def trial(tried):
            share = tried[0] / 2
            moved = polar_gram(x + share * v)
            return share, moved, problem.value(moved)

        def enough(tried):
            share, _, new = tried
            return new <= value - share * promised + slack

        def continues(tried):
            return ~enough(tried) & (tried[0] >= SHORTEST)

        begin = (jnp.full([], 2, x.dtype), x, jnp.full_like(value, jnp.inf))
        tried = lax.while_loop(continues, trial, begin)
        share, moved, new = tried
        useful = enough(tried)
        x, value = jnp.where(useful, moved, x), jnp.where(useful, new, value)
        following = rate
        if adaptive:
            shorter = jnp.maximum(least, rate / GROWTH)
            following = jnp.where(share == 1, rate * GROWTH, shorter)
        # The multiplier is that of t times the problem.
        dual = solved.dual * (following / rate)
        return ManPGState(
            x=x, value=value, dual=dual, rate=following, least=least, size=norm(v)
        )

    def applies(problem: Problem) -> bool:
        return problem.smooth and is_stiefel(problem) and is_finite(problem)

    return Solver(init=init, step=step, point=lambda state: state.x, applies=applies)
