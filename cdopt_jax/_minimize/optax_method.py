"""Any Optax optimiser, through `constrain`."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._transforms.constrain import constrain

from .method import Method, choose
from .points import Point, value_and_gradient
from .problem import Look, Problem


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point.
        gradient: That of the objective there.
        optimizer: The state of the constrained optimiser.
        best: Where the objective was least, or the last point with ``batch``.
        least: The objective there.
    """

    x: Point
    gradient: Point
    optimizer: Any
    best: Point
    least: Array


@dataclasses.dataclass(frozen=True)
class Optax(Method):
    """Steps of an Optax optimiser, which `constrain` keeps on the manifold.

    Attributes:
        optimizer: The optimiser.
        sampled: Whether each step has an objective of its own, as it has with
            ``batch``. Values of two steps are then not compared, and the last point is
            the result.
    """

    optimizer: optax.GradientTransformation
    sampled: bool = False

    smooth: ClassVar[bool] = False
    factorises: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The name of the method."""
        return "optax"

    def _constrained(self, problem):
        return constrain(self.optimizer, problem.coordinates.mask)

    def init(self, problem: Problem, x: Point, look: Look, key: Array) -> State:
        """The state at a point."""
        del key
        return State(
            x=x,
            gradient=look.whole,
            optimizer=self._constrained(problem).init(problem.coordinates.write(x)),
            best=x,
            least=look.value,
        )

    def step(self, problem: Problem, state: State) -> State:
        """One step."""
        params = problem.coordinates.write(state.x)
        gradient = problem.coordinates.write_gradient(state.gradient)
        tx = self._constrained(problem)
        updates, inner = tx.update(gradient, state.optimizer, params)
        moved: Any = optax.apply_updates(params, updates)
        x = problem.coordinates.read(moved)
        value, gradient = value_and_gradient(problem.value)(x)
        better = (value < state.least) | self.sampled
        return State(
            x=x,
            gradient=gradient,
            optimizer=inner,
            best=choose(better, x, state.best),
            least=jnp.where(better, value, state.least),
        )

    def point(self, problem: Problem, state: State) -> Point:
        """The best point, or the last."""
        del problem
        return state.best

    def residual(self, problem: Problem, state: State) -> Array:
        """The norm of the projected gradient."""
        if self.sampled:
            return jnp.asarray(jnp.inf, state.least.dtype)
        return optax.tree.norm(problem.manifold.adjoint(state.x, state.gradient))


def stochastic(steps: int) -> optax.GradientTransformation:
    """The optimiser for objectives that are known by batches alone."""
    return optax.adam(optax.cosine_decay_schedule(0.03, steps))
