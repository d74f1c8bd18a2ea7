"""Subgradient steps: Algorithm 1 with four rules for the length of a step.

The direction is the projected subgradient, D = J_A(x)[∂F(x)], and the step A(x − ηD).
Its residual is of third order in η²‖D‖², so no penalty is needed, and none is chosen.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array, lax

from .manifold import EDGE
from .method import Method, choose
from .points import Point, value_and_gradient
from .problem import Look, Problem
from .sampled_gradients import sampled_distance

RADIUS = 1e-6
"""The radius of the ball in which the certificate samples, relative to that of x."""

PATIENCE = 5
"""How many steps without progress make the next ones shorter, at first."""


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


@dataclasses.dataclass(frozen=True)
class Subgradient(Method):
    """Projected subgradient steps, Algorithm 1, for any f.

    Hu, Xiao, Liu and Toh, Algorithm 1; for sharp minima Davis, Drusvyatskiy, MacPhee
    and Paquette, "Subgradient methods for sharp weakly convex functions", 2018.

    Attributes:
        rule: How long a step is. ``"geometric"``: a length that falls whenever the
            values have stopped falling. ``"diminishing"``: η₀D/√k. ``"normalized"``: a
            length of η₀/√k. ``"polyak"``: Polyak's, with a level that is found.
        first: The length of the first step, relative to that of x.
        samples: How many gradients make up the certificate.
    """

    rule: str = "geometric"
    first: float = 0.1
    samples: int = 64

    certificate: ClassVar[str] = (
        f"distance of 0 from gradients sampled within {RADIUS:g}"
    )
    in_loop: ClassVar[bool] = False
    smooth: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name of the rule."""
        return self.rule

    def __post_init__(self):
        if self.rule not in RULES:
            raise ValueError(
                f"methods.Subgradient: rule must be one of {', '.join(RULES)}; it is "
                f"{self.rule!r}."
            )

    def init(self, problem: Problem, x: Point, look: Look, key: Array) -> State:
        """The state at a point."""
        value, gradient = look.value, look.whole
        scale = (self.first * optax.tree.norm(x)).astype(value.dtype)
        if self.rule == "polyak":
            size = optax.tree.norm(problem.manifold.descent(x, gradient))
            scale = scale * jnp.where(size > 0, size, 1)
        zero = jnp.zeros((), jnp.int32)
        return State(
            x=x,
            value=value,
            gradient=gradient,
            best=x,
            least=value,
            scale=scale,
            taken=zero,
            since=zero,
            mark=value,
            patience=jnp.asarray(PATIENCE, jnp.int32),
            before=value,
            done=jnp.zeros((), bool),
            key=key,
        )

    def step(self, problem: Problem, state: State) -> State:
        """One step."""
        d = problem.manifold.descent(state.x, state.gradient)
        size = optax.tree.norm(d)
        divisor = jnp.where(size > 0, size, 1)
        length, scale = RULES[self.rule](state, divisor)
        # No step is longer than what A can bring back.
        length = jnp.minimum(length, 0.3 * jnp.sqrt(1.0 * len(state.x)))
        trial = optax.tree.add_scale(state.x, -length / divisor, d)
        inside = problem.manifold.feasibility(trial) < EDGE
        x = choose(inside, problem.manifold.dissolve(trial), state.x)
        scale = jnp.where(inside, scale, scale / 2)
        value, gradient = value_and_gradient(problem.value)(x)
        better = value < state.least
        progress = value < state.mark - 0.01 * length * size
        if self.rule == "polyak":
            progress = value < state.mark - scale / 2
        changed = scale != state.scale
        new = state._replace(
            x=x,
            value=value,
            gradient=gradient,
            best=choose(better, x, state.best),
            least=jnp.minimum(value, state.least),
            scale=scale,
            taken=state.taken + 1,
            since=jnp.where(progress | changed, 0, state.since + 1),
            mark=jnp.where(progress, value, state.mark),
        )
        return self._again(problem, new) if self.rule == "geometric" else new

    def _again(self, problem, state):
        """From the best point with more patience, once steps have become too short.

        What is sharp is found in the first round, and the second is in vain. Where some
        directions are flat, a length that falls as quickly as that ends too early; and
        of many local minima, steps as long as the first ones that fall slowly find a
        lower one.
        """
        size = optax.tree.norm(state.x)
        short = state.scale < jnp.finfo(state.value.dtype).eps * size
        gained = state.before - state.least
        first = state.patience == PATIENCE
        vain = (gained <= 1e-7 * jnp.abs(state.least)) & ~first
        value, gradient = lax.cond(
            short,
            lambda: value_and_gradient(problem.value)(state.best),
            lambda: (state.value, state.gradient),
        )
        anew = state._replace(
            x=state.best,
            value=value,
            gradient=gradient,
            scale=(self.first * size).astype(state.scale.dtype),
            since=jnp.zeros_like(state.since),
            mark=value,
            patience=jnp.where(first, 6, 2) * state.patience,
            before=state.least,
            done=vain,
        )
        return choose(short, anew, state)

    def point(self, problem: Problem, state: State) -> Point:
        """The best point."""
        return problem.manifold.dissolve(state.best)

    def residual(self, problem: Problem, state: State) -> Array:
        """The distance of zero from gradients around the best point."""
        radius = RADIUS * optax.tree.norm(state.best)
        return sampled_distance(problem, state.best, state.key, radius, self.samples)

    def stalled(self, state: State) -> Array:
        """Whether waiting longer brought nothing."""
        return state.done | ~(state.scale > 0)
