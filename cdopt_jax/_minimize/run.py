"""A run on the host: piece by piece, with an eye on the clock and on the user."""

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax import Array

from cdopt_jax._errors import error
from cdopt_jax._leaves.structure import Structure

from .loop import Course, Ending, Opening, Report
from .phase_data import looks
from .pieces import courses
from .programs import Compiled, on_one_device, programs
from .result import CERTIFIED, DIVERGED, INTERRUPTED, STALLED, STOPPED, History, Info
from .setup import Data, Setup
from .static import as_array

Callback = Callable[[Info], Any]

Watch = Callable[[Info], bool]
"""Called with each look at a run; true if the run is to stop."""

EVERY_SECONDS = 1.0
"""How often a line is written where there is no bar."""


class Ended(NamedTuple):
    """A run that has ended.

    Attributes:
        end: The end, as the user sees it; of many starts, the best one.
        params: The parameters at the end; of many starts, all of them.
        rows: The history, a row for each look.
        kinked: Whether the run stalled because f has kinks.
        stopped: The status if the user has stopped it, or else zero.
        seconds: Spent on steps.
        compile_seconds: Spent on compilation.
        values: The values at the end of each start, if there are many.
        best: The index of the best start, if there are many.
        scale: The scale of the gradient at the start.
    """

    end: Ending
    params: Any
    rows: list[Info]
    kinked: bool
    stopped: int
    seconds: float
    compile_seconds: float
    values: Array | None
    best: tuple[int, ...]
    scale: float

    def after(self, before: "Ended") -> "Ended":
        """The two as one run."""
        rows = [
            row._replace(seconds=before.seconds + row.seconds)
            for row in self.rows[1:] or self.rows[-1:]
        ]
        return self._replace(
            rows=[*before.rows, *rows],
            scale=before.scale,
            stopped=self.stopped or before.stopped,
            seconds=before.seconds + self.seconds,
            compile_seconds=before.compile_seconds + self.compile_seconds,
        )

    def with_status(self, status: int) -> "Ended":
        """The same with another status."""
        return self._replace(end=self.end._replace(status=as_array(status, np.int32)))


class Begun(NamedTuple):
    """A run that has begun.

    Attributes:
        compiled: The programs.
        opened: The start.
        later: The courses after the start.
        seconds: Spent on the start.
        compile_seconds: Spent on compilation.
    """

    compiled: Compiled
    opened: Opening
    later: Iterator[Course]
    seconds: float
    compile_seconds: float


def begin(
    setup: Setup,
    data: Data,
    x0: optax.Params,
    *,
    attempt: int,
    taken: int,
    budget: int,
    many: int,
) -> Begun:
    """The programs, compiled where they are not yet, and the start of the run.

    The budget is the most steps, those ``taken`` before the start included.
    """
    kept = programs(setup, many=many > 0)
    shape = (many,) if many else ()
    numbers = (np.full(shape, number, np.int32) for number in (attempt, taken))
    given = (data, x0, *numbers)
    alone = on_one_device(given)
    if alone:
        compiled, compile_seconds = kept.compile(*given)
    else:
        compiled, compile_seconds = kept.jitted(), 0.0
    began = time.perf_counter()
    opened = compiled["opening"](*given)

    def advance(course, until):
        numbers = np.int32(until), np.int32(budget)
        return compiled["advance"](data, opened.prepared, course, *numbers)

    # Programs that sum over devices must not run side by side.
    later = courses(advance, opened.course, looks(taken, budget), ahead=alone)
    next(later)
    jax.block_until_ready(opened)
    return Begun(
        compiled=compiled,
        opened=opened,
        later=later,
        seconds=time.perf_counter() - began,
        compile_seconds=compile_seconds,
    )


def finish(setup: Setup, data: Data, begun: Begun, watch: Watch) -> Ended:
    """The rest of a run that has begun."""
    prepared, course = begun.opened.prepared, begun.opened.course
    compiled, seconds = begun.compiled, begun.seconds
    rows = [_row(prepared, course, seconds)]
    stopped, began, watched = 0, time.perf_counter(), 0.0
    try:
        while not np.all(np.asarray(course.ended)):
            later = next(begun.later, None)
            if later is None:
                break
            course, now = later, time.perf_counter()
            rows.append(_row(prepared, course, seconds + now - began - watched))
            seen = time.perf_counter()
            enough = watch(rows[-1])
            watched += time.perf_counter() - seen
            if enough:
                stopped = STOPPED
                break
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    end = jax.block_until_ready(compiled["ending"](data, prepared, course))
    seconds += time.perf_counter() - began - watched
    kinked, values, params, best = False, None, end.params, ()
    if np.ndim(course.value):
        values = end.value
        # A lost run may have a low value, and is no result.
        rank = np.where(np.asarray(end.status) == DIVERGED, np.inf, np.asarray(values))
        best = (int(np.argmin(np.where(np.isnan(rank), np.inf, rank))),)
        end = jax.tree.map(lambda a: a[best], end)
    else:
        stalled = int(end.status) == STALLED
        kinked = stalled and bool(setup.method.kinked(course.state))
    if stopped and int(end.status) != CERTIFIED:
        end = end._replace(status=as_array(stopped, np.int32))
    rows[-1] = Info(
        step=int(end.steps),
        value=float(end.value),
        feasibility=float(end.feasibility),
        stationarity=float(end.stationarity),
        seconds=seconds,
    )
    return Ended(
        end=end,
        params=params,
        rows=rows,
        kinked=kinked,
        stopped=stopped,
        seconds=seconds,
        compile_seconds=begun.compile_seconds,
        values=values,
        best=best,
        scale=float(np.max(np.asarray(prepared.scale) / np.asarray(prepared.unit))),
    )


def check_start(report: Report, structure: Structure) -> None:
    """Raise on a start, or metrics, from which no run can begin."""
    if not np.all(np.asarray(report.finite)):
        raise error("x0 must be finite; it holds infinite or NaN entries.")
    for index, definite in enumerate(report.definite):
        if not np.all(np.asarray(definite)):
            raise error(
                f"B must be positive definite; {structure.describe(index)}, and its B "
                "has no Cholesky factor in the precision of the leaf. Write B + ε·I if "
                "it is singular."
            )
    if not np.all(np.asarray(report.full_rank)):
        raise error(
            "x0 has no nearest point on the manifold: a constrained leaf is "
            "rank-deficient, or its B is not positive definite. Start from "
            "stiefel.random, or add a small random matrix first."
        )
    value = float(np.ravel(np.asarray(report.value))[0])
    if not np.isfinite(value):
        raise error(f"the objective is {value} at x0; start where it is finite.")
    if not np.ravel(np.asarray(report.smooth))[0]:
        raise error(
            "the gradient of the objective is infinite or NaN at x0, though the "
            "objective is finite; look for a square root or a division at zero."
        )


def history(rows: list[Info]) -> History:
    """The rows as columns."""
    return History(*(np.asarray(column) for column in zip(*rows, strict=True)))


def _row(prepared, course, seconds):
    """Of many starts, the one that is lowest."""
    value = np.asarray(course.value) / np.asarray(prepared.unit)
    at = np.nanargmin(np.where(np.isnan(value), np.inf, value)) if value.ndim else ()
    unit = np.asarray(prepared.unit)[at]
    return Info(
        step=int(np.asarray(course.steps)[at]),
        value=float(value[at]),
        feasibility=float(np.asarray(course.feasibility)[at]),
        stationarity=float(np.asarray(course.stationarity)[at] / unit),
        seconds=seconds,
    )


class Progress:
    """A bar by tqdm if it is installed, or else a line now and then.

    Args:
        most: The most steps.
    """

    def __init__(self, most: int):
        self._said = 0.0
        self._bar: Any = None
        if importlib.util.find_spec("tqdm"):
            self._bar = importlib.import_module("tqdm").tqdm(
                total=most, unit="step", leave=True
            )

    def __call__(self, info: Info) -> None:
        """Show where a run stands."""
        text = (
            f"value {info.value:.6g}, stationarity {info.stationarity:.1e}, "
            f"feasibility {info.feasibility:.1e}"
        )
        if self._bar is not None:
            self._bar.update(info.step - self._bar.n)
            self._bar.set_postfix_str(text)
        elif info.seconds - self._said >= EVERY_SECONDS:
            self._said = info.seconds
            sys.stderr.write(f"step {info.step}, {info.seconds:.1f} s: {text}\n")

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()
