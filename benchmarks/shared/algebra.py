"""Matrix algebra in full precision."""

import jax
import jax.numpy as jnp


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """AB in full precision."""
    return jnp.matmul(a, b, precision="highest")


def symmetric(s: jax.Array) -> jax.Array:
    """Φ(S) = (S + Sᵀ)/2."""
    return (s + s.mT) / 2


def inner(a: jax.Array, b: jax.Array) -> jax.Array:
    """The sum of the products of the entries."""
    return jnp.sum(a * b)


def norm(a: jax.Array) -> jax.Array:
    """The Frobenius norm."""
    return jnp.sqrt(jnp.sum(a**2))
