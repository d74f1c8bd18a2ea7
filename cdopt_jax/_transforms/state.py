"""How transformations count their updates."""

import jax.numpy as jnp
import optax
from jax import Array


def zero() -> Array:
    """The count before the first update."""
    return jnp.zeros([], jnp.int32)


def incremented(count: Array) -> Array:
    """The count after one more update."""
    return jnp.asarray(optax.safe_increment(count))
