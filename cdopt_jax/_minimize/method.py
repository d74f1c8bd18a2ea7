"""What every method offers to the loop that runs it."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from .points import Point
from .problem import Look, Problem

T = TypeVar("T")

MethodState = Any
"""The state of a method: a NamedTuple of its own."""


class Method(ABC):
    """A way to take steps. Its options are the fields of a frozen dataclass.

    Attributes:
        certificate: What must fall below the tolerance, in words.
        in_loop: Whether `residual` is cheap enough to be looked at in every step.
        smooth: Whether the method is for smooth objectives, so that a solution can be
            differentiated and curvature is a part of the scale of the tolerance.
        draws: Whether the method draws random numbers, and needs a key.
        factorises: Whether the method works in the coordinates Lᵀx of a metric LLᵀ.
    """

    certificate: ClassVar[str] = "norm of the projected gradient"
    in_loop: ClassVar[bool] = True
    smooth: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    factorises: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the method, which ``method=`` accepts as well."""

    @abstractmethod
    def init(self, problem: Problem, x: Point, look: Look, key: Array) -> MethodState:
        """The state at a point of the manifold."""

    @abstractmethod
    def step(self, problem: Problem, state: MethodState) -> MethodState:
        """The state after one step."""

    @abstractmethod
    def point(self, problem: Problem, state: MethodState) -> Point:
        """The point reached."""

    @abstractmethod
    def residual(self, problem: Problem, state: MethodState) -> Array:
        """What ends the loop when it falls below the tolerance."""

    def stationarity(
        self, problem: Problem, state: MethodState, x: Point, look: Look
    ) -> Array:
        """The certificate of the point reached: by default ‖∇(f + r)‖, projected."""
        del state
        manifold = problem.manifold
        return optax.tree.norm(manifold.tangent(manifold.image(x), look.whole))

    def sparse_parameters(
        self, problem: Problem, state: MethodState, x: Point
    ) -> optax.Params:
        """The parameters of which the zeros are counted."""
        del state
        return problem.coordinates.write(x)

    def betas(self, state: MethodState) -> Array | None:
        """The weight β of each constrained leaf, if the method has such weights."""
        del state
        return None

    def stalled(self, state: MethodState) -> Array:
        """Whether further steps would change nothing."""
        del state
        return jnp.zeros((), bool)

    def kinked(self, state: MethodState) -> Array:
        """Whether the steps have shown that f has kinks."""
        del state
        return jnp.zeros((), bool)


def choose(flag: Array, yes: T, no: T) -> T:
    """One of two trees, whose leaves may be random keys."""
    return jax.tree.map(lambda a, b: _choose(flag, a, b), yes, no)


def either(flag: Array, yes: T, no: T) -> T:
    """As `choose`, by a conditional, which compiles no kernel for each array."""
    return jax.lax.cond(flag, lambda: yes, lambda: no)


def _choose(flag, a, b):
    if jnp.issubdtype(jnp.result_type(a), jax.dtypes.prng_key):
        return jax.lax.select(flag, a, b)
    return jnp.where(flag, a, b)
