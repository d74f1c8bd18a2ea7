"""Many starts, for problems with many local minima: which of them leads lowest."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

import cdopt_jax as cdx
from benchmarks.shared.problems import Problem
from benchmarks.solvers.rivals import Solver

AHEAD = 500
"""How many steps of a rival tell where a start leads."""


def turned(problem: Problem) -> jax.Array:
    """As many starts as the problem asks for: its own, and other bases of its span."""
    x = problem.start
    order = x.shape[-1]
    shape = (problem.starts - 1, order, order)
    turns = cdx.stiefel.random(jax.random.key(problem.starts), shape, x.dtype)
    return jnp.concatenate([x[None], x @ turns])


def from_lowest(end: Callable[[jax.Array], jax.Array], problem: Problem) -> Problem:
    """The problem at the start from which a method ends lowest.

    Args:
        end: From a start to the point where the method ends, or is near its end.
        problem: The problem.
    """

    @jax.jit
    def value(x):
        return problem.value(cdx.project(x, problem.mask))

    starts = turned(problem)
    values = jnp.stack([value(end(x)) for x in starts])
    best = int(jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf)))
    return problem._replace(start=starts[best])


def after(solver: Solver, problem: Problem) -> Callable[[jax.Array], jax.Array]:
    """From a start to where a rival is after some steps."""

    @jax.jit
    def end(x):
        state = solver.init(problem._replace(start=x))
        return solver.point(
            lax.fori_loop(0, AHEAD, lambda _, s: solver.step(problem, s), state)
        )

    return end
