"""How near to stationary a point of a nonsmooth function is, by sampling."""

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from cdopt_jax._math.products import mm

from .momentum import accelerated
from .points import Point, gradient_of, real_parts
from .problem import Problem

ITERATIONS = 500


def sampled_gradients(
    problem: Problem, x: Point, key: Array, radius: float | Array, count: int
) -> Array:
    """Projected gradients at a point and at points around it, one in each row.

    Rows are real: complex entries are written as real and imaginary parts.
    """

    def at(key):
        far, *keys = jax.random.split(key, len(x) + 1)
        parts = zip(x, keys, strict=True)
        noise = [jax.random.normal(k, a.shape, a.dtype) for a, k in parts]
        size = optax.tree.norm(noise)
        dimension = sum(a.size for a in real_parts(x))
        share = jax.random.uniform(far, (), size.dtype) ** (1 / dimension)
        distance = radius * share
        return flat(optax.tree.add_scale(x, distance / size, noise))

    def flat(z):
        g = problem.manifold.adjoint(
            z, gradient_of(problem.value)(problem.manifold.dissolve(z))
        )
        return jnp.concatenate([a.ravel() for a in real_parts(g)])

    around = lax.map(at, jax.random.split(key, count - 1), batch_size=16)
    return jnp.concatenate([flat(x)[None], around])


def sampled_distance(
    problem: Problem, x: Point, key: Array, radius: float | Array, count: int
) -> Array:
    """The distance of zero from the convex hull of gradients sampled around a point.

    It bounds from above, up to sampling, the distance of zero from the Goldstein
    subdifferential of that radius. Where the solution is a kink in many directions,
    as many samples are needed before the hull comes near zero.
    """
    rows = sampled_gradients(problem, x, key, radius, count)
    return jnp.linalg.norm(nearest(rows))


def nearest(rows: Array) -> Array:
    """The element of least norm in the convex hull of some vectors.

    The problem min ‖Gᵀλ‖² over the simplex, by Nesterov's method with restarts.
    """
    gram = mm(rows, rows.T)
    bound = jnp.linalg.norm(gram)
    pace = 1 / jnp.where(bound > 0, bound, 1)
    count = rows.shape[0]
    start = jnp.full(count, 1 / count, rows.dtype)

    def body(_, carry):
        weights, ahead, momentum = carry
        new = onto_simplex(ahead - pace * mm(gram, ahead))
        turned = jnp.sum((ahead - new) * (new - weights)) > 0
        momentum, share = accelerated(momentum, turned)
        return new, new + share * (new - weights), momentum

    one = jnp.ones((), rows.dtype)
    weights, *_ = lax.fori_loop(0, ITERATIONS, body, (start, start, one))
    return mm(weights, rows)


def onto_simplex(v: Array) -> Array:
    """The nearest vector with nonnegative entries that sum to one."""
    falling = jnp.sort(v)[::-1]
    excess = jnp.cumsum(falling) - 1
    order = jnp.arange(1, v.size + 1, dtype=v.dtype)
    last = jnp.sum(falling * order > excess)
    return jnp.maximum(v - excess[last - 1] / last.astype(v.dtype), 0)
