"""What the methods on the constraint dissolving function h share: h and its weights."""

import jax.numpy as jnp
import optax
from jax import Array, lax

from .method import Method
from .points import Point, value_and_gradient
from .problem import Look, Problem

STRAYED, GROWTH = 1 / 6, 2.0
"""The ‖E‖_F of the paper's region, and the factor for β where a point has left it."""


class Dissolved(Method):
    """A method on h, of which a state has the point x, the weights β and ∇h."""

    def point(self, problem: Problem, state) -> Point:
        """A of the point, twice: h is used where once is not enough."""
        return problem.manifold.dissolve(problem.manifold.dissolve(state.x))

    def residual(self, problem: Problem, state) -> Array:
        """The norm of the gradient of h."""
        del problem
        return optax.tree.norm(state.gradient)

    def betas(self, state) -> Array:
        """The weights of the penalty."""
        return state.betas


def weighted(problem: Problem, x: Point, look: Look) -> tuple[Array, Array, Point]:
    """The weights β to start with, and h and its gradient for them.

    The weights are as given, or, if that is zero, from the gradient at the start.
    """
    given = jnp.asarray(problem.beta, look.value.dtype) * problem.unit
    automatic = problem.manifold.automatic_beta(look.whole)
    betas = jnp.where(given > 0, given, automatic)
    return betas, *value_and_gradient(lambda x: problem.dissolved(x, betas))(x)


def reweighted(
    problem: Problem, x: Point, betas: Array, value: Array, gradient: Point
) -> tuple[Array, Array, Point]:
    """Larger β where the point has strayed, with h and its gradient for them.

    The gradient at the start, from which β is chosen, may be the smallest of all. Far
    from the manifold h has stationary points that f has not.
    """
    strayed = problem.manifold.feasibility(x) > STRAYED

    def anew():
        larger = GROWTH * betas
        return larger, *value_and_gradient(lambda x: problem.dissolved(x, larger))(x)

    return lax.cond(strayed, anew, lambda: (betas, value, gradient))
