"""A trust-region Newton method on h, with exact Hessian-vector products."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from .dissolved import Dissolved, reweighted, weighted
from .method import choose
from .points import Point, dot, gradient_of, value_and_gradient
from .problem import Look, Problem

LARGEST = 0.3
"""A step of this length stays inside the region in which h is faithful to f."""

SMALLEST = 1e-14
"""The radius of the trust region at which the run has stalled."""


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point.
        betas: The weight of the penalty for each constrained leaf.
        value: The value of h there.
        gradient: Its gradient.
        radius: That of the trust region.
    """

    x: Point
    betas: Array
    value: Array
    gradient: Point
    radius: Array


class _Conjugate(NamedTuple):
    """The state of conjugate gradients.

    Attributes:
        step: The step so far.
        image: The Hessian applied to it.
        residual: What is left of the gradient.
        direction: The next direction.
        taken: How many products were taken.
        done: Whether the residual is small, or the boundary reached.
    """

    step: Point
    image: Point
    residual: Point
    direction: Point
    taken: Array
    done: Array


@dataclasses.dataclass(frozen=True)
class Newton(Dissolved):
    """Trust-region Newton steps on h with exact second derivatives, for f + r smooth.

    Steihaug, "The conjugate gradient method and trust regions in large scale
    optimization", 1983.

    Attributes:
        products: The most Hessian-vector products in a step.
    """

    products: int = 100

    @property
    def name(self) -> str:
        """The name of the method."""
        return "newton"

    def init(self, problem: Problem, x: Point, look: Look, key: Array) -> State:
        """The state at a point."""
        del key
        betas, value, gradient = weighted(problem, x, look)
        return State(
            x=x,
            betas=betas,
            value=value,
            gradient=gradient,
            radius=jnp.asarray(LARGEST / 4, value.dtype),
        )

    def step(self, problem: Problem, state: State) -> State:
        """One step."""

        def h(x):
            return problem.dissolved(x, state.betas)

        def hessian(d):
            return jax.jvp(gradient_of(h), (state.x,), (d,))[1]

        found = _steihaug(hessian, state.gradient, state.radius, self.products)
        x = optax.tree.add(state.x, found.step)
        value, gradient = value_and_gradient(h)(x)
        linear = dot(state.gradient, found.step)
        predicted = -linear - dot(found.step, found.image) / 2
        # Near a solution both falls drown in rounding, and the step is right.
        slack = 10 * jnp.finfo(value.dtype).eps * jnp.abs(value)
        ratio = (state.value - value + slack) / (predicted + slack)
        good = jnp.isfinite(value) & (ratio > 0.1)
        size = optax.tree.norm(found.step)
        radius = jnp.where(ratio > 0.25, state.radius, size / 4)
        far = (ratio > 0.75) & (size > 0.9 * state.radius)
        radius = jnp.where(far, jnp.minimum(2 * radius, LARGEST), radius)
        radius = jnp.where(jnp.isfinite(ratio), radius, size / 4)
        x, value, gradient = choose(
            good, (x, value, gradient), (state.x, state.value, state.gradient)
        )
        betas, value, gradient = reweighted(problem, x, state.betas, value, gradient)
        return State(x=x, betas=betas, value=value, gradient=gradient, radius=radius)

    def stalled(self, state: State) -> Array:
        """Whether the trust region has vanished."""
        return state.radius < SMALLEST


def _steihaug(
    hessian: Callable[[Point], Point], g: Point, radius: Array, products: int
) -> _Conjugate:
    """The step of Steihaug's conjugate gradients."""
    size = optax.tree.norm(g)
    enough = size * jnp.minimum(0.1, size)
    zero = optax.tree.zeros_like(g)

    def body(c):
        image = hessian(c.direction)
        bend = dot(c.direction, image)
        square = optax.tree.norm(c.residual, squared=True)
        length = square / jnp.where(bend > 0, bend, 1)
        inside = optax.tree.add_scale(c.step, length, c.direction)
        out = (bend <= 0) | (optax.tree.norm(inside) >= radius)
        # To the boundary, along this direction.
        dd = optax.tree.norm(c.direction, squared=True)
        sd = dot(c.step, c.direction)
        ss = optax.tree.norm(c.step, squared=True)
        root = jnp.sqrt(jnp.maximum(sd**2 + dd * (radius**2 - ss), 0))
        length = jnp.where(out, (root - sd) / dd, length)
        residual = optax.tree.add_scale(c.residual, length, image)
        left = optax.tree.norm(residual, squared=True)
        return _Conjugate(
            step=optax.tree.add_scale(c.step, length, c.direction),
            image=optax.tree.add_scale(c.image, length, image),
            residual=residual,
            direction=optax.tree.add_scale(
                optax.tree.scale(-1, residual), left / square, c.direction
            ),
            taken=c.taken + 1,
            done=out | (jnp.sqrt(left) <= enough),
        )

    start = _Conjugate(
        step=zero,
        image=zero,
        residual=g,
        direction=optax.tree.scale(-1, g),
        taken=jnp.zeros((), jnp.int32),
        done=size <= 0,
    )
    return lax.while_loop(lambda c: ~c.done & (c.taken < products), body, start)
