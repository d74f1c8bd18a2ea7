"""Gradient sampling on h, after Burke, Lewis and Overton.

The direction is the element of least norm in the hull of gradients of f∘A around the
point; where it is short, the radius is reduced. With the tangential part of the
gradient alone and the step A(x + td) the penalty is not needed.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from .manifold import EDGE
from .method import Method, choose
from .points import Point, from_real_parts, real_parts
from .problem import Look, Problem
from .sampled_gradients import nearest, sampled_gradients

HALVINGS = 30
"""The most halvings of a stepsize."""

NEAR = 1e-4
"""The radius of the certificate."""


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point.
        value: The objective there.
        radius: That of the ball in which gradients are sampled.
        reached: The length of the shortest direction at a small radius.
        stepsize: The first to try.
        key: For the samples.
    """

    x: Point
    value: Array
    radius: Array
    reached: Array
    stepsize: Array
    key: Array


@dataclasses.dataclass(frozen=True)
class Sampling(Method):
    """Gradient sampling, for any f of few variables.

    Burke, Lewis and Overton, "A robust gradient sampling algorithm for nonsmooth,
    nonconvex optimization", 2005.

    Attributes:
        samples: How many gradients make up a direction.
        first: The first radius.
        last: The radius at which the method ends.
    """

    samples: int = 64
    first: float = 0.1
    last: float = 1e-8

    certificate: ClassVar[str] = f"distance of 0 from gradients sampled within {NEAR:g}"
    smooth: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name of the method."""
        return "sampling"

    def init(self, problem: Problem, x: Point, look: Look, key: Array) -> State:
        """The state at a point."""
        del problem
        dtype = look.value.dtype
        return State(
            x=x,
            value=look.value,
            radius=jnp.asarray(self.first, dtype),
            reached=jnp.asarray(jnp.inf, dtype),
            stepsize=jnp.ones((), dtype),
            key=key,
        )

    def step(self, problem: Problem, state: State) -> State:
        """One step."""
        key, now = jax.random.split(state.key)
        rows = sampled_gradients(problem, state.x, now, state.radius, self.samples)
        g = nearest(rows)
        distance = jnp.linalg.norm(g)
        ends, parts = 0, []
        for a in real_parts(state.x):
            parts.append(g[ends : ends + a.size].reshape(a.shape))
            ends += a.size
        direction = from_real_parts(parts, state.x)

        def attempt(t):
            trial = optax.tree.add_scale(state.x, -t, direction)
            measured = problem.manifold.measure(trial)
            # Not A once: after a long step f may be lower off the manifold than on it.
            x, _ = problem.manifold.restore(measured)
            inside = jnp.max(jnp.stack([m.distance for m in measured])) < EDGE
            return x, jnp.where(inside, problem.value(x), jnp.inf)

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
            x=choose(moved, x, state.x),
            value=jnp.where(moved, value, state.value),
            radius=jnp.where(flat, state.radius / 2, state.radius),
            reached=jnp.where(
                near, jnp.minimum(distance, state.reached), state.reached
            ),
            stepsize=jnp.where(moved, jnp.clip(4 * t, 1e-12, 1e6), 1.0),
            key=key,
        )

    def point(self, problem: Problem, state: State) -> Point:
        """The point."""
        del problem
        return state.x

    def residual(self, problem: Problem, state: State) -> Array:
        """The shortest direction at a small radius."""
        del problem
        return state.reached

    def stationarity(
        self, problem: Problem, state: State, x: Point, look: Look
    ) -> Array:
        """The same."""
        del x, look
        return self.residual(problem, state)

    def stalled(self, state: State) -> Array:
        """Whether the radius is as small as it may be."""
        return state.radius < self.last
