"""Gradient sampling on h, after Burke, Lewis and Overton.

The direction is the element of least norm in the hull of gradients of f∘A around the
point; where it is short, the radius is reduced. With the tangential part of the
gradient alone and the step A(x + td) the penalty is not needed.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cdopt_jax._minimize.certificates import nearest, sampled_gradients
from cdopt_jax._minimize.common import Method, chosen
from cdopt_jax._minimize.landscape import EDGE, Point, along

HALVINGS = 30
NEAR = 1e-4
"""The radius of the certificate."""


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point.
        value: The objective there.
        radius: That of the ball in which gradients are sampled.
        distance: The length of the last direction.
        reached: The shortest one, with the radius it was found at.
        stepsize: The first to try.
        key: For the samples.
    """

    x: Point
    value: Array
    radius: Array
    distance: Array
    reached: Array
    stepsize: Array
    key: Array


def sampling(samples: int = 64, first: float = 0.1, least: float = 1e-8) -> Method:
    """Gradient sampling.

    Args:
        samples: How many gradients make up a direction.
        first: The first radius.
        least: The radius at which the method ends.
    """

    def init(land, x, key):
        value = land.value(x)
        far = jnp.asarray(jnp.inf, value.dtype)
        return State(
            x,
            value,
            jnp.asarray(first, value.dtype),
            far,
            far,
            jnp.ones((), value.dtype),
            key,
        )

    def step(land, state):
        key, now = jax.random.split(state.key)
        rows = sampled_gradients(land, state.x, now, state.radius, samples)
        g = nearest(rows)
        distance = jnp.linalg.norm(g)
        ends, parts = 0, []
        for a in state.x:
            parts.append(g[ends : ends + a.size].reshape(a.shape))
            ends += a.size

        def attempt(t):
            trial = along(state.x, -t, parts)
            x = land.dissolve(trial)
            value = jnp.where(land.feasibility(trial) < EDGE, land.value(x), jnp.inf)
            return x, value

        def too_long(c):
            t, (_, value), halvings = c
            enough = state.value - 1e-6 * t * distance**2
            return ~(value < enough) & (halvings < HALVINGS)

        t = state.stepsize
        t, (x, value), _ = lax.while_loop(
            too_long,
            lambda c: (c[0] / 2, attempt(c[0] / 2), c[2] + 1),
            (t, attempt(t), jnp.zeros((), jnp.int32)),
        )
        moved = value < state.value
        # Short for this radius, or of no use: look at a smaller one.
        flat = (distance < state.radius) | ~moved
        near = state.radius <= NEAR
        return State(
            chosen(moved, x, state.x),
            jnp.where(moved, value, state.value),
            jnp.where(flat, state.radius / 2, state.radius),
            distance,
            jnp.where(near, jnp.minimum(distance, state.reached), state.reached),
            jnp.where(moved, jnp.clip(4 * t, 1e-12, 1e6), 1.0),
            key,
        )

    return Method(
        init,
        step,
        lambda _, state: state.x,
        lambda _, state: state.reached,
        lambda state: state.radius < least,
        "sampling",
        f"distance of 0 from gradients sampled within {NEAR:g}",
    )
