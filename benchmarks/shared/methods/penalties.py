"""Penalties in place of the constraint: the quadratic one, and ExPen."""

import jax
import jax.numpy as jnp

from benchmarks.shared.algebra import product


def soft_penalty(
    x: jax.Array, g: jax.Array, rate: float, *, weight: float = 1.0
) -> jax.Array:
    """Descend on f(X) + (λ/4)‖XᵀX − I‖², whose minimiser is not on the manifold."""
    return x - rate * (g + product(x, weight * _residual(x)))


def cubic(x: jax.Array) -> jax.Array:
    """X(3I − XᵀX)/2, the map inside ExPen."""
    return product(x, 1.5 * jnp.eye(x.shape[-1], dtype=x.dtype) - product(x.mT, x) / 2)


def expen(x: jax.Array, g: jax.Array, rate: float, *, beta: float = 1.0) -> jax.Array:
    """Descend on f(X(3I − XᵀX)/2) + (β/4)‖XᵀX − I‖², by its closed form.

    The gradient is G(I − E/2) + X(βE − Φ(XᵀG)), with E = XᵀX − I and G = ∇f at the
    image of X, or, to first order near the manifold, at X itself: four products.

    References:
        Xiao and Liu, "Solving optimization problems over the Stiefel manifold by
        smooth exact penalty functions", Journal of Computational Mathematics, 2024.
    """
    e, k = _residual(x), product(x.mT, g)
    inward = product(x, beta * e - (k + k.mT) / 2)
    return x - rate * (g - product(g, e / 2) + inward)


def expen_autodiff(
    x: jax.Array, g: jax.Array, rate: float, *, beta: float = 1.0
) -> jax.Array:
    """`expen` as one who writes the function down gets it, by reverse mode."""

    def parts(x):
        return cubic(x), jnp.sum(_residual(x) ** 2) / 4

    (_, size), pull = jax.vjp(parts, x)
    return x - rate * pull((g, jnp.full_like(size, beta)))[0]


def _residual(x):
    return product(x.mT, x) - jnp.eye(x.shape[-1], dtype=x.dtype)
