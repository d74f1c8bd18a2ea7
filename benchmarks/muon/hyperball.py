"""Hyperball: every matrix keeps the Frobenius norm that it starts with."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class HyperballState(NamedTuple):
    """What an update needs.

    Attributes:
        steps: How many were taken.
        radius: The norms of the matrices at the start.
        inner: The state of the optimiser inside.
    """

    steps: jax.Array
    radius: Any
    inner: Any


def norms(x: jax.Array) -> jax.Array:
    """The Frobenius norm of each matrix of a stack."""
    return jnp.sqrt(jnp.sum(x**2, axis=(-2, -1), keepdims=True))


def hyperball(
    direction: optax.GradientTransformation, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """W⁺ = R·N(W − ηR·N(U)) with N(V) = V/‖V‖ and R = ‖W₀‖.

    Args:
        direction: What turns gradients into directions of ascent U.
        schedule: The learning rate η, the length of a step relative to R.

    References:
        Wen and others, "Fantastic pretraining optimizers and where to find them II:
        hyperball optimization", 2026.
    """
    inner = optax.with_extra_args_support(direction)

    def init(params):
        return HyperballState(
            steps=jnp.zeros([], jnp.int32),
            radius=jax.tree.map(norms, params),
            inner=inner.init(params),
        )

    def update(updates, state, params=None, **extra_args):
        updates, after = inner.update(updates, state.inner, params, **extra_args)
        rate = jnp.asarray(schedule(state.steps))

        def move(w, u, radius):
            length = norms(u)
            stepped = w - rate * radius * u / jnp.where(length > 0, length, 1)
            return stepped * (radius / norms(stepped)) - w

        moves = jax.tree.map(move, params, updates, state.radius)
        after = HyperballState(steps=state.steps + 1, radius=state.radius, inner=after)
        return moves, after

    return optax.GradientTransformationExtraArgs(init, update)
