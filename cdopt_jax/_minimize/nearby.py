"""Attempts to leave a start that is stationary, and may be a saddle."""

from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._math.products import real_dtype

from .method import choose
from .points import Point, from_real_parts, real_parts
from .problem import Problem
from .setup import Setup

NOISE, LOUD, ATTEMPTS = 1e-3, 0.1, 6
"""The relative size of the perturbation of a start that is stationary already, at the
second attempt and at later ones, and how many there are besides the first.

From a small one the run hardly forgets its start. But from a saddle with weak curvature
the gradient nearby may be below the tolerance, and the way down may lead past another
saddle. So a larger one follows, again and again until it brings nothing.
"""

NEARBY = 1e-6
"""The largest relative tolerance from a perturbed start."""


def again(attempt: Any, lower: Any, strength: Any) -> Any:
    """Whether to perturb a start, or what was found near to it, once more.

    Where r is yet to count, values do not say what is lower.
    """
    more = (attempt < ATTEMPTS) & (strength >= 1)
    return (attempt == 0) | (more & ((attempt == 1) | lower))


def perturbed(setup: Setup, problem: Problem, x: Point, attempt: Array) -> Point:
    """A point near to x, or off the manifold near to it; x itself at first."""
    dtype = real_dtype(x[0].dtype)
    sizes = jnp.asarray([0, NOISE, *[LOUD] * (ATTEMPTS - 1)], dtype)
    noise, parts = sizes[attempt], real_parts(x)
    # Its mean square is one third.
    length = (sum(a.size for a in parts) / 3) ** 0.5
    first, waves = attempt.astype(jnp.uint32) << 24, []
    for a in parts:
        waves.append(_scattered(first, a.size).reshape(a.shape).astype(a.dtype))
        first = first + jnp.uint32(a.size)
    size = noise * optax.tree.norm(x) / length
    moved = optax.tree.add_scale(x, size, from_real_parts(waves, x))
    if setup.columns is not None:
        moved = problem.prox(moved, jnp.zeros_like(noise), x)
    return choose(attempt > 0, moved, x)


def _scattered(first: Array, count: int) -> Array:
    """Numbers in [−1, 1) that look random.

    JAX's generator takes as long to compile as a step does. A wave would not do: at
    neighbouring entries it is nearly the same, and hardly turns columns among each
    other.
    """
    mixed = first + jnp.arange(count, dtype=jnp.uint32)
    for shift, factor in (16, 0x7FEB352D), (15, 0x846CA68B):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    mixed = mixed ^ (mixed >> 16)
    return mixed.astype(jnp.float32) * 2.0**-31 - 1
