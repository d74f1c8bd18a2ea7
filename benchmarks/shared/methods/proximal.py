"""R-proxsgd: a proximal step in the tangent space, and a retraction."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from benchmarks.shared.algebra import norm, product, symmetric
from benchmarks.shared.methods.leaves import back, constrained, matrix
from benchmarks.shared.methods.retraction import polar_svd

NEWTON = 30
CONJUGATE = 50
HALVINGS = 20


class Solution(NamedTuple):
    """The solution of a tangential proximal problem.

    Attributes:
        y: The tangent vector.
        dual: The multiplier Λ of its constraint, symmetric; a start for the next one.
        error: ‖Φ(XᵀY)‖_F, which is all that Y lacks: it minimises the Lagrangian.
        iterations: How many Newton steps were taken.
    """

    y: jax.Array
    dual: jax.Array
    error: jax.Array
    iterations: jax.Array


def tangent_prox(
    x: jax.Array,
    g: jax.Array,
    rate: Any,
    gamma: float,
    dual: jax.Array,
    *,
    tolerance: float = 1e-5,
) -> Solution:
    """Minimise ⟨G, Y⟩ + γ‖X + Y‖₁ + ‖Y‖²/(2η) over Y with Φ(XᵀY) = 0.

    `solve_tangential` with the soft threshold, whose derivative is one where it is not
    zero.

    Args:
        x: A point of the manifold.
        g: The Euclidean gradient of the smooth term.
        rate: The learning rate η.
        gamma: The weight γ.
        dual: Where to start; the multiplier of the last step, or zero.
        tolerance: Where to stop: ‖Φ(XᵀY)‖_F ≤ tolerance · (1 + ‖Y‖_F).
    """
    threshold = rate * gamma

    def soft(v):
        return jnp.sign(v) * jnp.maximum(jnp.abs(v) - threshold, 0)

    def derivative(v):
        active = (soft(v) != 0).astype(v.dtype)
        return lambda d: active * d

    def value(z):
        return threshold * jnp.sum(jnp.abs(z))

    return solve_tangential(
        x, rate * g, value, soft, dual, derivative=derivative, tolerance=tolerance
    )


def solve_tangential(
    x: jax.Array,
    step: jax.Array,
    value: Callable[[jax.Array], jax.Array],
    prox: Callable[[jax.Array], jax.Array],
    dual: jax.Array,
    *,
    derivative: Callable[[jax.Array], Callable[[jax.Array], jax.Array]] | None = None,
    tolerance: Any = 1e-5,
) -> Solution:
    """Minimise ⟨S, Y⟩ + r(X + Y) + ‖Y‖²/2 over Y with Φ(XᵀY) = 0, r being convex.

    With S = ηG and r scaled by η that is η times the tangential proximal problem. For
    a symmetric Λ the Lagrangian is least at

        Y(Λ) = prox_r(X − S + XΛ) − X,

    and minus its least value is a convex function θ of Λ with the gradient Φ(XᵀY(Λ)),
    of which D ↦ Φ(XᵀP(XD)) is a generalized derivative, P being one of prox_r.
    Regularised semismooth Newton steps, by conjugate gradients, are shortened until θ
    falls, or until the gradient does where rounding hides that; θ is convex, so they
    converge from everywhere, and fast near the end.

    Args:
        x: A point of the manifold.
        step: The gradient of the smooth term, times the learning rate.
        value: The convex term r, times the learning rate.
        prox: Its proximal map, of step one.
        dual: Where to start; the multiplier of the last step, or zero.
        derivative: From V to the linear map that is a generalized derivative of prox
            there; by automatic differentiation if None.
        tolerance: Where to stop: ‖Φ(XᵀY)‖_F ≤ tolerance · (1 + ‖Y‖_F).

    References:
        Chen, Ma, So and Zhang, "Proximal gradient method for nonsmooth optimization
        over the Stiefel manifold", SIAM Journal on Optimization, 2020. Wang, Ma and
        Xue, "Riemannian stochastic proximal gradient methods for nonsmooth
        optimization over the Stiefel manifold", 2020.
    """
    forward = x - step
    differentiate = derivative or partial(_differentiate, prox)

    def at(dual):
        """Y, θ and its gradient."""
        turned = product(x, dual)
        z = prox(forward + turned)
        y = z - x
        least = jnp.sum(y * (y / 2 + step - turned)) + value(z)
        return y, -least, symmetric(product(x.T, y))

    def direction(dual, gradient):
        size = norm(gradient)
        shift = 1e-3 * jnp.minimum(size, 1)
        along = differentiate(forward + product(x, dual))

        def curvature(d):
            return symmetric(product(x.T, along(product(x, d)))) + shift * d

        return _conjugate_gradients(curvature, -gradient, 1e-2 * size)

    def newton(carry):
        i, dual, (_, theta, gradient), _ = carry
        d = direction(dual, gradient)
        slope = jnp.sum(gradient * d)

        def enough(new, share):
            falls = new[1] <= theta + 1e-4 * share * slope
            return falls | (norm(new[2]) <= 0.9 * norm(gradient))

        def shorten(trial):
            j, share, _ = trial
            return j + 1, share / 2, at(dual + share / 2 * d)

        def continues(trial):
            j, share, new = trial
            return ~enough(new, share) & (j < HALVINGS)

        first = (0, jnp.ones([], x.dtype), at(dual + d))
        _, share, new = lax.while_loop(continues, shorten, first)
        # In rounding, no step may help any more.
        useful = enough(new, share)
        dual = jnp.where(useful, dual + share * d, dual)
        kept = jax.tree.map(partial(jnp.where, useful), new, carry[2])
        return i + 1, dual, kept, ~useful

    def unsolved(carry):
        i, _, (y, _, gradient), stuck = carry
        done = norm(gradient) <= tolerance * (1 + norm(y))
        return ~done & ~stuck & (i < NEWTON)

    begin = (jnp.zeros([], jnp.int32), dual, at(dual), jnp.zeros([], bool))
    i, dual, (y, _, gradient), _ = lax.while_loop(unsolved, newton, begin)
    return Solution(y=y, dual=dual, error=norm(gradient), iterations=i)


def _differentiate(prox, v):
    return jax.linearize(prox, v)[1]


def _conjugate_gradients(curvature, b, tolerance):
    def step(carry):
        i, d, residual, way, square = carry
        turned = curvature(way)
        share = square / jnp.sum(way * turned)
        d, residual = d + share * way, residual - share * turned
        new = jnp.sum(residual**2)
        return i + 1, d, residual, residual + new / square * way, new

    def continues(carry):
        return (carry[-1] > tolerance**2) & (carry[0] < CONJUGATE)

    begin = (0, jnp.zeros_like(b), b, b, jnp.sum(b**2))
    return lax.while_loop(continues, step, begin)[1]


class ProxState(NamedTuple):
    """The steps taken, and the multiplier of each constrained leaf."""

    steps: jax.Array
    duals: tuple[jax.Array, ...]


def r_proxsgd(
    schedule: optax.Schedule, gamma: float, mask: Any, *, tolerance: float = 1e-5
) -> optax.GradientTransformationExtraArgs:
    """Proximal steps in the tangent space, brought back by the polar factor.

    Free leaves take plain proximal steps.
    """

    def init(params):
        chosen = zip(constrained(params, mask), jax.tree.leaves(params), strict=True)
        duals = []
        for is_constrained, leaf in chosen:
            if is_constrained:
                p = min(leaf.size // leaf.shape[-1], leaf.shape[-1])
                duals.append(jnp.zeros((p, p), leaf.dtype))
        return ProxState(steps=jnp.zeros([], jnp.int32), duals=tuple(duals))

    def update(updates, state, params=None, **extra_args):
        del extra_args
        rate = jnp.asarray(schedule(state.steps))
        leaves, treedef = jax.tree.flatten(params)
        gradients = treedef.flatten_up_to(updates)
        duals, moves, new = iter(state.duals), [], []
        rows = zip(constrained(params, mask), leaves, gradients, strict=True)
        for is_constrained, leaf, gradient in rows:
            if is_constrained:
                x, g = matrix(leaf), matrix(gradient)
                solved = tangent_prox(
                    x, g, rate, gamma, next(duals), tolerance=tolerance
                )
                new.append(solved.dual)
                moves.append(back(polar_svd(x + solved.y) - x, leaf))
            else:
                ahead = leaf - rate * gradient
                size = jnp.maximum(jnp.abs(ahead) - rate * gamma, 0)
                moves.append(jnp.sign(ahead) * size - leaf)
        after = ProxState(steps=state.steps + 1, duals=tuple(new))
        return treedef.unflatten(moves), after

    return optax.GradientTransformationExtraArgs(init, update)
