"""L-BFGS on the constraint dissolving function h: Optax's, with its line search."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from cdopt_jax._minimize.common import Method, chosen
from cdopt_jax._minimize.landscape import Landscape, Point, length

# Steps for which the line search finds nothing before the method gives up: pairs of
# an old region are forgotten after as many.
PATIENCE = 10
# The paper's region has ‖E‖_F ≤ 1/6.
STRAYED, GROWTH = 1 / 6, 2.0


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point.
        beta: The weight of the penalty.
        value: The value of h there.
        gradient: Its gradient.
        optimizer: The state of Optax's method.
        idle: How many steps in a row did not lower h.
    """

    x: Point
    beta: Array
    value: Array
    gradient: Point
    optimizer: Any
    idle: Array


def lbfgs(beta: float | str, memory: int = 10) -> Method:
    """L-BFGS on h.

    Args:
        beta: The weight of the penalty, or ``"auto"``: the one that the gradient at the
            start asks for.
        memory: How many pairs are kept.
    """
    optimizer = optax.lbfgs(memory_size=memory)

    def init(land, x, key):
        del key
        weight = starting_weight(land, x, beta)
        value, gradient = jax.value_and_grad(land.dissolved)(x, weight)
        zero = jnp.zeros((), jnp.int32)
        return State(x, weight, value, gradient, optimizer.init(x), zero)

    def step(land, state):
        def h(x):
            return land.dissolved(x, state.beta)

        updates, inner = optimizer.update(
            state.gradient,
            state.optimizer,
            state.x,
            value=state.value,
            grad=state.gradient,
            value_fn=h,
        )
        x: Any = optax.apply_updates(state.x, updates)
        value, gradient = jax.value_and_grad(h)(x)
        better = value < state.value
        # A step that the line search could not mend is not taken.
        x, value, gradient = jax.tree.map(
            lambda new, old: jnp.where(better, new, old),
            (x, value, gradient),
            (state.x, state.value, state.gradient),
        )
        idle = jnp.where(better, 0, state.idle + 1)
        weight, value, gradient = reweighted(land, x, state.beta, value, gradient)
        # Pairs of another h are of no use for this one.
        changed = weight != state.beta
        inner = chosen(changed, optimizer.init(x), inner)
        idle = jnp.where(changed, 0, idle)
        return State(x, weight, value, gradient, inner, idle)

    return Method(
        init,
        step,
        # Twice: h is looked at up to a distance at which once is not enough.
        lambda land, state: land.dissolve(land.dissolve(state.x)),
        lambda _, state: length(state.gradient),
        lambda state: state.idle >= PATIENCE,
        "lbfgs",
        "norm of the gradient of h",
    )


def reweighted(
    land: Landscape, x: Point, beta: Array, value: Array, gradient: Point
) -> tuple[Array, Array, Point]:
    """A larger β where the point has strayed, with h and its gradient for it.

    The gradient at the start, from which β is chosen, may be the smallest of all. Far
    from the manifold h has stationary points that f has not.
    """
    strayed = land.feasibility(x) > STRAYED

    def anew():
        found = jax.value_and_grad(land.dissolved)(x, GROWTH * beta)
        return GROWTH * beta, *found

    return lax.cond(strayed, anew, lambda: (beta, value, gradient))


def starting_weight(land: Landscape, x: Point, beta: float | str) -> Array:
    """The weight β as given, or as the gradient at a point asks for."""
    if beta != "auto":
        return jnp.asarray(beta, x[0].dtype)
    found = land.weight(jax.grad(land.value)(x))
    return jnp.where(found > 0, found, 1)
