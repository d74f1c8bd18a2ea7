"""The experiment that runs without arguments, cut down to two epochs."""

import contextlib
import io
import json
import runpy
import sys

import jax
import pytest
from matplotlib import image

from benchmarks import ocnn
from benchmarks.methods import METHODS

EPOCHS = 2
# Not the order of the registry, so that the option is seen to count.
NAMES = list(reversed(METHODS))
CONSTRAINED = ("algorithm-1", "algorithm-2")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of one short run, and what the run printed."""
    out = tmp_path_factory.mktemp("runs") / "ocnn"
    argv = ["--epochs", str(EPOCHS), "--batch-size", "128", "--out", str(out)]
    # This generator compiles several times as fast as the default one.
    fast = jax.default_prng_impl("rbg")
    with fast, contextlib.redirect_stdout(io.StringIO()) as printed:
        ocnn.main([*argv, "--method", *NAMES])
    return out, printed.getvalue()


@pytest.fixture(scope="module")
def results(finished):
    out, _ = finished
    return json.loads((out / "ocnn.json").read_text("utf-8"))


def test_the_table_has_a_row_for_each_method_asked_for(finished):
    out, printed = finished
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    header, *cells = [[x.strip() for x in row.split("|")] for row in rows]
    assert [row[1] for row in cells] == NAMES
    assert all(len(row) == len(header) for row in cells)
    assert str(out) in printed


def test_every_method_is_recorded_before_and_after_each_epoch(results):
    assert list(results["runs"]) == NAMES
    for run in results["runs"].values():
        assert [r["epoch"] for r in run["records"]] == list(range(EPOCHS + 1))
        assert run["step_seconds"] > 0
        assert run["compile_seconds"] > 0
        assert run["settings"]["learning_rate"] > 0
    assert results["configuration"]["epochs"] == EPOCHS
    assert results["versions"]["jax"]


def test_all_methods_start_from_one_feasible_point(results):
    starts = [run["records"][0] for run in results["runs"].values()]
    assert all(start == starts[0] for start in starts)
    # 64 columns in single precision.
    assert starts[0]["feasibility"] < 1e-5


@pytest.mark.parametrize("name", METHODS)
def test_training_lowers_the_loss_and_beats_chance(results, name):
    first, *_, last = results["runs"][name]["records"]
    assert last["train_loss"] < first["train_loss"]
    assert last["test_accuracy"] > 0.2


@pytest.mark.parametrize("name", CONSTRAINED)
def test_constrained_methods_stay_near_the_manifold(results, name):
    # The neighbourhood in which the paper's theory holds has radius 1/6.
    assert max(r["feasibility"] for r in results["runs"][name]["records"]) < 1 / 6


def test_only_the_constraint_keeps_adam_from_leaving_the_manifold(results):
    assert results["runs"]["adam"]["records"][-1]["feasibility"] > 1


def test_the_figure_is_a_png_with_something_on_it(finished):
    out, _ = finished
    pixels = image.imread(out / "ocnn.png")
    assert min(pixels.shape[:2]) > 500
    assert pixels.std() > 0.05


@pytest.mark.parametrize(
    "argv",
    [
        ["--method", "no-such-method"],
        ["--epochs", "0"],
        ["--batch-size", "1000000"],
        ["--gamma", "-1"],
        ["--seed", "-1"],
    ],
    ids=lambda argv: argv[0],
)
def test_a_bad_argument_exits_with_code_2(argv, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        ocnn.main([*argv, "--out", str(tmp_path / "none")])
    assert caught.value.code == 2
    assert argv[0] in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_the_module_runs_as_a_program(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ocnn", "--help"])
    # Python warns when it runs a module that is already imported.
    monkeypatch.delitem(sys.modules, "benchmarks.ocnn")
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("benchmarks.ocnn", run_name="__main__")
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in METHODS)
