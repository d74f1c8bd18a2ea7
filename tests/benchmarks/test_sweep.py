"""The hostile sweep in small: the same programs, fewer of them."""

import pytest

from benchmarks.feasibility import sweep
from benchmarks.feasibility.odd import ODD
from benchmarks.feasibility.simulation import RADIUS, Case

TOGETHER = ("momentum", "adam", "lion", "rmsprop", "lamb", "schedule-free")
PLAN = sweep.Plan(steps=15, rates=(1e-3, 1.0, 100.0), noises=(0.0, 10.0))


def rows(
    wrapper="constrain", group=TOGETHER, shape=(8, 8), metric="stiefel", plan=PLAN
):
    case = Case(
        wrapper=wrapper, optimisers=group, dtype="float32", shape=shape, metric=metric
    )
    return sweep.run(case, plan)


@pytest.mark.parametrize("metric", sweep.METRICS)
@pytest.mark.parametrize(
    "shape", [(8, 8), pytest.param((3, 8, 4), marks=pytest.mark.slow)], ids=str
)
def test_no_optimiser_rate_or_noise_drives_the_guarded_step_out(shape, metric):
    got = rows(shape=shape, metric=metric)
    assert len(got) == len(TOGETHER) * len(PLAN.rates) * len(PLAN.noises)
    assert not any(map(sweep.violated, got))
    assert all(row["finite"] for row in got)
    assert max(row["spectral"] for row in got) <= RADIUS
    # Steps of both kinds were taken.
    assert any(row["long"] == 0 for row in got)
    assert any(row["long"] == PLAN.steps for row in got)


@pytest.mark.parametrize("metric", sweep.METRICS)
def test_nor_do_updates_that_point_inward_or_have_a_low_rank(metric):
    plan = sweep.Plan(steps=6, rates=(1.0, 2.0, 1e4), noises=(0.0, 10.0))
    got = rows(group=tuple(ODD), shape=(3, 8, 4), metric=metric, plan=plan)
    assert len(got) == 6 * len(ODD)
    assert not any(map(sweep.violated, got))
    assert max(row["spectral"] for row in got) <= RADIUS


@pytest.mark.parametrize(
    "alone", [pytest.param("lbfgs", marks=pytest.mark.slow), "lookahead"]
)
def test_nor_does_one_that_searches_or_has_two_copies(alone):
    got = rows(group=(alone,))
    assert not any(map(sweep.violated, got))
    assert all(row["finite"] for row in got)


def test_the_command_runs_them_with_every_shape_dtype_and_metric_of_the_plans():
    chosen = {
        (c.shape, c.dtype, c.metric)
        for c, _ in sweep.cases()
        if c.wrapper == "constrain" and c.optimisers == tuple(ODD)
    }
    assert chosen == {
        (shape, dtype, metric)
        for shape, plan in sweep.SHAPES.items()
        for dtype in plan.dtypes
        for metric in sweep.METRICS
    }


def test_what_breaks_is_reported():
    one = sweep.Plan(steps=15, rates=(1e-4, 100.0), noises=(0.0,))
    got = rows("restore_feasibility", ("adam",), plan=one)
    got += rows("unconstrained", ("adam",), plan=one)
    assert [sweep.escaped(row) for row in got[:2]] == [False, True]
    assert sweep.survivors(got, first=False) == {("adam", (8, 8), 1e-4, 0.0)}
    escapes = {e["wrapper"]: e for e in sweep.summary(got)["escapes"]}
    counts = escapes["restore_feasibility"]
    assert counts["all"] == {"settings": 2, "escapes": 1}
    assert counts["loss and first step survive"] == {"settings": 1, "escapes": 0}
    beyond = {"finite": 1.0, "spectral": 0.6, "allowance": 1e-3}
    assert sweep.violated(beyond)
    assert sweep.violated(beyond | {"finite": 0.0, "spectral": 0.1})
    assert "1 of 2 (50.0%)" in sweep.tables(sweep.summary(got))
