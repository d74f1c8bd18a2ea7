"""SPEL: the sign of the tangential momentum, then the sign of the point."""

import jax
import optax

import cdopt_jax as cdx
from benchmarks.muon.matrices import with_momentum
from benchmarks.muon.msign import msign, retracted


def spel_step(x: jax.Array, m: jax.Array, rate: jax.Array) -> jax.Array:
    """X⁺ = msign(X − η msign(M − XΦ(XᵀM))).

    References:
        Yang and Lai, "Manifold constrained steepest descent", 2026.
    """
    return retracted(x - rate * msign(cdx.stiefel.tangent(x, m)))


def spel(schedule: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """The optimiser of matrices with orthonormal columns, or rows if they are wide."""
    return with_momentum(spel_step, schedule)
