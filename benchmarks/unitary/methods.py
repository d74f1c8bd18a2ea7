"""The methods compared: from a problem and a number of steps to runs of it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import cdopt_jax as cdx
from benchmarks.shared.timing import compiled, timed
from benchmarks.unitary.problems import UNITARY, Problem
from benchmarks.unitary.pymanopt_group import pymanopt_run
from benchmarks.unitary.riemannian_adam import riemannian_adam
from benchmarks.unitary.trace import Trace, made, tracer

RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
LOOKS = 50
"""How often a run of an Optax optimiser is looked at."""


class Method(NamedTuple):
    """A method of the list.

    Attributes:
        label: Its name in tables and figures.
        prepare: From a problem and a number of steps to a function that runs it, with a
            rate if it has one, and returns the trace.
        rated: Whether it has a rate.
        ours: Whether it is of this package.
    """

    label: str
    prepare: Callable[[Problem, int], Callable[..., Trace]]
    rated: bool
    ours: bool = False


def optax_runs(
    problem: Problem, steps: int, *, make: Callable[[Any], Any]
) -> Callable[[float], Trace]:
    """Runs of an Optax optimiser whose rate falls to zero along a cosine.

    The rate is an argument of one program, which serves the whole grid.
    """
    every = max(steps // LOOKS, 1)
    fall = optax.cosine_decay_schedule(1.0, steps)

    def several(x, state, rate):
        tx = make(lambda count: rate * fall(count))

        def one(carry, _):
            x, state = carry
            # Optax expects the direction of steepest ascent.
            updates, state = tx.update(jnp.conj(jax.grad(problem.f)(x)), state, x)
            return (optax.apply_updates(x, updates), state), None

        return jax.lax.scan(one, (x, state), length=every)[0]

    start = problem.start
    memory = make(fall).init(start)
    call = compiled(several, start, memory, jnp.asarray(1.0)).call
    timed(call, start, memory, jnp.asarray(1.0))
    points_traced = tracer(problem)

    def run(rate):
        x, state, rate = start, memory, jnp.asarray(rate)
        points, clock = [x], [0.0]
        for _ in range(steps // every):
            (x, state), seconds = timed(call, x, state, rate)
            points.append(x)
            clock.append(clock[-1] + seconds)
        return points_traced(range(0, every * len(points), every), clock, points)

    return run


def minimize_run(problem: Problem, steps: int) -> Trace:
    """A run of `cdx.minimize`; the first one, which compiles, does not count."""

    def solve():
        return cdx.minimize(
            problem.f, problem.start, UNITARY, tol=1e-10, max_steps=steps
        )

    solve()
    course = solve().history
    return made(problem, course.step, course.seconds, course.value, course.feasibility)


def _constrained_adam(schedule):
    return cdx.constrain(optax.adam(schedule), UNITARY)


def _constrained_momentum(schedule):
    return cdx.constrain(optax.sgd(schedule, momentum=0.9), UNITARY)


METHODS = {
    "constrain-adam": Method(
        label="constrain(adam)",
        prepare=partial(optax_runs, make=_constrained_adam),
        rated=True,
        ours=True,
    ),
    "constrain-momentum": Method(
        label="constrain(sgd, momentum)",
        prepare=partial(optax_runs, make=_constrained_momentum),
        rated=True,
        ours=True,
    ),
    "minimize": Method(
        label="minimize",
        prepare=partial(partial, minimize_run),
        rated=False,
        ours=True,
    ),
    "riemannian-adam": Method(
        label="Riemannian Adam (qgoptax)",
        prepare=partial(optax_runs, make=riemannian_adam),
        rated=True,
    ),
    "pymanopt": Method(
        label="pymanopt CG, as installed",
        prepare=partial(
            partial, pymanopt_run, optimizer="ConjugateGradient", mended=False
        ),
        rated=False,
    ),
    "pymanopt-mended": Method(
        label="pymanopt CG, group mended",
        prepare=partial(partial, pymanopt_run, optimizer="ConjugateGradient"),
        rated=False,
    ),
    "pymanopt-trust": Method(
        label="pymanopt trust regions, group mended",
        prepare=partial(partial, pymanopt_run, optimizer="TrustRegions"),
        rated=False,
    ),
}
"""Under the name of their records."""
