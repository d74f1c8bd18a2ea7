"""Manifold Muon: the steepest tangential step in the spectral norm."""

import jax
import jax.numpy as jnp
import optax

from benchmarks.muon.matrices import with_momentum
from benchmarks.muon.msign import retracted
from benchmarks.shared.algebra import product, symmetric

REWEIGHTINGS = 8
"""How often the inner problem is reweighted; see the tests for what is left."""
SMALLEST = 1e-3
"""Singular values below this part of the largest are raised to it in the weights."""


def steepest_tangent(x: jax.Array, g: jax.Array, count: int = REWEIGHTINGS):
    """The tangential A with ‖A‖₂ ≤ 1 and the largest ⟨G, A⟩, XᵀX = I.

    Its dual is the least nuclear norm ‖G + 2XΛ‖ over symmetric Λ, with the solution
    A = msign(G + 2XΛ). The authors ascend the dual by a hundred subgradient steps, a
    sign of n×p each. Here it is solved by reweighted least squares: with the weights
    R = ((G + 2XΛ)ᵀ(G + 2XΛ))^(−1/2), the next Λ solves

        ΛR + RΛ = −(KR + RKᵀ)/2,  K = XᵀG,

    which makes (G + 2XΛ)R tangential. All that is p×p once K and GᵀG are known, and
    it has no stepsize.

    References:
        Bernstein, "Modular manifolds", 2025.
    """
    k, gram = product(x.mT, g), product(g.mT, g)
    multiplier = -symmetric(k) / 2

    def reweighted(_, carry):
        multiplier, _ = carry
        cross = product(k.mT, multiplier)
        square = 4 * product(multiplier, multiplier)
        values, v = jnp.linalg.eigh(gram + 2 * (cross + cross.mT) + square)
        least = SMALLEST**2 * values[..., -1:]
        tiny = jnp.finfo(values.dtype).tiny
        r = 1 / jnp.sqrt(jnp.maximum(values, jnp.maximum(least, tiny)))
        turned = product(v.mT, product(k, v)) * r[..., None, :]
        solved = -symmetric(turned) / (r[..., :, None] + r[..., None, :])
        weights = product(v * r[..., None, :], v.mT)
        return product(v, product(solved, v.mT)), weights

    start = multiplier, jnp.zeros_like(multiplier)
    multiplier, weights = jax.lax.fori_loop(0, count, reweighted, start)
    return product(g + 2 * product(x, multiplier), weights)


def manifold_muon_step(x: jax.Array, m: jax.Array, rate: jax.Array) -> jax.Array:
    """X⁺ = msign(X − ηA)."""
    return retracted(x - rate * steepest_tangent(x, m))


def manifold_muon(schedule: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """The optimiser of matrices with orthonormal columns, or rows if they are wide."""
    return with_momentum(manifold_muon_step, schedule)
