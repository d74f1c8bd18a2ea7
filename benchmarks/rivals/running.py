"""Runs that are timed between the looks at them, and the choice of learning rates."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from threadpoolctl import threadpool_limits

from benchmarks.rivals.methods import Contender, advance, start
from benchmarks.rivals.problems import Instance, Protocol, judge
from benchmarks.shared.timing import alone, compiled, timed

LOOK = 1.1
"""How many times the seconds of one look the next look comes."""

TUNING_STEPS = 200

LOST, NEAR = 10.0, 1e-2
"""The distance ‖XᵀBX − I‖_F from the manifold beyond which a run is lost, and the one
up to which a gap counts as met. POGO's first step at 800×600 leads to 1.0."""


def diverged(gap: float, feasibility: float, first: float) -> bool:
    """Whether a run is lost: twice the gap of the start, or far off the manifold.

    A gap far below zero is that of a point from which one step does not lead back.

    Args:
        gap: The relative gap.
        feasibility: The distance from the manifold.
        first: The gap at the start.
    """
    return not (abs(gap) <= max(1, 2 * first) and feasibility <= LOST)


def lost(looks: Any) -> bool:
    """Whether a run, by its looks, is lost at the end."""
    _, _, gap, off = looks[-1]
    return diverged(gap, off, looks[0][2])


def met(look: Any, gap: float) -> bool:
    """Whether a look, which may be without a gap, is at a gap, near the manifold."""
    _, _, here, off = look
    return here is not None and here <= gap and off <= NEAR


class Look(NamedTuple):
    """What is seen of a run.

    Attributes:
        step: After how many steps.
        seconds: What they took, without compilation and looks.
        gap: The relative gap.
        feasibility: ‖XᵀBX − I‖_F.
    """

    step: int
    seconds: float
    gap: float
    feasibility: float


class Watch:
    """Looks at a run when it is time to, and says when the run is over.

    Args:
        instance: The problem.
        gap: Where a run has arrived.
        seconds: How long it may take.
        steps: How many steps it may take.
    """

    def __init__(self, instance: Instance, gap: float, seconds: float, steps: float):
        self._judge = judge(instance)
        self._gap, self._seconds, self._steps = gap, seconds, steps
        self._next = 0.0
        self.looks: list[Look] = []

    def __call__(self, step: int, seconds: float, point: Any) -> bool:
        """Look, if it is time; return whether the run is over."""
        over = seconds >= self._seconds or step >= self._steps
        if not over and seconds < self._next:
            return False
        gap, off = self._judge(point)
        self.looks.append(Look(step=step, seconds=seconds, gap=gap, feasibility=off))
        self._next = LOOK * seconds
        return over or lost(self.looks) or met(self.looks[-1], self._gap)


def run(
    contender: Contender,
    instance: Instance,
    protocol: Protocol,
    setting: tuple[float, float],
    seconds: float,
) -> dict[str, Any]:
    """One run at a rate and a momentum, and the seconds to compile it."""
    scale = len(instance.start) ** -0.5 if contender.by_entry else 1.0
    dtype = instance.start.dtype
    given = (jnp.asarray(scale * setting[0], dtype), jnp.asarray(setting[1], dtype))
    state = jax.tree.map(jnp.array, start(contender, instance))
    step = advance(contender, instance, protocol.steps)
    program = compiled(step, state, instance.data, *given, donate=0)
    # The first call of a program takes longer than the others.
    spare = jax.tree.map(jnp.array, state)
    timed(program.call, spare, instance.data, *given)
    watch = Watch(instance, protocol.gap, seconds, protocol.steps or math.inf)
    count, spent = 0, 0.0
    with threadpool_limits(limits=protocol.threads, user_api="blas"):
        while not watch(count, spent, state.x):
            state, took = timed(program.call, state, instance.data, *given)
            count, spent = count + 1, spent + took
    return {
        "setting": setting,
        "compile": program.seconds,
        "looks": [list(look) for look in watch.looks],
    }


@alone
def tune(contender: Contender, protocol: Protocol, small: Instance) -> dict[str, Any]:
    """The rate and momentum that are best on the small problem, and all, best first.

    Those are the ones that take the fewest steps to the gap, or, if none arrives in
    `TUNING_STEPS`, whose gap is least then. That is the rule for all methods.
    """
    steps = None if protocol.steps is None else TUNING_STEPS
    look = judge(small)
    first, _ = look(small.start)
    step = jax.jit(advance(contender, small, steps))
    scale = len(small.start) ** -0.5 if contender.by_entry else 1.0
    tried = []
    for rate, momentum in contender.settings:
        state = start(contender, small)
        arrived, gap = TUNING_STEPS + 1, math.inf
        for count in range(1, TUNING_STEPS + 1):
            state = step(state, small.data, scale * rate, momentum)
            if count % 5 == 0:
                gap, off = look(state.x)
                if diverged(gap, off, first):
                    gap = math.inf
                    break
                if steps is None and gap <= protocol.gap and off <= NEAR:
                    arrived = count
                    break
        tried.append({"setting": (rate, momentum), "steps": arrived, "gap": gap})
    tried.sort(key=lambda t: (t["steps"], t["gap"]))
    return {"setting": tried[0]["setting"], "tried": tried}
