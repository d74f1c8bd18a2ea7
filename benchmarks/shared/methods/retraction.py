"""Riemannian optimisation by retraction: the step is followed by a decomposition.

`retracted` wraps an Optax optimiser. The rest are single steps of plain gradient
descent, from a point and a Euclidean gradient to the next point, on stacks of matrices.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import cdopt_jax as cdx
from benchmarks.shared.algebra import product
from benchmarks.shared.methods.leaves import on_constrained


def qr(x: jax.Array) -> jax.Array:
    """The orthonormal factor with a positive diagonal of the triangular one."""
    q, r = jnp.linalg.qr(x)
    sign = jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))
    return q * jnp.where(sign == 0, 1, sign)[..., None, :]


def polar_svd(x: jax.Array) -> jax.Array:
    """The nearest orthonormal matrix, UVᵀ of the singular value decomposition."""
    u, _, vt = jnp.linalg.svd(x, full_matrices=False)
    return product(u, vt)


def polar_gram(x: jax.Array) -> jax.Array:
    """The nearest orthonormal matrix, as X(XᵀX)^(−1/2) by eigenvalues of p×p."""
    values, vectors = jnp.linalg.eigh(product(x.mT, x))
    scaled = vectors / jnp.sqrt(values)[..., None, :]
    return product(x, product(scaled, vectors.mT))


def descent(retract: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """The step that brings X − η(G − XΦ(XᵀG)) back by the retraction."""

    def step(x: jax.Array, g: jax.Array, rate: float) -> jax.Array:
        return retract(x - rate * cdx.stiefel.tangent(x, g))

    return step


def cayley(x: jax.Array, g: jax.Array, rate: float) -> jax.Array:
    """The step X⁺ = (I + ηA/2)⁻¹(I − ηA/2)X with the skew A = GXᵀ − XGᵀ.

    On the manifold, AX is the gradient in the canonical metric. A has rank 2p: with
    A = UVᵀ, U = [G, X] and V = [X, −G], the system is one of 2p×2p,

        X⁺ = X − ηU(I + ηVᵀU/2)⁻¹VᵀX,

    which is taken where that is less than n.

    References:
        Wen and Yin, "A feasible method for optimization with orthogonality
        constraints", Mathematical Programming, 2013, Lemma 4.
    """
    n, p = x.shape[-2:]
    return (_cayley_low_rank if 2 * p < n else _cayley_full)(x, g, rate)


def _cayley_low_rank(x, g, rate):
    m, k, s = product(x.mT, x), product(x.mT, g), product(g.mT, g)
    core = jnp.block([[k, m], [-s, -k.mT]]) * (rate / 2)
    right = jnp.concatenate([m, -k.mT], axis=-2)
    solved = jnp.linalg.solve(core + jnp.eye(core.shape[-1], dtype=x.dtype), right)
    a, b = jnp.split(solved, 2, axis=-2)
    return x - rate * (product(g, a) + product(x, b))


def _cayley_full(x, g, rate):
    half = product(g, x.mT) * (rate / 2)
    half = half - half.mT
    eye = jnp.eye(x.shape[-2], dtype=x.dtype)
    return jnp.linalg.solve(eye + half, x - product(half, x))


def retracted(
    optimiser: optax.GradientTransformation,
    mask: Any,
    *,
    retract: Callable[[jax.Array], jax.Array] = qr,
) -> optax.GradientTransformationExtraArgs:
    """An optimiser on projected gradients, its step brought back by a retraction."""
    inner = optax.with_extra_args_support(optimiser)

    def update(updates, state, params=None, **extra_args):
        updates = on_constrained(cdx.stiefel.tangent, mask, params, updates)
        updates, state = inner.update(updates, state, params, **extra_args)
        moves = on_constrained(lambda x, u: retract(x + u) - x, mask, params, updates)
        return moves, state

    return optax.GradientTransformationExtraArgs(inner.init, update)
