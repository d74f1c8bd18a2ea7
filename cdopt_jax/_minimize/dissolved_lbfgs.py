"""L-BFGS on the constraint dissolving function h: Optax's, with its line search."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from .dissolved import Dissolved, reweighted, weighted
from .method import choose
from .points import Point, value_and_gradient
from .problem import Look, Problem

PATIENCE = 10
"""After so many line searches in a row that found nothing the run has stalled."""


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point.
        betas: The weight of the penalty for each constrained leaf.
        value: The value of h there.
        gradient: Its gradient.
        optimizer: The state of Optax's method.
        idle: How many steps in a row did not lower h.
    """

    x: Point
    betas: Array
    value: Array
    gradient: Point
    optimizer: Any
    idle: Array


@dataclasses.dataclass(frozen=True)
class LBFGS(Dissolved):
    """L-BFGS on the constraint dissolving function h, for f + r smooth.

    Hu, Xiao, Liu and Toh, "A Constraint Dissolving Approach for Nonsmooth Optimization
    over the Stiefel Manifold"; ``optax.lbfgs`` takes the steps.

    Attributes:
        history: How many pairs are kept.
    """

    history: int = 10

    @property
    def name(self) -> str:
        """The name of the method."""
        return "lbfgs"

    @property
    def _optimizer(self):
        return optax.lbfgs(memory_size=self.history)

    def init(self, problem: Problem, x: Point, look: Look, key: Array) -> State:
        """The state at a point."""
        del key
        betas, value, gradient = weighted(problem, x, look)
        return State(
            x=x,
            betas=betas,
            value=value,
            gradient=gradient,
            optimizer=self._optimizer.init(x),
            idle=jnp.zeros((), jnp.int32),
        )

    def step(self, problem: Problem, state: State) -> State:
        """One step."""

        def h(x):
            return problem.dissolved(x, state.betas)

        updates, inner = self._optimizer.update(
            state.gradient,
            state.optimizer,
            state.x,
            value=state.value,
            grad=state.gradient,
            value_fn=h,
        )
        x: Any = optax.apply_updates(state.x, updates)
        value, gradient = value_and_gradient(h)(x)
        better = value < state.value
        # A step that the line search could not mend is not taken.
        x, value, gradient = choose(
            better, (x, value, gradient), (state.x, state.value, state.gradient)
        )
        betas, value, gradient = reweighted(problem, x, state.betas, value, gradient)
        # Pairs of another h are of no use for this one.
        changed = jnp.any(betas != state.betas)
        idle = jnp.where(better | changed, 0, state.idle + 1)
        return State(
            x=x,
            betas=betas,
            value=value,
            gradient=gradient,
            optimizer=choose(changed, self._optimizer.init(x), inner),
            idle=idle,
        )

    def stalled(self, state: State) -> Array:
        """Whether line searches find nothing."""
        return state.idle >= PATIENCE
