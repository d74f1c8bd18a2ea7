"""The index of the benchmarks: every command starts, and so does the main job."""

import importlib
import runpy
import subprocess
import sys

import pytest

from benchmarks.index import COMMANDS
from benchmarks.shared.methods import METHODS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name, capsys):
    if name == "distributed":
        pytest.importorskip("orbax.checkpoint")
    module = importlib.import_module(f"benchmarks.{COMMANDS[name].module}")
    with pytest.raises(SystemExit) as caught:
        module.main(["--help"])
    assert caught.value.code == 0
    program = "python -m benchmarks.ocnn" if name == "ocnn" else f"benchmarks {name}"
    assert f"usage: {program}" in capsys.readouterr().out.replace(
        "python -m benchmarks ", "benchmarks "
    )


def run(monkeypatch, *arguments):
    """What ``python -m benchmarks`` does, without a new interpreter: its exit code."""
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("benchmarks", run_name="__main__")
    return caught.value.code


def test_the_index_lists_every_command_and_refuses_others(monkeypatch, capsys):
    assert not run(monkeypatch)
    listed = capsys.readouterr().out
    assert all(f"| {name} " in listed for name in COMMANDS)
    assert run(monkeypatch, "no-such-command") == 2
    assert "no-such-command" in capsys.readouterr().err


def test_the_main_job_is_a_module_of_its_own():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ocnn", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    printed = "".join(done.stdout.split())
    assert all(name in printed for name in METHODS)
