"""The rivals' own benchmarks in small: problems, methods, runs and the verdict."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from benchmarks.rivals import command, packages, report, sparse
from benchmarks.rivals.methods import CONTENDERS, advance, start
from benchmarks.rivals.problems import PROTOCOLS, Instance, judge
from benchmarks.rivals.running import run, tune
from benchmarks.solvers.driving import Record

SIZES = {
    "PCA": (30, 20),
    "PCA, QDQ, smaller": (30, 20),
    "Procrustes": (20,),
    "online PCA, p = 100": (400, 60, 5),
    "generalized eigenvalues": (30, 10),
}
KEY = jax.random.key(0)


def made(title) -> Instance:
    return PROTOCOLS[title].make(*SIZES[title])


def solution(instance):
    """By SciPy's decompositions."""
    p = instance.start.shape[1]
    if "samples" in instance.data:
        return np.linalg.svd(np.asarray(instance.data["samples"]))[2][:p].T
    h, c = np.asarray(instance.data["h"]), np.asarray(instance.data["c"])
    if c.ndim:
        u, _, vt = scipy.linalg.svd(c)
        return u @ vt
    metric = None if instance.metric is None else np.asarray(instance.metric)
    return scipy.linalg.eigh(h, metric, subset_by_index=(0, p - 1))[1]


@pytest.mark.parametrize("title", SIZES)
def test_the_gap_is_zero_at_the_solution_and_the_start_is_on_the_manifold(title):
    instance = made(title)
    look = judge(instance)
    gap, off = look(solution(instance))
    assert abs(gap) <= 1e-5
    assert off <= 1e-5
    gap, off = look(instance.start)
    assert gap > 0.01
    assert off <= 1e-5


@pytest.mark.parametrize("title", SIZES)
def test_the_gradient_of_a_step_is_that_of_the_objective(title):
    instance = made(title)._replace(batch=None)
    found = instance.gradient(instance.start, instance.data, KEY)
    expected = jax.grad(instance.value)(instance.start, instance.data)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    if "h" in instance.data:
        rows = jnp.array([3, 0, 7])
        some = instance.rows(instance.start, instance.data, rows)
        np.testing.assert_allclose(some, found[rows], rtol=1e-4, atol=1e-6)


def test_a_batch_sees_some_samples_whose_mean_is_the_gradient():
    instance = made("online PCA, p = 100")
    keys = jax.random.split(KEY, 300)
    step = jax.vmap(lambda k: instance.gradient(instance.start, instance.data, k))
    mean = step(keys).mean(axis=0)
    full = instance._replace(batch=None)
    exact = full.gradient(instance.start, instance.data, KEY)
    assert jnp.linalg.norm(mean - exact) <= 0.05 * jnp.linalg.norm(exact)


# With a metric, by default, what differs from the same method without one.
WITH_METRIC = ("constrain(adam)", "generalized landing")
PAIRS = [
    pytest.param(
        title,
        name,
        marks=() if title == "PCA" or name in WITH_METRIC else pytest.mark.slow,
    )
    for title in ("PCA", "generalized eigenvalues")
    for name, contender in CONTENDERS.items()
    if contender.fits(made(title))
]


@pytest.mark.parametrize(("title", "name"), PAIRS)
def test_every_method_descends_and_stays_near_the_manifold(title, name):
    contender, instance = CONTENDERS[name], made(title)
    step = jax.jit(advance(contender, instance, None))
    rate = 0.1 * len(instance.start) ** -0.5 if contender.by_entry else 0.1
    state, look = start(contender, instance), judge(instance)
    before, _ = look(state.x)
    for _ in range(60):
        state = step(state, instance.data, rate, 0.0)
    after, off = look(state.x)
    assert after < 0.9 * before
    assert off <= (0.05 if "landing" in name or name == "POGO" else 1e-4)
    assert int(state.step) == 60


def test_methods_are_run_on_what_they_are_made_for():
    online, generalized = map(made, ("online PCA, p = 100", "generalized eigenvalues"))
    assert not CONTENDERS["RSDM"].fits(online)
    assert not CONTENDERS["POGO"].fits(generalized)
    assert not CONTENDERS["generalized landing"].fits(online)
    assert CONTENDERS["constrain(adam)"].fits(generalized)


def test_tuning_takes_the_setting_with_the_fewest_steps_to_the_gap():
    protocol = PROTOCOLS["PCA"]._replace(gap=1e-2)
    small = made("PCA")
    contender = CONTENDERS["constrain(sgd)"]._replace(
        settings=((1e-3, 0.0), (1.0, 0.9), (1e6, 0.9))
    )
    found = tune(contender, protocol, small)
    assert found["setting"] == (1.0, 0.9)
    done = run(contender, small, protocol, found["setting"], 20.0)
    *before, (step, seconds, gap, off) = done["looks"]
    assert gap <= 1e-2
    assert off <= 1e-4
    # Looks are a matter of seconds, so how many steps lie between two is not known.
    assert all(earlier > 1e-2 for _, _, earlier, _ in before)
    assert step > before[-1][0]
    assert seconds > 0


def test_a_method_whose_run_is_lost_takes_the_next_setting(monkeypatch):
    size = SIZES["PCA"]
    protocol = PROTOCOLS["PCA"]._replace(size=size, small=size, gap=1e-2, after=None)
    tried = [{"setting": setting} for setting in ((1e3, 0.0), (0.3, 0.0))]
    found = {"setting": tried[0]["setting"], "tried": tried}
    monkeypatch.setattr(command, "_CHOSEN", {})
    monkeypatch.setattr(command, "tune", lambda *_: found)
    jobs = {name: job for name, job, _ in command.jobs(protocol, 20.0, {}, quick=False)}
    done = jobs["POGO"]()
    assert done["setting"] == (0.3, 0.0)
    assert done["looks"][-1][2] <= 1e-2


def test_minimize_stops_at_the_gap():
    instance = made("PCA")
    protocol = PROTOCOLS["PCA"]._replace(gap=1e-3)
    done = packages.minimized("tangential", instance, protocol, 20.0)
    assert done["looks"][-1][2] <= 1e-3
    assert done["setting"] == "tangential"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", packages.TWINS)
def test_packages_for_torch_descend_on_the_same_problem(name):
    pytest.importorskip("torch")
    instance = made("PCA")
    if not packages.fits(name, instance):
        pytest.skip(f"{name} is not installed")
    protocol = PROTOCOLS["PCA"]._replace(gap=0.1)
    done = packages.in_torch(name, instance, protocol, (0.5, 0.0), 20.0)
    assert done["looks"][-1][2] <= 0.1


def record(method, looks, *, ours):
    looks = [[k, s, gap, 1e-6 if ours else 1e-3] for k, s, gap in looks]
    common = {"problem": "PCA", "setting": (1.0, 0.9), "compile": 0.1, "seconds": 9.0}
    return {**common, "method": method, "ours": ours, "looks": looks}


QUICKER = [(0, 0.0, 1.0), (10, 1.0, 1e-2), (30, 3.0, 1e-6)]
SLOWER = [(0, 0.0, 1.0), (15, 3.0, 1e-2), (30, 6.0, 1e-6)]
NEVER = [(0, 0.0, 1.0), (15, 9.0, 1e-2)]


def test_arrival_is_between_the_looks():
    run = record("a", QUICKER, ours=True)
    assert report.arrival(run, 1e-4) == pytest.approx((2.0, 20.0))
    assert report.arrival(run, 1e-9) == (math.inf, math.inf)


def test_a_gap_far_from_the_manifold_is_not_met():
    run = record("a", QUICKER, ours=True)
    step, seconds, gap, _ = run["looks"][-1]
    run["looks"][-1] = [step, seconds, gap, 0.1]
    assert report.arrival(run, 1e-4) == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (QUICKER, SLOWER, "ours is first, after 3 s; theirs is the first rival"),
        (QUICKER, NEVER, "no rival arrives"),
        (SLOWER, QUICKER, "2.00 times as long: 1.00 times the steps, and 2.00"),
        (NEVER, QUICKER, "None of ours arrives"),
        (NEVER, NEVER, "No method arrives in its time; ours ends at a gap of 1.0e-02"),
    ],
)
def test_the_verdict_follows_from_the_records(ours, theirs, said):
    runs = [record("ours", ours, ours=True), record("theirs", theirs, ours=False)]
    text = report.verdict(runs, 1e-6)
    assert said in text
    assert "1.0e-06 from the manifold" in text
    assert "1.0e-03" in text


def test_a_run_that_diverged_wins_nothing():
    lost = record("theirs", [(0, 0.0, 1.0), (5, 0.1, -1e9)], ours=False)
    runs = [record("ours", SLOWER, ours=True), lost]
    assert report.verdict(runs, 1e-6) == "There is nothing to compare."
    assert "diverged" in {cell for row in report.rows(runs) for cell in row}


def test_gaps_are_to_the_least_value_on_the_manifold():
    """A method that diverges passes through values far below the minimum."""

    def found(step, projected, off):
        return Record(
            step=step,
            seconds=step / 10,
            value=-1e9,
            projected_value=projected,
            feasibility=off,
        )

    def looks(*records):
        return [[r.step, r.seconds, sparse._value(r), r.feasibility] for r in records]

    sound = looks(found(0, -1.0, 0.0), found(1, -4.0, 0.1), found(2, -5.0, 0.0))
    lost = looks(found(0, -1.0, 0.0), found(1, math.nan, 1e50))
    records = [record("a", [], ours=True), record("b", [], ours=False)]
    runs = [
        run | {"problem": sparse.TITLE, "looks": part}
        for run, part in zip(records, (sound, lost), strict=True)
    ]
    ours, theirs = report.with_gaps(runs)
    assert [look[2] for look in ours["looks"]] == pytest.approx([0.8, 0.2, 0.0])
    assert [look[2] for look in theirs["looks"]] == [pytest.approx(0.8), None]
    assert report.arrival(ours, 1e-6) == (0.2, 2)
    assert report.arrival(theirs, 1e-6) == (math.inf, math.inf)
    assert "diverged" in {cell for row in report.rows([ours, theirs]) for cell in row}
    assert report.leaders([ours, theirs], 1e-6) == ["a"]


def test_runs_of_ours_are_kept_for_the_same_code_only(tmp_path):
    file, settings = tmp_path / "run.json", {"seconds": 9.0, "code": "now"}
    assert command._kept(file, settings, ours=True) is None
    file.write_text(json.dumps({"seconds": 9.0, "code": "before", "looks": []}))
    assert command._kept(file, settings, ours=True) is None
    assert command._kept(file, settings, ours=False) is not None
    assert command._kept(file, {"seconds": 1.0}, ours=False) is None
