"""The suite of solvers: its bookkeeping, and one small run of it."""

import json
import math
import shutil

import pytest
from matplotlib import image

from benchmarks.solvers import report, suite


def course(*pairs):
    return [
        [step, seconds, value, seconds + 0.01]
        for step, (seconds, value) in enumerate(pairs)
    ]


def content(problem, method, seed, rows, **more):
    last = rows[-1][2]
    return {
        "problem": problem,
        "method": method,
        "seed": seed,
        "value": last,
        "projected_value": last,
        "feasibility": 1e-12,
        "projected_feasibility": 1e-15,
        "worst_feasibility": 1e-3,
        "stationarity": 1e-9,
        "sparsity": 0.5,
        "steps": len(rows),
        "compile_seconds": 1.0,
        "best_known": None,
        "error": None,
        "regular": False,
        "smooth": False,
        "course": rows,
    } | more


@pytest.fixture
def folder(tmp_path):
    """Two problems: ours is quickest on the first, and misses the second."""
    ours = course((0.0, 0.0), (0.1, -0.99), (0.2, -0.99995), (0.3, -1.0))
    rival = course((0.0, 0.0), (0.5, -1.0), (0.6, -0.5), (0.7, -1.0))
    worse = course((0.0, 0.0), (0.1, -1.5))
    runs = [
        content("first", "cdx:proximal", 0, ours),
        content("first", "rival", 0, rival),
        content("second", "cdx:proximal", 0, worse, projected_value=-1.5 + 1e-9),
        content("second", "rival", 0, course((0.0, 0.0), (0.4, -2.0))),
        content("second", "diverged", 0, course((0.0, 0.0), (0.1, math.nan))),
    ]
    (tmp_path / "runs").mkdir()
    for i, run in enumerate(runs):
        (tmp_path / "runs" / f"{i}.json").write_text(json.dumps(run))
    around = {"device": "cpu", "processors": 1, "versions": {"jax": "0"}}
    file = tmp_path / "runs" / report.ENVIRONMENT
    file.write_text(json.dumps(around))
    return tmp_path


def by_name(folder):
    runs = report.judged(report.gather(folder)["runs"])
    return {(r["problem"], r["method"]): r for r in runs}


def test_gaps_are_to_the_best_value_of_any_method(folder):
    found = by_name(folder)
    assert found["first", "rival"]["gap"] == 0
    assert found["second", "cdx:proximal"]["gap"] == pytest.approx(0.25)


def test_a_value_that_theory_gives_counts_as_found(folder):
    file = folder / "runs" / "0.json"
    known = json.loads(file.read_text()) | {"best_known": -1.25}
    file.write_text(json.dumps(known))
    found = by_name(folder)
    assert found["first", "cdx:proximal"]["gap"] == pytest.approx(0.2)


def test_the_time_is_that_after_which_the_gap_stays_small(folder):
    found = by_name(folder)
    assert found["first", "cdx:proximal"]["time"] == 0.2
    # It was there earlier, and left again.
    assert found["first", "rival"]["time"] == 0.7
    assert found["second", "cdx:proximal"]["time"] == math.inf
    assert found["first", "cdx:proximal"]["second"] == pytest.approx(0.21)
    assert found["first", "cdx:proximal"]["first"] == pytest.approx(1.21)


def test_the_report_counts_where_ours_is_nearest_and_quickest(folder):
    report.write(folder)
    text = (folder / "solvers.md").read_text()
    assert "in 1 of 2; ours is the quickest to a gap of 1e-4 in 1 of 2" in text
    assert "ahead of every rival in 0." in text
    for name in ("profile.png", "convergence.png"):
        assert image.imread(folder / name).std() > 0.01
    # The file that is kept is enough to make it again.
    shutil.rmtree(folder / "runs")
    report.write(folder)
    assert (folder / "solvers.md").read_text() == text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--problem", "pitprops"], "--data is needed"),
        (["--problem", "pca", "golub", "--data", "nowhere"], "golub"),
        (["--problem", "no such problem"], "invalid choice"),
    ],
)
def test_a_bad_argument_writes_nothing(argv, words, tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as caught:
        suite.main([*argv, "--out", str(out)])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_runs_that_are_there_are_left_alone(folder, capsys):
    before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    with pytest.raises(SystemExit) as caught:
        suite.main(["--out", str(folder)])
    assert caught.value.code == 2
    assert "--resume" in capsys.readouterr().err
    assert before == {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.slow
def test_the_suite_runs_and_ours_finds_the_optimum(tmp_path):
    argv = ["--problem", "pca", "--seeds", "0", "--seconds", "1", "--out", tmp_path]
    suite.main([str(v) for v in argv])
    runs = report.judged(report.gather(tmp_path)["runs"])
    assert {r["method"] for r in runs} >= {"cdx:proximal", "manpg", "slpg"}
    assert min(r["gap"] for r in runs if report.mine(r)) < 1e-6
