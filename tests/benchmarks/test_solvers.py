"""The rival solvers, against SciPy, NumPy and their own optimality conditions."""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

import cdopt_jax as cdx
from benchmarks.shared.methods.proximal import solve_tangential, tangent_prox
from benchmarks.shared.problems import Problem
from benchmarks.solvers.driving import BRIEF, REPEATS, Record, Trace, in_turns, run
from benchmarks.solvers.rivals import PACKAGES, RIVALS, Solver
from benchmarks.solvers.rivals.manpg import lipschitz
from benchmarks.solvers.rivals.riemannian_subgradient import riemannian_subgradient
from benchmarks.solvers.signature import row_weights
from tests.oracles import assert_close, normal, polar, spd


def spread(n, seed=0):
    """A symmetric matrix with well separated eigenvalues, n of them up to one."""
    q = polar(normal((n, n), seed))
    return (q * np.linspace(0.1, 1.0, n)) @ q.T


def pca(regularizer=None, n=12, p=3, seed=0, **more):
    a = jnp.asarray(spread(n))

    def f(x):
        return -jnp.sum(x * (a @ x))

    start = jnp.asarray(polar(normal((n, p), seed + 1)))
    return Problem(f=f, start=start, regularizer=regularizer, **more)


@jax.jit
def solve_by_rows(x, step, weight):
    """The tangential problem with norms of rows, by semismooth Newton steps."""
    r, zero = cdx.prox.l21(weight), jnp.zeros((x.shape[1], x.shape[1]))
    return solve_tangential(
        x, step, r.value, lambda z: r.prox(z, 1.0), zero, tolerance=1e-11
    )


def best_by_rows(x, step, weight):
    """The tangential problem with norms of rows by SciPy, through its dual.

    That is to maximise ⟨U, X⟩ − ‖P_T(S + U)‖²/2 over rows of U no longer than the
    weight, which is smooth; Y = −P_T(S + U).
    """
    n, p = x.shape

    def tangent(v):
        s = x.T @ v
        return v - x @ (s + s.T) / 2

    def value(u):
        v = tangent(step + u.reshape(n, p))
        return (v**2).sum() / 2 - (u * x.ravel()).sum(), (v - x).ravel()

    def room(u):
        return weight**2 - (u.reshape(n, p) ** 2).sum(1)

    solved = scipy.optimize.minimize(
        value,
        np.zeros(n * p),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": room},
        options={"maxiter": 500, "ftol": 1e-15},
    )
    assert room(solved.x).min() > -1e-9
    return -tangent(step + solved.x.reshape(n, p)), -solved.fun


@pytest.mark.parametrize("weight", [0.1, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_subproblem_with_norms_of_rows_is_that_of_a_generic_solver(seed, weight):
    x, g = polar(normal((6, 2), seed)), np.asarray(normal((6, 2), 10 + seed)) / 2
    solved = solve_by_rows(x, g, weight)
    assert solved.error < 1e-10
    y, least = best_by_rows(x, g, weight)
    mine = np.asarray(solved.y)
    total = (g * mine).sum() + (mine**2).sum() / 2
    total += weight * np.linalg.norm(x + mine, axis=1).sum()
    assert abs(total - least) < 1e-7
    assert_close(mine, y, 1e-4)


def test_a_derivative_by_autodiff_solves_the_subproblem_as_the_closed_form_does():
    x, g = jnp.asarray(polar(normal((9, 4), 0))), normal((9, 4), 1)
    r, zero = cdx.prox.l1(0.15), jnp.zeros((4, 4))
    mine = solve_tangential(
        x, 0.5 * g, r.value, lambda z: r.prox(z, 1.0), zero, tolerance=1e-12
    )
    closed = tangent_prox(x, g, 0.5, 0.3, zero, tolerance=1e-12)
    assert_close(mine.y, closed.y, 1e-9)


def distance_from_optimality(problem, x, gamma):
    """‖−∇f − XΛ − ξ‖_F, least over symmetric Λ and ξ in γ∂‖X‖₁, by SciPy."""
    x, g = np.asarray(x), np.asarray(jax.grad(problem.f)(x))
    n, p = x.shape
    zero = np.abs(x).ravel() < 1e-7
    assert zero.any()
    assert not zero.all()
    normals = []
    for i in range(p):
        for j in range(i + 1):
            e = np.zeros((p, p))
            e[i, j] = e[j, i] = 1
            normals.append((x @ e).ravel())
    free = np.eye(n * p)[:, zero]
    target = -g.ravel() - gamma * np.where(zero, 0, np.sign(x).ravel())
    bound = np.concatenate([np.full(len(normals), np.inf), np.full(zero.sum(), gamma)])
    design = np.column_stack([*normals, free])
    solved = scipy.optimize.lsq_linear(design, target, (-bound, bound), tol=1e-14)
    return np.linalg.norm(design @ solved.x - target)


@pytest.mark.parametrize(
    "name", [pytest.param("manpg", marks=pytest.mark.slow), "manpg-ada"]
)
def test_manpg_descends_at_every_step_to_a_point_that_is_stationary(name):
    gamma = 0.15
    problem, solver = pca(cdx.prox.l1(gamma)), RIVALS[name]
    step = jax.jit(lambda state: solver.step(problem, state))
    states = [solver.init(problem)]
    for _ in range(400):
        states.append(step(states[-1]))
    values = np.array([problem.value(solver.point(state)) for state in states])
    assert np.diff(values).max() <= 1e-14
    assert values[-1] < values[0] - 1e-2
    x = np.asarray(solver.point(states[-1]))
    assert_close(x.T @ x, np.eye(3), 1e-13)
    assert distance_from_optimality(problem, x, gamma) < 1e-6
    growth = 1.01 if name == "manpg-ada" else 1.0
    assert_close(states[5].rate, states[0].rate * growth**5, 1e-12)


def test_the_lipschitz_constant_is_the_largest_curvature():
    problem = pca()
    assert_close(lipschitz(problem, problem.start), 2.0, 1e-3)
    flat = problem._replace(f=lambda x: jnp.sum(x))
    assert lipschitz(flat, flat.start) > 0


@pytest.mark.slow
def test_infeasible_solvers_end_where_manpg_does_with_norms_of_rows():
    problem = pca(cdx.prox.l21(0.2))
    solved = run(RIVALS["manpg"], problem, steps=600, every=600)
    best = solved.records[-1].value
    start = polar(np.asarray(solved.x) + 0.02 * normal((12, 3), 9))
    problem = problem._replace(start=jnp.asarray(start))
    assert problem.value(problem.start) > best + 1e-3
    for name in ("slpg", "pencpg"):
        trace = run(RIVALS[name], problem, steps=600, every=600)
        last = trace.records[-1]
        assert abs(last.value - best) < 1e-6
        assert abs(last.projected_value - best) < 1e-6
        assert last.feasibility < 1e-6
        assert not trace.diverged
        assert (np.linalg.norm(trace.x, axis=1) < 1e-8).any()


def test_slpg_finds_a_stationary_point_where_the_multiplier_has_no_closed_form():
    gamma = 0.15
    problem = pca(cdx.prox.l1(gamma))
    assert RIVALS["slpg"].init(problem).dual is not None
    trace = run(RIVALS["slpg"], problem, steps=1500, every=1500)
    assert trace.records[-1].feasibility < 1e-9
    assert distance_from_optimality(problem, trace.projected, gamma) < 1e-4


@pytest.mark.parametrize("name", ["slpg", "riemannian-gradient"])
def test_without_a_regularizer_the_least_eigenvalues_are_found(name):
    problem = pca()
    best = -np.linalg.eigvalsh(spread(12))[-3:].sum()
    trace = run(RIVALS[name], problem, steps=400, every=400)
    assert abs(trace.records[-1].value - best) < 1e-10
    assert trace.records[-1].feasibility < 1e-12


@pytest.mark.parametrize("kind", ["array", "callable"])
def test_riemannian_gradients_solve_the_generalized_eigenvalue_problem(kind):
    a, b = spread(12), spd(12)
    metric = jnp.asarray(b)
    mask = cdx.Stiefel(B=metric if kind == "array" else lambda v: metric @ v)
    start = cdx.stiefel.random(jax.random.key(0), (12, 3), jnp.float64, B=metric)
    problem = pca(mask=mask)._replace(start=start)
    trace = run(RIVALS["riemannian-gradient"], problem, steps=600, every=600)
    best = -scipy.linalg.eigh(a, b, eigvals_only=True)[-3:].sum()
    last = trace.records[-1]
    assert abs(last.value - best) < 1e-9
    assert last.feasibility < 1e-12
    assert_close(trace.x.T @ b @ trace.x, np.eye(3), 1e-12)


def outliers(d=10, codimension=2, seed=0):
    """The sum of the distances of points from the complement of X, some of them off."""
    inliers = np.asarray(normal((80, d - codimension), seed))
    inliers = np.hstack([inliers, np.zeros((80, codimension))])
    points = np.vstack([inliers, normal((25, d), seed + 1)])
    points = jnp.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))

    def f(x):
        square = jnp.sum((points @ x) ** 2, axis=1)
        return jnp.sum(jnp.sqrt(jnp.where(square > 0, square, 1)) * (square > 0))

    start = jnp.asarray(np.linalg.eigh(points.T @ points)[1][:, :codimension])
    planted = np.eye(d)[:, d - codimension :]

    def error(x):
        return jnp.linalg.norm(x @ x.T - planted @ planted.T)

    return Problem(f=f, start=start, smooth=False, error=error)


def test_geometric_steps_recover_a_planted_subspace_and_diminishing_ones_approach_it():
    problem = outliers()
    distances = {}
    for decay in (0.9, None):
        solver = riemannian_subgradient(0.3, decay=decay)
        trace = run(solver, problem, steps=300, every=300)
        assert problem.error is not None
        distances[decay] = float(problem.error(trace.x))
        assert trace.records[-1].feasibility < 1e-13
    start = float(problem.error(problem.start))
    assert distances[0.9] < 1e-8 < distances[None] < start / 5


def test_the_first_subgradient_step_is_that_of_the_formula():
    problem = pca(cdx.prox.l1(0.1))
    x = np.asarray(problem.start)
    g = -2 * spread(12) @ x + 0.1 * np.sign(x)
    g = g - x @ (x.T @ g + g.T @ x) / 2
    for solver, rate in (
        (riemannian_subgradient(0.2, absolute=True), 0.2),
        (riemannian_subgradient(0.2, decay=0.5, absolute=True), 0.1),
        (riemannian_subgradient(0.2), 0.2 * np.sqrt(3) / np.linalg.norm(g)),
    ):
        state = solver.step(problem, solver.init(problem))
        assert_close(solver.point(state), polar(x - rate * g), 1e-12)


def test_norms_of_rows_are_told_from_other_regularizers():
    weights = row_weights(pca(cdx.prox.l21(0.3)))
    assert weights is not None
    assert_close(weights, np.full(12, 0.3), 1e-9)
    others = (cdx.prox.l1(0.3), cdx.prox.l21(0.3, axis=-2), cdx.prox.elastic_net(1, 1))
    assert all(row_weights(pca(r)) is None for r in (None, *others))


def test_solvers_know_what_they_are_made_for():
    generalized = cdx.Stiefel(B=jnp.eye(12))
    cases = {
        "smooth": pca(),
        "rows": pca(cdx.prox.l21(1.0)),
        "entries": pca(cdx.prox.l1(1.0)),
        "bounded": pca(cdx.prox.nonnegative_l1(1.0)),
        "nonsmooth": pca(smooth=False),
        "generalized": pca(mask=generalized),
        "by rows": pca(mask=cdx.Stiefel(rows=-1, columns=-2)),
    }
    found = {
        name: {case for case, problem in cases.items() if solver.applies(problem)}
        for name, solver in RIVALS.items()
    }
    proximal = {"smooth", "rows", "entries"}
    assert found == {
        "riemannian-subgradient": {*proximal, "nonsmooth"},
        "riemannian-subgradient-geometric": {*proximal, "nonsmooth"},
        "manpg": proximal,
        "manpg-ada": proximal,
        "slpg": proximal,
        "pencpg": {"rows"},
        "riemannian-gradient": {"smooth", "generalized"},
    }


class Counted(NamedTuple):
    x: jax.Array
    step: jax.Array


def counting(*, fails=10**6, pause=0.0):
    """A solver that scales its point by one, until it fails; slow to be traced."""

    def init(problem):
        return Counted(problem.start, jnp.zeros([], jnp.int32))

    def step(_, state):
        time.sleep(pause)
        factor = jnp.where(state.step + 1 >= fails, jnp.nan, 1.0)
        return Counted(state.x * factor, state.step + 1)

    return Solver(
        init=init, step=step, point=lambda state: state.x, applies=lambda _: True
    )


def test_the_driver_counts_steps_and_judges_each_chunk():
    problem = pca()
    trace = run(counting(), problem, steps=10, every=4)
    assert [r.step for r in trace.records] == [0, 4, 8, 10]
    value = float(problem.value(problem.start))
    for record in trace.records:
        assert_close(record.value, value, 1e-12)
        assert_close(record.projected_value, value, 1e-12)
        assert record.feasibility < 1e-13
    assert np.diff([r.seconds for r in trace.records]).min() > 0
    assert_close(trace.projected, problem.start, 1e-12)
    with pytest.raises(ValueError, match="every=0"):
        run(counting(), problem, steps=1, every=0)


def test_the_driver_judges_a_point_off_the_manifold_by_its_projection():
    problem = pca()._replace(start=1.5 * pca().start)
    trace = run(counting(), problem, steps=0)
    (record,) = trace.records
    assert_close(record.value, 2.25 * record.projected_value, 1e-12)
    assert_close(record.feasibility, 1.25 * np.sqrt(3), 1e-12)
    assert_close(trace.x, 1.5 * trace.projected, 1e-12)


def test_the_driver_stops_when_told_to_and_when_time_is_up():
    stopped = run(
        counting(), pca(), steps=10, every=2, stop=lambda record: record.step >= 4
    )
    assert stopped.records[-1].step == 4
    assert len(run(counting(), pca(), steps=10, seconds=0).records) == 1


def test_the_driver_stops_at_a_nan_and_says_so():
    trace = run(counting(fails=5), pca(), steps=100, every=2)
    assert [r.step for r in trace.records] == [0, 2, 4, 6]
    assert trace.diverged
    assert np.isnan(trace.records[-1].value)
    assert not run(counting(), pca(), steps=2).diverged


def test_runs_are_timed_again_in_turns_and_have_the_medians():
    order = []

    def timed(name, seconds, times):
        left = iter(times * REPEATS)

        def again():
            order.append(name)
            return [(0.0, 0.5), (time := next(left), time + 0.5)]

        records = [
            Record(step=k, seconds=t, value=0, projected_value=0, feasibility=0)
            for k, t in ((0, 0.0), (7, seconds))
        ]
        x = jnp.zeros(())
        return Trace(x=x, projected=x, records=records, compile_seconds=0, again=again)

    quick = timed("quick", BRIEF / 2, [3.0, 1.0, 2.0])
    traces = {"quick": quick, "other": timed("other", BRIEF, [4.0])}
    slow = timed("slow", 2 * BRIEF, [5.0])
    alone = quick._replace(again=None)
    found = in_turns(traces | {"slow": slow, "alone": alone})
    assert order == ["quick", "other"] * REPEATS
    assert [record.seconds for record in found["quick"].records] == [0.0, 2.0]
    assert found["quick"].walls == [0.5, 2.5]
    assert found["other"].records[-1].seconds == 4.0
    assert found["slow"] is slow
    assert found["alone"] is alone


def test_the_driver_does_not_time_compilation():
    trace = run(counting(pause=0.5), pca(), steps=3)
    assert trace.compile_seconds > 0.5
    assert trace.records[-1].seconds < 0.4


def package(name):
    chosen = PACKAGES[name]
    if not chosen.installed():
        pytest.skip(f"{chosen.name} is not installed")
    return chosen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in PACKAGES if "trust" in name])
@pytest.mark.parametrize("generalized", [False, True])
def test_trust_regions_of_pymanopt_find_the_least_eigenvalues(name, generalized):
    b = spd(12) if generalized else np.eye(12)
    mask = cdx.Stiefel(B=jnp.asarray(b)) if generalized else None
    problem = pca(mask=mask)
    start = cdx.project(problem.start, mask)
    problem = problem._replace(start=start)
    chosen = package(name)
    assert chosen.applies(problem)
    trace = chosen.run(problem, steps=50)
    best = -scipy.linalg.eigh(spread(12), b, eigvals_only=True)[-3:].sum()
    assert abs(trace.records[-1].value - best) < 1e-10
    assert [r.step for r in trace.records] == list(range(len(trace.records)))
    assert_close(trace.records[0].value, problem.value(start), 1e-12)
    assert len(chosen.run(problem, steps=2).records) == 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["l21", "l1", "none"])
def test_our_slpg_takes_the_steps_of_the_authors(kind):
    regularizer = {
        "l21": cdx.prox.l21(0.02),
        "l1": cdx.prox.l1(0.01),
        "none": None,
    }[kind]
    problem = pca(regularizer)
    # Near a solution, where their step sizes need no guard.
    q = np.linalg.eigh(spread(12))[1][:, -3:]
    start = polar(q @ polar(normal((3, 3), 4)) + 0.03 * normal((12, 3), 5))
    problem = problem._replace(start=jnp.asarray(start))
    chosen = package("pystop-slpg")
    assert chosen.applies(problem)
    theirs = chosen.run(problem, steps=20)
    mine = run(RIVALS["slpg"], problem, steps=20)
    assert len(theirs.records) == len(mine.records) == 21
    for a, b in zip(theirs.records, mine.records, strict=True):
        assert abs(a.value - b.value) < 1e-8
    assert_close(mine.x, theirs.x, 1e-6)
