"""Subgradient steps: Algorithm 1 with four rules for the length of a step.

The direction is the projected subgradient, D = J_A(x)[∂F(x)], and the step A(x − ηD).
Its residual is of third order in η²‖D‖², so no penalty is needed, and none is chosen.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cdopt_jax._minimize.certificates import sampled_distance
from cdopt_jax._minimize.common import Method, chosen
from cdopt_jax._minimize.landscape import EDGE, Landscape, Point, along, length


class State(NamedTuple):
    """The state of the methods.

    Attributes:
        x: The point.
        value: The objective there.
        gradient: A subgradient of it.
        best: The best point so far.
        least: Its value.
        scale: The length of a step, or the level to fall by, as the rule reads it.
        taken: How many steps were taken.
        since: How many since the last considerable progress.
        mark: The value from which progress is counted.
        patience: How long to wait for progress.
        before: The least value when that was last changed.
        done: Whether waiting longer brought nothing.
        key: For the samples of the certificate.
    """

    x: Point
    value: Array
    gradient: Point
    best: Point
    least: Array
    scale: Array
    taken: Array
    since: Array
    mark: Array
    patience: Array
    before: Array
    done: Array
    key: Array


RADIUS = 1e-6
"""That of the ball in which the certificate samples."""

PATIENCE = 5
"""How many steps without progress make the next ones shorter, at first."""

FIRST = 0.1
"""The length of the first step of a round, relative to that of x."""

Rule = Callable[[State, Array], tuple[Array, Array]]
"""From a state and the norm of D to the length of the step and the next scale."""


def diminishing(state: State, size: Array) -> tuple[Array, Array]:
    """η₀D/√k, so that the first step has the length of the scale."""
    first = jnp.where(state.taken == 0, state.scale / size, state.scale)
    return first * size / jnp.sqrt(state.taken + 1), first


def normalized(state: State, size: Array) -> tuple[Array, Array]:
    """A length of η₀/√k, whatever the subgradient's."""
    del size
    return state.scale / jnp.sqrt(state.taken + 1), state.scale


def geometric(state: State, size: Array) -> tuple[Array, Array]:
    """A length that falls by a factor whenever the values have stopped falling.

    At a sharp minimum this converges linearly, as with a factor in every step, but
    without one that would have to be known.
    """
    del size
    shorter = state.since >= state.patience
    factor = jnp.where(state.patience > PATIENCE, 0.9, 0.7)
    scale = jnp.where(shorter, factor * state.scale, state.scale)
    return scale, scale


def polyak(state: State, size: Array) -> tuple[Array, Array]:
    """Polyak's (F − F*)/‖D‖, where F* is the least value so far, less a level.

    The level is halved whenever it was not reached for a while.
    """
    missed = state.since >= 10
    level = jnp.where(missed, state.scale / 2, state.scale)
    return (state.value - state.least + level) / size, level


RULES: dict[str, Rule] = {
    "diminishing": diminishing,
    "normalized": normalized,
    "geometric": geometric,
    "polyak": polyak,
}


def subgradient(rule: str) -> Method:
    """Projected subgradient steps, by one of `RULES`."""
    take = RULES[rule]

    def init(land, x, key):
        value, gradient = jax.value_and_grad(land.value)(x)
        scale = (FIRST * length(x)).astype(value.dtype)
        if rule == "polyak":
            size = length(_direction(land, x, gradient))
            scale = scale * jnp.where(size > 0, size, 1)
        zero = jnp.zeros((), jnp.int32)
        return State(
            x,
            value,
            gradient,
            x,
            value,
            scale,
            zero,
            zero,
            value,
            jnp.asarray(PATIENCE, jnp.int32),
            value,
            jnp.zeros((), bool),
            key,
        )

    def step(land, state):
        d = _direction(land, state.x, state.gradient)
        size = length(d)
        along_d, scale = take(state, jnp.where(size > 0, size, 1))
        # No step is longer than what A can bring back.
        along_d = jnp.minimum(along_d, 0.3 * jnp.sqrt(1.0 * len(state.x)))
        share = along_d / jnp.where(size > 0, size, 1)
        trial = along(state.x, -share, d)
        inside = land.feasibility(trial) < EDGE
        x = chosen(inside, land.dissolve(trial), state.x)
        scale = jnp.where(inside, scale, scale / 2)
        value, gradient = jax.value_and_grad(land.value)(x)
        better = value < state.least
        progress = value < state.mark - 0.01 * along_d * size
        if rule == "polyak":
            progress = value < state.mark - scale / 2
        changed = scale != state.scale
        since = jnp.where(progress | changed, 0, state.since + 1)
        new = state._replace(
            x=x,
            value=value,
            gradient=gradient,
            best=chosen(better, x, state.best),
            least=jnp.minimum(value, state.least),
            scale=scale,
            taken=state.taken + 1,
            since=since,
            mark=jnp.where(progress, value, state.mark),
        )
        return _again(land, new, length(x)) if rule == "geometric" else new

    def residual(land, state):
        return sampled_distance(land, state.best, state.key, RADIUS)

    return Method(
        init,
        step,
        lambda land, state: land.dissolve(state.best),
        residual,
        lambda state: state.done | ~(state.scale > 0),
        rule,
        f"distance of 0 from gradients sampled within {RADIUS:g}",
        each_step=False,
    )


def _again(land, state, size):
    """From the best point with more patience, once steps have become too short.

    What is sharp is found in the first round, and the second is in vain. Where some
    directions are flat, a length that falls as quickly as that ends too early; and of
    many local minima, steps as long as the first ones that fall slowly find a lower
    one.
    """
    short = state.scale < jnp.finfo(state.value.dtype).eps * size
    gained = state.before - state.least
    first = state.patience == PATIENCE
    vain = (gained <= 1e-7 * jnp.abs(state.least)) & ~first
    value, gradient = lax.cond(
        short,
        lambda: jax.value_and_grad(land.value)(state.best),
        lambda: (state.value, state.gradient),
    )
    anew = state._replace(
        x=state.best,
        value=value,
        gradient=gradient,
        scale=(FIRST * size).astype(state.scale.dtype),
        since=jnp.zeros_like(state.since),
        mark=value,
        patience=jnp.where(first, 6, 2) * state.patience,
        before=state.least,
        done=vain,
    )
    return chosen(short, anew, state)


def _direction(land: Landscape, x: Point, g: Point) -> Point:
    """The projected subgradient: J_A J_A* g, which is J_A g without a metric."""
    return land.tangential(x, land.adjoint(x, g))
