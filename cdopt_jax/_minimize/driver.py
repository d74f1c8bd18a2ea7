"""Runs a method: in pieces that grow, looking at the course after each."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from cdopt_jax._minimize.common import Method, chosen
from cdopt_jax._minimize.landscape import Landscape, Point
from cdopt_jax._minimize.result import (
    BUDGET,
    CERTIFIED,
    DIVERGED,
    INTERRUPTED,
    STALLED,
    History,
)

GROWTH, FEWEST = 1.05, 10


class Course(NamedTuple):
    """Where a run stands after a piece.

    Attributes:
        state: The method's state.
        steps: How many were taken.
        value: The objective.
        feasibility: The largest ‖xᵀBx − I‖_F.
        stationarity: The certificate.
        status: Whether and why it has ended; `BUDGET` while it goes on.
        ended: Whether it has.
    """

    state: Any
    steps: Array
    value: Array
    feasibility: Array
    stationarity: Array
    status: Array
    ended: Array


class Plan(NamedTuple):
    """What is to be run.

    Attributes:
        land: The landscape by which the run is judged.
        draw: From a key to the landscape of a step; None if it is always ``land``.
        method: The method.
        tol: The tolerance of its certificate.
        budget: The most steps.
        taken: How many of them were taken before, with another method.
    """

    land: Landscape
    draw: Callable[[Array], Landscape] | None
    method: Method
    tol: Array
    budget: int
    taken: int = 0

    def pieces(self) -> list[int]:
        """After how many steps to look."""
        looks, at = [], self.taken
        while at < self.budget:
            at = min(max(at + FEWEST, round(GROWTH * at)), self.budget)
            looks.append(at)
        return looks

    def init(self, x: Point, key: Array) -> Any:
        """The state at the start.

        Without weak types, which steps would take off: it would be compiled again.
        """
        state = self.method.init(self.land, x, key)
        return jax.tree.map(lambda a: lax.convert_element_type(a, a.dtype), state)

    def begin(self, state: Any) -> Course:
        """The course at its start."""
        return self._judged(state, jnp.asarray(self.taken, jnp.int32))

    def walk(self, course: Course, until: Array, key: Array) -> tuple[Any, Array]:
        """The state at a later step, unless it ends before, and that step."""
        method = self.method

        def goes_on(carry):
            state, steps = carry
            more = (steps < until) & ~method.stalled(state)
            if method.each_step:
                more = more & ~(method.residual(self.land, state) <= self.tol)
            return more

        def body(carry):
            state, steps = carry
            land = self.land
            if self.draw is not None:
                land = self.draw(jax.random.fold_in(key, steps))
            return method.step(land, state), steps + 1

        return lax.while_loop(goes_on, body, (course.state, course.steps))

    def judge(self, course: Course, state: Any, steps: Array) -> Course:
        """The course at a later state.

        A run that has ended, or whose new point is no point, stays where it was.
        """
        judged = self._judged(state, steps)
        lost = judged.status == DIVERGED
        kept = course._replace(
            status=jnp.where(course.ended, course.status, DIVERGED),
            ended=jnp.ones((), bool),
        )
        stay = course.ended | lost
        return chosen(stay, kept, judged)

    def certify(self, course: Course) -> Course:
        """The course with its certificate, where that is too dear on the way."""
        if self.method.each_step:
            return course
        residual = self.method.residual(self.land, course.state)
        met = (residual <= self.tol) & (course.status != DIVERGED)
        return course._replace(
            stationarity=residual.astype(course.stationarity.dtype),
            status=jnp.where(met, CERTIFIED, course.status),
        )

    def _judged(self, state, steps):
        method, land = self.method, self.land
        x = method.point(land, state)
        value = land.value(x)
        residual = jnp.asarray(jnp.nan, value.dtype)
        if method.each_step:
            residual = method.residual(land, state).astype(value.dtype)
        status = jnp.select(
            [~jnp.isfinite(value), residual <= self.tol, method.stalled(state)],
            [DIVERGED, CERTIFIED, STALLED],
            BUDGET,
        )
        ended = (status != BUDGET) | (steps >= self.budget)
        feasibility = land.feasibility(x)
        return Course(state, steps, value, feasibility, residual, status, ended)


def run_traced(plan: Plan, x: Point, key: Array) -> tuple[Course, History]:
    """All of it as one program, for ``jit`` and ``vmap``."""
    looks = jnp.asarray(plan.pieces(), jnp.int32)
    begun = plan.begin(plan.init(x, key))

    def piece(course, until):
        new = plan.judge(course, *plan.walk(course, until, key))
        row = _row(new, jnp.nan)
        return new, tuple(jnp.where(course.ended, jnp.nan, v) for v in row)

    course, rows = lax.scan(piece, begun, looks)
    course = plan.certify(course)
    first = [jnp.asarray(v)[None] for v in _row(begun, jnp.nan)]
    columns = [jnp.concatenate(c) for c in zip(first, rows, strict=True)]
    return course, History(*columns)


def run(
    plan: Plan, x: Point, key: Array, *, spent: float = 0.0
) -> tuple[Course, History]:
    """Piece by piece, so that it can be interrupted; compiling and judging not timed.

    Nor is the first call of a program, which takes milliseconds more than later ones:
    here it takes one step, for nothing.

    Args:
        plan: What is to be run.
        x: Where it starts.
        key: For what it draws.
        spent: The seconds that were needed to get there.
    """
    init = jax.jit(plan.init)
    timed(init, x, key)
    state, seconds = timed(init, x, key)
    seconds += spent
    course = jax.jit(plan.begin)(state)
    walk: Any = None
    judge = jax.jit(plan.judge)
    rows = [_row(course, seconds)]
    try:
        for until in plan.pieces():
            if course.ended:
                break
            end = jnp.asarray(until, jnp.int32)
            if walk is None:
                walk = jax.jit(plan.walk)
                timed(walk, course, course.steps + 1, key)
            reached, took = timed(walk, course, end, key)
            seconds += took
            course = judge(course, *reached)
            rows.append(_row(course, seconds))
        course = jax.jit(plan.certify)(course)
        rows[-1] = _row(course, seconds)
    except KeyboardInterrupt:
        course = course._replace(status=jnp.asarray(INTERRUPTED, jnp.int32))
    return course, History(*(np.array(c) for c in zip(*rows, strict=True)))


def timed(program: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What a program returns, and the seconds that it took."""
    began = time.perf_counter()
    result = jax.block_until_ready(program(*arguments))
    return result, time.perf_counter() - began


def _row(course, seconds):
    looks = (course.steps, course.value, course.feasibility, course.stationarity)
    return (*looks, seconds)
