"""Runs of a solver: compiled once, timed in chunks, judged between them."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import cdopt_jax as cdx
from benchmarks.shared.problems import Problem
from benchmarks.shared.timing import alone, compiled, timed
from benchmarks.solvers.signature import Solver

REPEATS, BRIEF = 9, 0.3
"""How often a run is timed if it takes no more than so many seconds. Those of
milliseconds may take a quarter longer a minute later."""

Times = list[tuple[float, float]]
"""For each record of a run the seconds of the steps before it, and those since the
call."""


class Record(NamedTuple):
    """What is known of one iterate.

    Attributes:
        step: How many iterations came before it.
        seconds: How long they took, without compilation and judging.
        value: The objective f + r there.
        projected_value: The objective at its projection to the manifold.
        feasibility: ‖XᵀBX − I‖_F.
    """

    step: int
    seconds: float
    value: float
    projected_value: float
    feasibility: float


class Trace(NamedTuple):
    """A run.

    Attributes:
        x: The last iterate.
        projected: Its projection to the manifold.
        records: What was recorded, the start first.
        compile_seconds: How long compilation took.
        walls: The seconds from the call to each record, if they are more than those of
            the steps.
        again: The same run once more, timed and not judged, if it can be run again.
    """

    x: jax.Array
    projected: jax.Array
    records: list[Record]
    compile_seconds: float
    walls: list[float] | None = None
    again: Callable[[], Times] | None = None

    @property
    def diverged(self) -> bool:
        """Whether the run ended at a point whose objective is not a number."""
        last = self.records[-1]
        return not (math.isfinite(last.value) and math.isfinite(last.projected_value))


Stop = Callable[[Record], bool]
Judge = Callable[[int, float, jax.Array], tuple[Record, jax.Array]]


def judge(problem: Problem) -> Judge:
    """From a step, its seconds and an iterate to a record and the projection."""

    @jax.jit
    def measure(x):
        (feasibility,) = cdx.feasibility(x, problem.mask).values()
        projected = cdx.project(x, problem.mask)
        found = {
            "value": problem.value(x),
            "projected_value": problem.value(projected),
            "feasibility": feasibility,
        }
        return found, projected

    def record(step, seconds, x):
        found, projected = measure(x)
        values = {name: float(value) for name, value in found.items()}
        return Record(step=step, seconds=seconds, **values), projected

    return record


@alone
def in_turns(traces: dict[str, Trace]) -> dict[str, Trace]:
    """The same runs with medians of their times, which are taken in turns."""
    brief = {
        name: trace
        for name, trace in traces.items()
        if trace.again is not None and trace.records[-1].seconds <= BRIEF
    }
    found: dict[str, list[Times]] = {name: [] for name in brief}
    for _ in range(REPEATS):
        for name, trace in brief.items():
            assert trace.again is not None
            found[name].append(trace.again())
    return traces | {name: _timed(brief[name], times) for name, times in found.items()}


def _timed(trace: Trace, times: list[Times]) -> Trace:
    spent, walls = np.median(np.asarray(times), axis=0).T.tolist()
    pairs = zip(trace.records, spent, strict=True)
    records = [record._replace(seconds=seconds) for record, seconds in pairs]
    return trace._replace(records=records, walls=walls)


@alone
def run(
    solver: Solver,
    problem: Problem,
    *,
    steps: int,
    every: int = 1,
    seconds: float = math.inf,
    stop: Stop | None = None,
) -> Trace:
    """Run a solver until a number of steps or seconds, until told to, or divergence.

    What the solver does before its first step is timed too, and is in the first
    record.

    Args:
        solver: The solver.
        problem: What it is to solve.
        steps: How many iterations it may take.
        every: How many are run between two records.
        seconds: How long it may run, looked at after each record.
        stop: From a record to whether the run is to end there.

    Returns:
        The run; `Trace.diverged` says whether it ended at a NaN.
    """
    if steps < 0 or every < 1:
        raise ValueError(f"run: needs steps ≥ 0 and every ≥ 1; got {steps=}, {every=}.")
    start = jnp.asarray(problem.start)

    # The start is an argument: of a constant, XLA would do the work as it compiles.
    def begin(x):
        return solver.init(problem._replace(start=x))

    def advance(how_many, state):
        return lax.fori_loop(
            0, how_many, lambda _, state: solver.step(problem, state), state
        )

    first = compiled(begin, start)
    # The first call of a program takes milliseconds more than later ones.
    timed(first.call, start)
    state, spent = timed(first.call, start)
    chunk = compiled(advance, jnp.asarray(every), state)
    timed(chunk.call, jnp.asarray(1), state)
    record_of = judge(problem)
    record, projected = record_of(0, spent, solver.point(state))
    records = [record]
    chunks = []
    step = 0
    while step < steps and spent < seconds:
        if not math.isfinite(record.value) or (stop and stop(record)):
            break
        how_many = min(every, steps - step)
        state, took = timed(chunk.call, jnp.asarray(how_many), state)
        chunks.append(how_many)
        step, spent = step + how_many, spent + took
        record, projected = record_of(step, spent, solver.point(state))
        records.append(record)

    def again():
        at, spent = timed(first.call, start)
        times = [spent]
        for how_many in chunks:
            at, took = timed(chunk.call, jnp.asarray(how_many), at)
            times.append(times[-1] + took)
        return [(spent, spent) for spent in times]

    return Trace(
        x=solver.point(state),
        projected=projected,
        records=records,
        compile_seconds=first.seconds + chunk.seconds,
        again=again,
    )
