"""The programs of a run: how it starts, how it goes on, and how it ends.

Each is a function of arrays, made from a `Setup`, which is all that is known before
the arrays are. `programs` compiles and keeps them; `run` calls them one after the
other, and `traced` composes them into one program for ``jit`` and ``vmap``.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from cdopt_jax._math.products import real_dtype
from cdopt_jax.prox import Regularizer

from .checks import scalar
from .leaves import Leaves, Structure
from .method import Method, choose
from .nonnegative import Columns
from .phase import BOUND, Phase
from .points import Point, from_real_parts, real_parts
from .problem import Look, Problem
from .result import BUDGET, CERTIFIED, DIVERGED, INFEASIBLE, STALLED, UNSETTLED, History
from .static import Static

GROWTH, FEWEST = 1.05, 10
"""How much later each look at a run is than the one before, at least ten steps."""

JUDGES = 16
"""How many batches judge an objective that is known by batches alone."""

NOISE = 1e-3
"""The relative size of the perturbation of a start that is stationary already."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """All of a run that is not an array, and what identifies its programs.

    Attributes:
        f: The objective, which is identified by equality: a function defined again is
            another one.
        batch: From a key to the last argument of ``f``, or None.
        method: The method.
        structure: The structure of the parameters.
        args: The structure of the further arguments of ``f``.
        regularizer: The structure of the regularizer, or None.
        columns: The leaves with nonnegative orthonormal columns, or None.
    """

    f: Static
    batch: Callable[[Array], Any] | None
    method: Method
    structure: Structure
    args: Static
    regularizer: Static | None
    columns: Columns | None = None


class Data(NamedTuple):
    """The arrays of a run.

    Attributes:
        args: The arrays of the further arguments of ``f``.
        metrics: The metrics that are arrays.
        weights: The arrays of the regularizer.
        tol: The tolerance, relative to the scale of the objective.
        beta: The weight of the penalty, zero for the automatic one.
        strength: What r is multiplied by.
        key: For what is drawn.
        overlap: The weight of the overlap of nonnegative columns.
        allowed: Which entries of these columns may be nonzero.
    """

    args: list[Array]
    metrics: list[Array]
    weights: list[Array]
    tol: Array
    beta: Array
    strength: Array
    key: Array
    overlap: Array
    allowed: list[Array]


class Prepared(NamedTuple):
    """What is computed once from the data.

    Attributes:
        factors: The factor of each metric, or None.
        unit: The unit of the objective; see `Problem`.
        scale: The scale of the gradient at the start.
    """

    factors: list[Array | None]
    unit: Array
    scale: Array


class Course(NamedTuple):
    """Where a run stands.

    Attributes:
        state: The state of the method.
        steps: How many were taken.
        value: The objective.
        feasibility: The largest ‖xᵀBx − I‖_F.
        stationarity: The certificate.
        tolerance: What it must fall below.
        status: Whether and why the run has ended; `BUDGET` while it goes on.
        ended: Whether it has.
    """

    state: Any
    steps: Array
    value: Array
    feasibility: Array
    stationarity: Array
    tolerance: Array
    status: Array
    ended: Array


class Report(NamedTuple):
    """What is wrong with a start, where anything is.

    Attributes:
        moved: By how much the projection moved an entry of x0.
        finite: Whether x0 is finite.
        full_rank: Whether x0 has a nearest point on the manifold.
        definite: Whether each metric that is an array has a Cholesky factor.
        value: The objective.
        smooth: Whether the gradient is finite.
    """

    moved: Array
    finite: Array
    full_rank: Array
    definite: list[Array]
    value: Array
    smooth: Array


class Opening(NamedTuple):
    """The start of a run.

    Attributes:
        prepared: What is computed once.
        course: The first course.
        stationary: Whether the start meets the tolerance, and may be a saddle.
        report: What is wrong with the start.
    """

    prepared: Prepared
    course: Course
    stationary: Array
    report: Report


class Ending(NamedTuple):
    """The end of a run, as the user sees it."""

    params: Any
    projected: Any
    proximal: Any
    value: Array
    feasibility: Array
    stationarity: Array
    tolerance: Array
    sparsity: Array
    steps: Array
    status: Array
    beta: dict[str, Array] | None


def opening(setup: Setup, data: Data, x0: Any, noise: Array, taken: Array) -> Opening:
    """The start of a run.

    Args:
        setup: The setup.
        data: The arrays.
        x0: The parameters to start from.
        noise: The relative size of a perturbation of them, or zero.
        taken: How many steps were taken before.
    """
    problem = problem_of(setup, data, None)
    leaves = problem.leaves.factorised()
    definite = [
        jnp.ones((), bool) if factor is None else jnp.all(jnp.isfinite(factor))
        for factor in leaves.factors
    ]
    if setup.method.factorises:
        problem = problem._replace(leaves=leaves)
    given = problem.leaves.read(x0)
    x = problem.manifold.project(given)
    start = problem.leaves.write(x)
    pairs = zip(jax.tree.leaves(x0), jax.tree.leaves(start), strict=True)
    dtype = real_dtype(x[0].dtype)
    moved = [jnp.max(jnp.abs(b - a), initial=0).astype(dtype) for a, b in pairs]
    x = _perturbed(setup, problem, x, noise)
    look = problem.look(x)
    unit = _unit(look)
    problem = problem._replace(unit=unit)
    # XLA would take the unit out of sums of squares, where its square overflows.
    look = lax.optimization_barrier(
        Look(*(optax.tree.scale(unit, part) for part in look))
    )
    state = _strong(setup.method.init(problem, x, look, data.key))
    scale = _scale(setup, look)
    prepared = Prepared(factors=problem.leaves.factors, unit=unit, scale=scale)
    tolerance = data.tol * scale
    problem = problem._replace(tolerance=tolerance)
    stationarity = setup.method.stationarity(problem, state, x, look)
    stationary = stationarity <= tolerance
    if not setup.method.in_loop:
        stationarity = jnp.asarray(jnp.nan, look.value.dtype)
    smooth = jnp.isfinite(look.slope)
    feasibility = problem.leaves.feasibility(problem.leaves.write(x))
    met = (stationarity <= tolerance) & _feasible(feasibility)
    status = jnp.where(met, CERTIFIED, jnp.where(smooth, BUDGET, DIVERGED))
    course = Course(
        state=state,
        steps=jnp.asarray(taken, jnp.int32),
        value=look.whole_value,
        feasibility=feasibility,
        stationarity=stationarity.astype(look.value.dtype),
        tolerance=tolerance,
        status=status.astype(jnp.int32),
        ended=status != BUDGET,
    )
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(x0)]
    report = Report(
        moved=jnp.max(jnp.stack(moved)),
        finite=jnp.all(jnp.stack(finite)),
        full_rank=problem.manifold.feasibility(problem.leaves.read(start)) < 0.1,
        definite=definite,
        value=look.whole_value / unit,
        smooth=smooth,
    )
    return Opening(
        prepared=prepared,
        course=_strong(course),
        stationary=stationary,
        report=report,
    )


def advance(
    setup: Setup,
    data: Data,
    prepared: Prepared,
    course: Course,
    until: Array,
    budget: Array,
) -> Course:
    """The course at a later step, unless the run ends before."""
    method = setup.method
    problem = problem_of(setup, data, prepared)._replace(tolerance=course.tolerance)

    def goes_on(carry):
        state, steps = carry
        more = (steps < until) & ~method.stalled(state)
        if method.in_loop:
            # The certificate of a look may be stricter: one step at least.
            met = method.residual(problem, state) <= course.tolerance
            more = more & (~met | (steps == course.steps))
        return more & ~course.ended

    def body(carry):
        state, steps = carry
        drawn = problem
        if setup.batch is not None:
            key = jax.random.fold_in(data.key, steps)
            drawn = problem._replace(f=_on_batch(setup, data, setup.batch(key)))
        return method.step(drawn, state), steps + 1

    state, steps = lax.while_loop(goes_on, body, (course.state, course.steps))
    x = method.point(problem, state)
    look = problem.look(x)
    # Where gradient and curvature vanish together, nothing is small against both.
    least = jnp.finfo(look.value.dtype).eps ** 2 * prepared.scale
    tolerance = jnp.maximum(data.tol * _scale(setup, look), least)
    stationarity = jnp.asarray(jnp.nan, look.value.dtype)
    if method.in_loop:
        stationarity = method.stationarity(problem, state, x, look)
    sound = jnp.isfinite(look.value) & jnp.isfinite(look.slope)
    feasibility = problem.leaves.feasibility(problem.leaves.write(x))
    met = stationarity <= tolerance
    status = jnp.select(
        [~sound, met & _feasible(feasibility), met, method.stalled(state)],
        [DIVERGED, CERTIFIED, INFEASIBLE, STALLED],
        BUDGET,
    )
    new = Course(
        state=state,
        steps=steps,
        value=look.whole_value,
        feasibility=feasibility,
        stationarity=stationarity.astype(look.value.dtype),
        tolerance=tolerance,
        status=status.astype(jnp.int32),
        ended=(status != BUDGET) | (steps >= budget),
    )
    # A run that has ended, or whose new point is no point, stays where it was.
    lost = course._replace(status=new.status, ended=jnp.ones((), bool))
    return choose(course.ended, course, choose(sound, new, lost))


def ending(setup: Setup, data: Data, prepared: Prepared, course: Course) -> Ending:
    """The end of a run."""
    method, unit = setup.method, prepared.unit
    problem = problem_of(setup, data, prepared)._replace(tolerance=course.tolerance)
    x = method.point(problem, course.state)
    params = problem.leaves.write(x)
    proximal = method.sparse_parameters(problem, course.state, x)
    zeros = jnp.concatenate([(a == 0).ravel() for a in jax.tree.leaves(proximal)])
    stationarity, status = course.stationarity, course.status
    betas = method.betas(course.state)
    if not method.in_loop:
        stationarity = method.residual(problem, course.state)
        stationarity = stationarity.astype(course.stationarity.dtype)
        met = (stationarity <= course.tolerance) & (status != DIVERGED)
        end = jnp.where(_feasible(course.feasibility), CERTIFIED, INFEASIBLE)
        status = jnp.where(met, end, status)
    return Ending(
        params=params,
        projected=problem.leaves.write(problem.manifold.project(x)),
        proximal=proximal,
        value=course.value / unit,
        feasibility=course.feasibility,
        stationarity=stationarity / unit,
        tolerance=course.tolerance / unit,
        sparsity=jnp.mean(zeros),
        steps=course.steps,
        status=status,
        beta=None if betas is None else problem.leaves.by_path(betas / problem.unit),
    )


def looks(taken: int, budget: int) -> list[int]:
    """After how many steps to look at a run."""
    found, at = [], taken
    while at < budget:
        at = min(max(at + FEWEST, round(GROWTH * at)), budget)
        found.append(at)
    return found


def traced(
    setup: Setup, data: Data, x0: Any, phases: list[Phase]
) -> tuple[Ending, History]:
    """All of a run as one program, for ``jit`` and ``vmap``.

    Args:
        setup: The setup.
        data: The arrays.
        x0: The parameters to start from.
        phases: The phases of the run.
    """
    rows = max(len(looks(0, phase.budget)) for phase in phases)

    def phase(carry, options):
        before, taken, scale = carry
        budget = options.budget
        here, start = phase_data(setup, data, options, before, scale)
        # Both starts, plain and perturbed, by one program that is compiled once.
        both = lax.map(
            lambda noise: opening(
                setup, choose(noise > 0, nearby(here), here), start, noise, taken
            ),
            jnp.asarray([0, NOISE], data.tol.dtype),
        )
        plain, moved = (jax.tree.map(lambda a, i=i: a[i], both) for i in (0, 1))
        first = choose(plain.stationary, moved, plain)
        here = choose(plain.stationary, nearby(here), here)

        def piece(course, until):
            until = jnp.minimum(taken + until, budget)
            new = advance(setup, here, first.prepared, course, until, budget)
            return new, _row(first.prepared, new)

        offsets = looks(0, phases[-1].budget)
        offsets = jnp.asarray(offsets + offsets[-1:] * (rows - len(offsets)), jnp.int32)
        course, history = lax.scan(piece, first.course, offsets)
        # A start that was stationary is the end, unless there is a lower point nearby.
        gain = plain.course.value / plain.prepared.unit
        lower = course.value / first.prepared.unit < gain - _rounding(gain)
        # Values have r at its full strength, also where it is yet to count.
        lower = lower | (here.strength < 1)
        keep = plain.stationary & ~lower
        prepared = choose(keep, plain.prepared, first.prepared)
        course = choose(keep, plain.course, course)
        end = ending(setup, here, prepared, course)
        scale = jnp.where(scale > 0, scale, plain.prepared.scale / plain.prepared.unit)
        if setup.columns is not None:
            unsettled = (options.kind == BOUND) & setup.columns.overlapping(before)
            status = jnp.where(unsettled, UNSETTLED, end.status)
            end = end._replace(status=status.astype(jnp.int32))
        begun = _row(plain.prepared, plain.course)
        history = jax.tree.map(
            lambda a, b: jnp.concatenate([a[None], b]), begun, history
        )
        return (end.params, end.steps, scale), (end, history)

    columns = jax.tree.map(lambda *column: jnp.asarray(column), *phases)
    begin = (x0, jnp.zeros((), jnp.int32), jnp.zeros((), data.tol.dtype))
    _, (ends, histories) = lax.scan(phase, begin, columns)
    end = jax.tree.map(lambda a: a[-1], ends)
    history = jax.tree.map(lambda a: a.reshape(-1), histories)
    nan = jnp.full_like(history[1], jnp.nan)
    return end, History(*history, seconds=nan)


def phase_data(
    setup: Setup,
    data: Data,
    phase: Phase,
    start: Any,
    scale: float | Array,
    *,
    many: bool = False,
) -> tuple[Data, Any]:
    """The arrays of a phase, and its start.

    Args:
        setup: The setup.
        data: The arrays of the run.
        phase: The phase, of numbers or of arrays.
        start: The end of the phase before.
        scale: The scale of the gradient at the start of the run.
        many: Whether the starts have an axis of their own.
    """
    dtype = data.tol.dtype
    tol = jnp.where(phase.tol > 0, phase.tol, data.tol)
    here = data._replace(
        strength=jnp.asarray(phase.strength, dtype), tol=jnp.asarray(tol, dtype)
    )
    if setup.columns is None:
        return here, start
    assigned = partial(setup.columns.assigned, kind=jnp.asarray(phase.kind))
    start, allowed = (jax.vmap(assigned) if many else assigned)(start)
    overlap = jnp.asarray(phase.overlap * scale, dtype)
    return here._replace(overlap=overlap, allowed=allowed), start


def _row(prepared, course):
    unit = prepared.unit
    return (
        course.steps,
        course.value / unit,
        course.feasibility,
        course.stationarity / unit,
    )


def _feasible(feasibility):
    """Whether a point is near enough to the manifold for a certificate."""
    return feasibility <= jnp.sqrt(jnp.finfo(feasibility.dtype).eps)


def nearby(data: Data) -> Data:
    """The arrays for a perturbed start, which must not count as stationary at once."""
    return data._replace(tol=jnp.minimum(data.tol, 0.01 * NOISE).astype(data.tol.dtype))


def _rounding(value):
    return 100 * jnp.finfo(value.dtype).eps * jnp.abs(value)


def problem_of(setup: Setup, data: Data, prepared: Prepared | None) -> Problem:
    """The problem of a setup and its arrays."""
    args = setup.args.merge(data.args)
    regularizer: Regularizer | None = None
    if setup.regularizer is not None:
        regularizer = setup.regularizer.merge(data.weights)

    def f(params):
        value = _value(setup, params, args)
        if setup.columns is None:
            return value
        return value + data.overlap * setup.columns.overlap(params)

    if setup.columns is not None and regularizer is not None:
        regularizer = setup.columns.restricted(regularizer, data.allowed)

    if setup.batch is not None:
        f = _mean_over_batches(setup, data, setup.batch)
    return Problem(
        f=f,
        regularizer=regularizer,
        leaves=Leaves(
            structure=setup.structure,
            metrics=data.metrics,
            factors=prepared.factors
            if prepared
            else [None] * len(setup.structure.paths),
        ),
        unit=prepared.unit if prepared else 1.0,
        strength=data.strength,
        beta=data.beta,
    )


def _on_batch(setup, data, batch):
    args = setup.args.merge(data.args)
    return lambda params: _value(setup, params, (*args, batch))


def _value(setup, params, args):
    """The value of f, in the dtype of the parameters."""
    return scalar(setup.f.merge([])(params, *args)).astype(setup.structure.dtype)


def _mean_over_batches(setup, data, batch):
    """The objective averaged over batches that are the same throughout the run."""
    keys = jax.random.split(jax.random.fold_in(data.key, 1), JUDGES)
    batches = jax.vmap(batch)(keys)

    def value(params):
        return jnp.mean(
            lax.map(lambda one: _on_batch(setup, data, one)(params), batches)
        )

    return value


def _perturbed(setup: Setup, problem: Problem, x: Point, noise: Array) -> Point:
    # No random numbers: their generator takes as long to compile as a step does.
    waves = [
        jnp.cos(12.9898 * (1 + index + jnp.arange(a.size, dtype=a.dtype))).reshape(
            a.shape
        )
        for index, a in enumerate(real_parts(x))
    ]
    waves = from_real_parts(waves, x)
    size = noise * optax.tree.norm(x) / optax.tree.norm(waves)
    moved = optax.tree.add_scale(x, size, waves)
    if setup.columns is not None:
        moved = problem.prox(moved, jnp.zeros_like(noise), x)
    return choose(noise > 0, problem.manifold.dissolve(moved), x)


def _unit(look: Look) -> Array:
    """The power of two that makes the largest entry of the gradient about one."""
    entries = [*look.gradient, *look.subgradient]
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(a), initial=0) for a in entries]))
    usable = jnp.isfinite(largest) & (largest > 0)
    power = jnp.round(jnp.log2(jnp.where(usable, largest, 1)))
    return jnp.ldexp(jnp.ones((), look.value.dtype), -power.astype(jnp.int32))


def _scale(setup, look):
    """What the certificate is compared with.

    The size of the gradient at the point itself, and, since that may vanish at a
    solution, of its change over the length of x. Both are multiplied by what f is
    multiplied by.
    """
    scale = look.slope + (look.curvature if setup.method.smooth else 0)
    return jnp.where(jnp.isfinite(scale), scale, 0)


def _strong(tree):
    """Without weak types, which steps would take off: it would be compiled again."""
    return jax.tree.map(lambda a: lax.convert_element_type(a, a.dtype), tree)
