"""The methods compared: from a problem, a number of steps and a rate to a trace."""

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
from benchmarks.unitary.trace import Trace, made, traced

RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
LOOKS = 50
"""How often a run of an Optax optimiser is looked at."""


class Method(NamedTuple):
    """A method of the list.

    Attributes:
        label: Its name in tables and figures.
        run: From a problem and a number of steps, and a rate if it has one, to a trace.
        rated: Whether it has a rate.
        ours: Whether it is of this package.
    """

    label: str
    run: Callable[..., Trace]
    rated: bool
    ours: bool = False


def optax_run(
    problem: Problem, steps: int, rate: float, *, make: Callable[[Any], Any]
) -> Trace:
    """A run of an Optax optimiser whose rate falls to zero along a cosine."""
    every = max(steps // LOOKS, 1)
    # The rate is an argument of the program, which serves the whole grid.
    fall = optax.cosine_decay_schedule(1.0, steps)

    def several(x, state, rate):
        tx = make(lambda count: rate * fall(count))

        def one(carry, _):
            x, state = carry
            # Optax expects the direction of steepest ascent.
            updates, state = tx.update(jnp.conj(jax.grad(problem.f)(x)), state, x)
            return (optax.apply_updates(x, updates), state), None

        return jax.lax.scan(one, (x, state), length=every)[0]

    x = problem.start
    state, rate_there = make(fall).init(x), jnp.asarray(rate)
    call = compiled(several, x, state, rate_there).call
    timed(call, x, state, rate_there)
    points, clock = [x], [0.0]
    for _ in range(steps // every):
        (x, state), seconds = timed(call, x, state, rate_there)
        points.append(x)
        clock.append(clock[-1] + seconds)
    return traced(problem, range(0, every * len(points), every), clock, points)


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
        run=partial(optax_run, make=_constrained_adam),
        rated=True,
        ours=True,
    ),
    "constrain-momentum": Method(
        label="constrain(sgd, momentum)",
        run=partial(optax_run, make=_constrained_momentum),
        rated=True,
        ours=True,
    ),
    "minimize": Method(label="minimize", run=minimize_run, rated=False, ours=True),
    "riemannian-adam": Method(
        label="Riemannian Adam (qgoptax)",
        run=partial(optax_run, make=riemannian_adam),
        rated=True,
    ),
    "pymanopt": Method(
        label="pymanopt CG, as installed",
        run=partial(pymanopt_run, optimizer="ConjugateGradient", mended=False),
        rated=False,
    ),
    "pymanopt-mended": Method(
        label="pymanopt CG, group mended",
        run=partial(pymanopt_run, optimizer="ConjugateGradient"),
        rated=False,
    ),
    "pymanopt-trust": Method(
        label="pymanopt trust regions, group mended",
        run=partial(pymanopt_run, optimizer="TrustRegions"),
        rated=False,
    ),
}
"""Under the name of their records."""
