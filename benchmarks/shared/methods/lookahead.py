"""Lookahead with its slow weights in the state, so that it is a transformation."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class LookaheadState(NamedTuple):
    """The slow weights, the steps since they moved, and the fast optimiser's state."""

    slow: Any
    since: jax.Array
    fast: Any


def lookahead(
    fast: optax.GradientTransformation,
    *,
    sync_period: int = 5,
    slow_step_size: float = 0.5,
) -> optax.GradientTransformationExtraArgs:
    """Every few steps, go back to a point on the way from the slow weights.

    `optax.lookahead` keeps the slow weights in the parameters, which are then a pair;
    this one has the signature of all others.

    References:
        Zhang, Lucas, Hinton and Ba, "Lookahead optimizer: k steps forward, 1 step
        back", NeurIPS 2019.
    """
    inner = optax.with_extra_args_support(fast)

    def init(params):
        return LookaheadState(
            slow=params, since=jnp.zeros([], jnp.int32), fast=inner.init(params)
        )

    def update(updates, state, params=None, **extra_args):
        updates, fast_state = inner.update(updates, state.fast, params, **extra_args)
        since = (state.since + 1) % sync_period
        sync = since == 0

        def slow_after(x, u, slow):
            return jnp.where(sync, slow + slow_step_size * (x + u - slow), slow)

        slow = jax.tree.map(slow_after, params, updates, state.slow)
        moves = jax.tree.map(
            lambda x, u, s: jnp.where(sync, s - x, u), params, updates, slow
        )
        return moves, LookaheadState(slow=slow, since=since, fast=fast_state)

    return optax.GradientTransformationExtraArgs(init, update)
