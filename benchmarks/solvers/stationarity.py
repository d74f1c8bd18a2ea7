"""How far a point of the manifold is from being stationary, alike for all solvers."""

import jax
import jax.numpy as jnp

import cdopt_jax as cdx
from benchmarks.shared.methods.proximal import solve_tangential
from benchmarks.shared.problems import Problem


def stationarity(problem: Problem, x: jax.Array) -> float:
    """The norm of the projected gradient, or what stands for it.

    With a regularizer it is ‖Y‖/η for the tangential proximal step Y, solved to high
    accuracy, with η the inverse curvature of f at x; without, and f not smooth, the
    distance of zero from the hull of gradients sampled around x. With a regularizer and
    a metric there is none, and NaN is returned.
    """
    if problem.regularizer is not None:
        if problem.mask is not None:
            return float("nan")
        return float(jax.jit(lambda x: _proximal(problem, x))(x))
    if problem.smooth:
        g = jax.grad(problem.f)(x)
        (found,) = cdx.stationarity(x, g, problem.mask).values()
        return float(found)
    result = cdx.minimize(problem.f, x, problem.mask, method="geometric", max_steps=1)
    return float(result.stationarity)


def _proximal(problem, x):
    r = problem.regularizer
    assert r is not None
    g = jax.grad(problem.f)(x)
    unit = x / jnp.linalg.norm(x)
    _, bent = jax.jvp(jax.grad(problem.f), (x,), (unit,))
    rate = 1 / jnp.maximum(jnp.linalg.norm(bent), 1e-12)
    solved = solve_tangential(
        x,
        rate * g,
        lambda z: rate * r.value(z),
        lambda z: r.prox(z, rate),
        jnp.zeros((x.shape[1], x.shape[1]), x.dtype),
        tolerance=1e-10,
    )
    return jnp.linalg.norm(solved.y) / rate
