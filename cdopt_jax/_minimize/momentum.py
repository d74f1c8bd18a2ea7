"""Nesterov's sequence, which begins anew where the last step has turned back."""

import jax.numpy as jnp
from jax import Array


def accelerated(momentum: Array, turned: Array) -> tuple[Array, Array]:
    """The next momentum, and the share of the last move to go ahead by."""
    momentum = jnp.where(turned, 1, momentum)
    grown = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
    return grown, (momentum - 1) / grown
