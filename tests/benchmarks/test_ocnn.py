"""The experiment that runs without arguments, cut down to two epochs."""

import contextlib
import io
import json
import math
import shutil
import signal
import subprocess
import sys
import time

import jax
import pytest
from matplotlib import image

from benchmarks.ocnn import experiment, report, search, train
from benchmarks.ocnn.measuring import Record
from benchmarks.ocnn.runs import Run, find_runs
from benchmarks.ocnn.training import Trainer
from benchmarks.shared.methods import METHODS

EPOCHS = 2
# Not the order of the list, so that the option is seen to count.
NAMES = list(reversed(experiment.MAIN))
SHORT = ["--epochs", str(EPOCHS), "--batch-size", "128"]
TIMES = ("seconds", "step_seconds")


def run(*argv, module=train):
    """What a command prints."""
    # This generator compiles several times as fast as the default one.
    fast = jax.default_prng_impl("rbg")
    with fast, contextlib.redirect_stdout(io.StringIO()) as printed:
        module.main([str(v) for v in argv])
    return printed.getvalue()


def refusal(capsys, *argv, module=train):
    """The line of an error, with which the command exits."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        run(*argv, module=module)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture(scope="module")
def finished(once):
    """The folder of one short run, and what the run printed."""
    return once("ocnn", lambda out: run(*SHORT, "--out", out, "--method", *NAMES))


@pytest.fixture(scope="module")
def records(finished):
    out, _ = finished
    return {run.method: run.records() for run in find_runs(out)}


def test_the_table_has_a_row_for_each_method(finished):
    out, printed = finished
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    header, *cells = [[x.strip() for x in row.split("|")] for row in rows]
    assert {row[1] for row in cells} == {METHODS[name].label for name in NAMES}
    assert all(len(row) == len(header) for row in cells)
    assert printed.strip() in (out / "report.md").read_text("utf-8")


def test_every_method_is_recorded_before_and_after_each_epoch(finished, records):
    out, _ = finished
    assert set(records) == set(NAMES)
    for name, rows in records.items():
        assert [r.epoch for r in rows] == list(range(EPOCHS + 1))
        assert rows[-1].seconds > rows[1].seconds > rows[1].step_seconds > 0
        settings = Run(out / name / "seed-0").settings
        assert settings["compile_seconds"] > 0
        assert settings["learning_rate"] == METHODS[name].learning_rate
        assert not (out / name / "seed-0" / "checkpoint").exists()


def test_the_configuration_is_written_down(finished):
    out, _ = finished
    content = json.loads((out / "configuration.json").read_text("utf-8"))
    assert content["configuration"]["epochs"] == EPOCHS
    assert content["configuration"]["dataset"] == "digits"
    assert content["versions"]["jax"] == jax.__version__


def test_all_methods_start_from_one_feasible_point(records):
    starts = [rows[0] for rows in records.values()]
    for first in starts:
        # Those on h look at A(X), which differs in rounding.
        assert first.train_loss == pytest.approx(starts[0].train_loss, abs=1e-5)
        assert first.sparsity == starts[0].sparsity
        # 64 columns in single precision.
        assert first.feasibility < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_training_lowers_the_loss_and_beats_chance(records, name):
    first, *_, last = records[name]
    assert last.train_loss < first.train_loss
    assert last.test_accuracy > 0.2


@pytest.mark.parametrize("name", NAMES[1:])
def test_constrained_methods_stay_near_the_manifold(records, name):
    # The neighbourhood in which the paper's theory holds has radius 1/6.
    assert max(r.feasibility for r in records[name]) < 1 / 6


def test_dissolving_brings_what_is_near_nearer(records):
    last = records["algorithm-1-momentum"][-1]
    assert last.feasibility > 1e-5
    assert last.dissolved < last.feasibility / 10


def test_only_the_constraint_keeps_adam_from_leaving_the_manifold(records):
    assert records["adam"][-1].feasibility > 1
    assert records["constrain-adam"][-1].feasibility < 1e-4


@pytest.mark.parametrize("name", ["curves.png", "feasibility.png"])
def test_the_figures_are_pngs_with_something_on_them(finished, name):
    out, _ = finished
    pixels = image.imread(out / name)
    assert min(pixels.shape[:2]) > 400
    assert pixels.std() > 0.05


def test_what_a_report_keeps_is_enough_to_make_it_again(finished, tmp_path):
    out, _ = finished
    report.write(out, out=tmp_path / "kept")
    shutil.copytree(tmp_path / "kept", tmp_path / "copy")
    report.write(tmp_path / "copy")
    for name in ("report.md", "report.json"):
        again = (tmp_path / "copy" / name).read_bytes()
        assert again == (out / name).read_bytes()


def timeless(rows):
    return [{k: v for k, v in row._asdict().items() if k not in TIMES} for row in rows]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_records(
    records, tmp_path, monkeypatch
):
    name, epoch = "constrain-adam", Trainer.epoch

    def stopped(self, state, seed, number):
        if number == EPOCHS:
            raise KeyboardInterrupt
        return epoch(self, state, seed, number)

    argv = [*SHORT, "--out", tmp_path, "--method", name]
    monkeypatch.setattr(Trainer, "epoch", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(*argv)
    monkeypatch.setattr(Trainer, "epoch", epoch)
    folder = Run(tmp_path / name / "seed-0")
    assert len(folder.records()) == EPOCHS
    run(*argv, "--resume")
    assert timeless(folder.records()) == timeless(records[name])


def test_a_run_stopped_between_its_two_files_loses_nothing(tmp_path):
    folder = Run(tmp_path / "adam" / "seed-0")
    folder.begin({"learning_rate": 1.0})
    rest = dict.fromkeys(Record._fields[2:], 0.5)
    rows = [Record(epoch=n, test_accuracy=math.nan, **rest) for n in (1, 2)]
    state = {"x": jax.numpy.arange(3.0)}
    folder.save(rows, state)
    file = folder.path / "records.jsonl"
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    found, again = folder.restore({"x": jax.numpy.zeros(3)})
    assert [r.epoch for r in found] == [1, 2]
    assert math.isnan(found[-1].test_accuracy)
    assert found[-1][2:] == rows[-1][2:]
    assert (again["x"] == state["x"]).all()


@pytest.mark.slow
def test_a_kill_and_a_resume_give_the_records_of_an_uninterrupted_run(tmp_path):
    argv = ["--epochs", "6", "--batch-size", "128", "--method", "constrain-adam"]

    def command(out, *more):
        return [
            sys.executable,
            "-m",
            "benchmarks.ocnn",
            *argv,
            "--out",
            str(out),
            *more,
        ]

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(command(whole), check=True)
    process = subprocess.Popen(command(cut))
    file = cut / "constrain-adam" / "seed-0" / "records.jsonl"
    while not file.exists() or len(file.read_text().splitlines()) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = len(Run(file.parent).records())
    assert found < 7
    subprocess.run(command(cut, "--resume"), check=True)
    expected = Run(whole / "constrain-adam" / "seed-0").records()
    assert timeless(Run(file.parent).records()) == timeless(expected)


@pytest.mark.slow
def test_seeds_differ_and_the_table_has_their_spread(tmp_path):
    short = ["--epochs", 1, "--examples", 512, "--method", "adam"]
    printed = run(*short, "--out", tmp_path / "two", "--seeds", 0, 1)
    first, second = find_runs(tmp_path / "two")
    assert first.records()[-1].train_loss != second.records()[-1].train_loss
    assert "±" in next(line for line in printed.splitlines() if "Adam" in line)


@pytest.mark.slow
def test_a_search_finds_the_rate_of_the_highest_accuracy(tmp_path, capsys):
    out = tmp_path / "search"
    short = ["--epochs", 1, "--examples", 512]
    argv = [*short, "--out", out, "--method", "adam"]
    printed = run(*argv, "--grid", 1e-6, 0.03, module=search)
    rates = json.loads((out / "rates.json").read_text())
    assert rates == {"adam": 0.03}
    assert printed.count("**") == 2
    argv = [*short, "--method", "adam", "--out", tmp_path / "runs"]
    run(*argv, "--rates", out / "rates.json")
    assert Run(tmp_path / "runs" / "adam" / "seed-0").settings["learning_rate"] == 0.03
    line = refusal(capsys, *argv, "--resume", "--rate", "adam=0.5")
    assert "0.03" in line
    assert "0.5" in line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--method", "no-such-method"], "no-such-method"),
        (["--dataset", "imagenet"], "imagenet"),
        (["--model", "resnet"], "resnet"),
        (["--model", "vgg8"], "32×32"),
        (["--epochs", "0"], "at least 1"),
        (["--batch-size", "1000000"], "at most the 1437 training examples"),
        (["--gamma", "-1"], "--gamma"),
        (["--width", "0"], "--width"),
        (["--seeds", "-1"], "--seeds"),
        (["--rate", "adam"], "--rate"),
        (["--rates", "nowhere.json"], "nowhere.json"),
        (["--dataset", "cifar10", "--data", "nowhere"], "no cifar10 in nowhere"),
        (["--dataset", "cifar100", "--data", "nowhere"], "cifar-100-python.tar.gz"),
        (["--dataset", "fashion_mnist", "--data", "nowhere"], "download train-images"),
        pytest.param(
            ["--budget-minutes", "1e-6"],
            "an epoch of algorithm-1-momentum takes",
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_a_bad_argument_is_one_line_and_writes_nothing(argv, words, tmp_path, capsys):
    out = tmp_path / "none"
    assert words in refusal(capsys, *argv, "--out", out)
    assert not out.exists()


def test_a_folder_of_another_configuration_is_left_alone(finished, capsys, tmp_path):
    out, _ = finished
    before = {f: f.read_bytes() for f in out.rglob("*") if f.is_file()}
    line = refusal(capsys, "--epochs", 3, "--out", out, "--resume")
    assert "another configuration" in line
    assert "--resume" in refusal(capsys, *SHORT, "--out", out)
    assert before == {f: f.read_bytes() for f in out.rglob("*") if f.is_file()}
    (tmp_path / "mine.txt").write_text("mine")
    assert "not empty" in refusal(capsys, *SHORT, "--out", tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_a_budget_ends_a_run_that_can_be_resumed(tmp_path, monkeypatch):
    # Every look at the clock is a minute after the last.
    clock = iter(range(0, 10**6, 60))
    monkeypatch.setattr(experiment, "_now", lambda: next(clock))
    monkeypatch.setattr(experiment.Experiment, "_check_budget", lambda *_: None)
    short = ["--epochs", 4, "--examples", 512]
    argv = [*short, "--method", "adam", "--out", tmp_path]
    run(*argv, "--budget-minutes", 4)
    folder = Run(tmp_path / "adam" / "seed-0")
    assert 1 < len(folder.records()) < 5
    run(*argv, "--resume")
    assert len(folder.records()) == 5


def test_a_report_of_something_else_is_refused(tmp_path, capsys):
    line = refusal(capsys, tmp_path, module=report)
    assert "configuration.json" in line
