"""A trust-region Newton method on h, with exact Hessian-vector products."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cdopt_jax._minimize.common import Method
from cdopt_jax._minimize.landscape import Point, along, dot, length
from cdopt_jax._minimize.quasi_newton import reweighted, starting_weight

# A step of this length stays inside the region in which h is faithful to f.
LARGEST = 0.3
PRODUCTS = 100


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point.
        beta: The weight of the penalty.
        value: The value of h there.
        gradient: Its gradient.
        radius: That of the trust region.
    """

    x: Point
    beta: Array
    value: Array
    gradient: Point
    radius: Array


class _Conjugate(NamedTuple):
    s: Point
    r: Point
    p: Point
    hs: Point
    taken: Array
    done: Array


def newton(beta: float | str, products: int = PRODUCTS) -> Method:
    """Truncated Newton steps, by conjugate gradients in a trust region.

    Args:
        beta: The weight of the penalty, or ``"auto"``.
        products: The most Hessian-vector products in a step.
    """

    def init(land, x, key):
        del key
        weight = starting_weight(land, x, beta)
        value, gradient = jax.value_and_grad(land.dissolved)(x, weight)
        return State(x, weight, value, gradient, jnp.asarray(LARGEST / 4, value.dtype))

    def step(land, state):
        def h(x):
            return land.dissolved(x, state.beta)

        def curve(d):
            return jax.jvp(jax.grad(h), (state.x,), (d,))[1]

        found = _steihaug(curve, state.gradient, state.radius, products)
        x = along(state.x, 1, found.s)
        value, gradient = jax.value_and_grad(h)(x)
        predicted = -dot(state.gradient, found.s) - dot(found.s, found.hs) / 2
        # Near a solution both falls drown in rounding, and the step is right.
        slack = 10 * jnp.finfo(value.dtype).eps * jnp.maximum(1, jnp.abs(value))
        ratio = (state.value - value + slack) / (predicted + slack)
        good = jnp.isfinite(value) & (ratio > 0.1)
        size = length(found.s)
        radius = jnp.where(ratio > 0.25, state.radius, size / 4)
        far = (ratio > 0.75) & (size > 0.9 * state.radius)
        radius = jnp.where(far, jnp.minimum(2 * radius, LARGEST), radius)
        radius = jnp.where(jnp.isfinite(ratio), radius, size / 4)
        new = (x, value, gradient)
        old = (state.x, state.value, state.gradient)
        x, value, gradient = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)
        weight, value, gradient = reweighted(land, x, state.beta, value, gradient)
        return State(x, weight, value, gradient, radius)

    return Method(
        init,
        step,
        # Twice: h is looked at up to a distance at which once is not enough.
        lambda land, state: land.dissolve(land.dissolve(state.x)),
        lambda _, state: length(state.gradient),
        lambda state: state.radius < 1e-14,
        "newton",
        "norm of the gradient of h",
    )


def _steihaug(curve, g, radius, products):
    """The step of Steihaug's conjugate gradients, with its Hessian product."""
    size = length(g)
    enough = size * jnp.minimum(0.1, size)
    zero = [jnp.zeros_like(a) for a in g]
    down = [-a for a in g]

    def body(c):
        hp = curve(c.p)
        bend, rr = dot(c.p, hp), dot(c.r, c.r)
        alpha = rr / jnp.where(bend > 0, bend, 1)
        s = along(c.s, alpha, c.p)
        out = (bend <= 0) | (length(s) >= radius)
        # To the boundary, along this direction.
        pp, sp, ss = dot(c.p, c.p), dot(c.s, c.p), dot(c.s, c.s)
        root = jnp.sqrt(jnp.maximum(sp**2 + pp * (radius**2 - ss), 0))
        alpha = jnp.where(out, (root - sp) / pp, alpha)
        s, hs = along(c.s, alpha, c.p), along(c.hs, alpha, hp)
        r = along(c.r, alpha, hp)
        done = out | (length(r) <= enough)
        p = along([-a for a in r], dot(r, r) / rr, c.p)
        return _Conjugate(s, r, p, hs, c.taken + 1, done)

    start = _Conjugate(zero, g, down, zero, jnp.zeros((), jnp.int32), size <= 0)
    return lax.while_loop(lambda c: ~c.done & (c.taken < products), body, start)
