"""The programs of a run: how it starts, how it goes on, and how it ends.

`programs` compiles and keeps them; `run` calls them one after the other, and `traced`
composes them into one program for ``jit`` and ``vmap``.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from cdopt_jax._math.products import real_dtype

from .method import MethodState, choose, either
from .nearby import NEARBY, perturbed
from .problem import Look
from .result import BUDGET, CERTIFIED, DIVERGED, INFEASIBLE, STALLED
from .setup import Data, Prepared, Setup, on_batch, own_feasibility, problem_of

NEAR = 10
"""How many times the tolerance a certificate may be for its curvature to be computed
anew. The curvature that was seen last stands in for it before."""


class Course(NamedTuple):
    """Where a run stands.

    Attributes:
        state: The state of the method.
        steps: How many were taken.
        value: The objective.
        feasibility: The largest ‖xᵀBx − I‖_F.
        stationarity: The certificate.
        tolerance: What it must fall below.
        curvature: The change of the gradient over the length of x, as it was last seen.
        status: Whether and why the run has ended; `BUDGET` while it goes on.
        ended: Whether it has.
    """

    state: MethodState
    steps: Array
    value: Array
    feasibility: Array
    stationarity: Array
    tolerance: Array
    curvature: Array
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


def opening(
    setup: Setup, data: Data, x0: optax.Params, attempt: Array, taken: Array
) -> Opening:
    """The start of a run after so many steps taken.

    It is at x0 in the first attempt, which is number zero, and near to it in others.
    """
    problem = problem_of(setup, data, None)
    factorised = problem.coordinates.factorised()
    definite = [
        jnp.ones((), bool) if factor is None else jnp.all(jnp.isfinite(factor))
        for factor in factorised.factors
    ]
    if setup.method.factorises:
        problem = problem._replace(coordinates=factorised)
    given = perturbed(setup, problem, problem.coordinates.read(x0), attempt)
    x = problem.manifold.project(given)
    start = problem.coordinates.write(x)
    pairs = zip(jax.tree.leaves(x0), jax.tree.leaves(start), strict=True)
    dtype = real_dtype(x[0].dtype)
    moved = [jnp.max(jnp.abs(b - a), initial=0).astype(dtype) for a, b in pairs]
    look = problem.look(x)
    unit = _unit(look)
    problem = problem._replace(unit=unit)
    # XLA would take the unit out of sums of squares, where its square overflows.
    look = lax.optimization_barrier(
        Look(*(optax.tree.scale(unit, part) for part in look))
    )
    state = _strong(setup.method.init(problem, x, look, data.key))
    slope, curvature = look.sizes
    scale = _scale(setup, slope, curvature)
    # A perturbed start must not count as stationary at once.
    tol = jnp.where(attempt > 0, jnp.minimum(data.tol, NEARBY), data.tol)
    prepared = Prepared(
        factors=problem.coordinates.factors,
        unit=unit,
        scale=scale,
        tol=tol.astype(data.tol.dtype),
    )
    tolerance = prepared.tol * scale
    problem = problem._replace(tolerance=tolerance)
    stationarity = setup.method.stationarity(problem, state, x, look)
    stationary = stationarity <= tolerance
    if not setup.method.in_loop:
        stationarity = jnp.asarray(jnp.nan, look.value.dtype)
    smooth = jnp.isfinite(slope)
    feasibility = own_feasibility(setup, data, problem.coordinates.write(x))
    met = (stationarity <= tolerance) & _feasible(feasibility)
    status = jnp.where(met, CERTIFIED, jnp.where(smooth, BUDGET, DIVERGED))
    course = Course(
        state=state,
        steps=jnp.asarray(taken, jnp.int32),
        value=look.whole_value,
        feasibility=feasibility,
        stationarity=stationarity.astype(look.value.dtype),
        tolerance=tolerance,
        curvature=curvature,
        status=status.astype(jnp.int32),
        ended=status != BUDGET,
    )
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(x0)]
    report = Report(
        moved=jnp.max(jnp.stack(moved)),
        finite=jnp.all(jnp.stack(finite)),
        full_rank=problem.manifold.feasibility(x) < 0.1,
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

    def met(state):
        return method.residual(problem, state) <= course.tolerance

    # The certificate of a look may be stricter. Where the last one was, steps go on to
    # the next, or there would be a look after each.
    stricter = met(course.state) if method.in_loop else False

    def goes_on(carry):
        state, steps = carry
        more = (steps < until) & ~method.stalled(state) & ~course.ended
        return more & (stricter | ~met(state)) if method.in_loop else more

    def body(carry):
        state, steps = carry
        drawn = problem
        if setup.batch is not None:
            key = jax.random.fold_in(data.key, steps)
            drawn = problem._replace(f=on_batch(setup, data, setup.batch(key)))
        return method.step(drawn, state), steps + 1

    state, steps = lax.while_loop(goes_on, body, (course.state, course.steps))
    x = method.point(problem, state)
    always = method.smooth and not method.in_loop
    look = problem.look(x, bent=always)
    slope, curvature = look.sizes
    # Where gradient and curvature vanish together, nothing is small against both.
    least = jnp.finfo(look.value.dtype).eps ** 2 * prepared.scale

    def allowed(curvature):
        return jnp.maximum(prepared.tol * _scale(setup, slope, curvature), least)

    stationarity = jnp.asarray(jnp.nan, look.value.dtype)
    if method.in_loop:
        stationarity = method.stationarity(problem, state, x, look)
    if method.smooth and method.in_loop:
        # It takes as long as two values with their gradients, and is of use at the end.
        near = stationarity <= NEAR * allowed(course.curvature)
        near = near | method.stalled(state) | (steps >= budget)
        curvature = lax.cond(
            near, lambda: problem.look(x).sizes[1], lambda: course.curvature
        )
    tolerance = allowed(curvature)
    sound = jnp.isfinite(look.value) & jnp.isfinite(slope)
    feasibility = own_feasibility(setup, data, problem.coordinates.write(x))
    certified = stationarity <= tolerance
    status = jnp.select(
        [~sound, certified & _feasible(feasibility), certified, method.stalled(state)],
        [DIVERGED, CERTIFIED, INFEASIBLE, STALLED],
        BUDGET,
    )
    # The state is chosen apart, by one conditional, which copies it; that of a run that
    # had ended is the same.
    new = Course(
        state=(),
        steps=steps,
        value=look.whole_value,
        feasibility=feasibility,
        stationarity=stationarity.astype(look.value.dtype),
        tolerance=tolerance,
        curvature=curvature,
        status=status.astype(jnp.int32),
        ended=(status != BUDGET) | (steps >= budget),
    )
    # A run that has ended, or whose new point is no point, stays where it was.
    old = course._replace(state=())
    lost = old._replace(status=new.status, ended=jnp.ones((), bool))
    found = choose(course.ended, old, choose(sound, new, lost))
    return found._replace(state=either(sound, state, course.state))


def ending(setup: Setup, data: Data, prepared: Prepared, course: Course) -> Ending:
    """The end of a run."""
    method, unit = setup.method, prepared.unit
    problem = problem_of(setup, data, prepared)._replace(tolerance=course.tolerance)
    x = method.point(problem, course.state)
    params = problem.coordinates.write(x)
    proximal = method.sparse_parameters(problem, course.state, x)
    zeros = jnp.concatenate([(a == 0).ravel() for a in jax.tree.leaves(proximal)])
    stationarity, status = course.stationarity, course.status
    betas = method.betas(course.state)
    if not method.in_loop:
        stationarity = method.residual(problem, course.state)
        stationarity = stationarity.astype(course.stationarity.dtype)
    stricter = prepared.tol < data.tol
    tolerance = course.tolerance * jnp.where(stricter, data.tol / prepared.tol, 1)
    met = (stationarity <= tolerance) & (status != DIVERGED)
    certified = jnp.where(_feasible(course.feasibility), CERTIFIED, INFEASIBLE)
    status = jnp.where(met, certified, status).astype(jnp.int32)
    return Ending(
        params=params,
        projected=problem.coordinates.write(problem.manifold.project(x)),
        proximal=proximal,
        value=course.value / unit,
        feasibility=course.feasibility,
        stationarity=stationarity / unit,
        tolerance=tolerance / unit,
        sparsity=jnp.mean(zeros),
        steps=course.steps,
        status=status,
        beta=None if betas is None else setup.structure.by_path(betas / problem.unit),
    )


def _feasible(feasibility):
    """Whether a point is near enough to the manifold for a certificate."""
    return feasibility <= jnp.sqrt(jnp.finfo(feasibility.dtype).eps)


def _unit(look: Look) -> Array:
    """The power of two that makes the largest entry of the gradient about one."""
    pairs = zip(look.gradient, look.subgradient, strict=True)
    sizes = [jnp.maximum(jnp.abs(a), jnp.abs(b)) for a, b in pairs]
    largest = jnp.max(jnp.stack([jnp.max(a, initial=0) for a in sizes]))
    usable = jnp.isfinite(largest) & (largest > 0)
    power = jnp.round(jnp.log2(jnp.where(usable, largest, 1)))
    return jnp.ldexp(jnp.ones((), look.value.dtype), -power.astype(jnp.int32))


def _scale(setup, slope, curvature):
    """What the certificate is compared with.

    The size of the gradient at the point itself, and, since that may vanish at a
    solution, of its change over the length of x. Both are multiplied by what f is
    multiplied by.
    """
    scale = slope + (curvature if setup.method.smooth else 0)
    return jnp.where(jnp.isfinite(scale), scale, 0)


def _strong(tree):
    """Without weak types, which steps would take off: it would be compiled again."""
    return jax.tree.map(lambda a: lax.convert_element_type(a, a.dtype), tree)
