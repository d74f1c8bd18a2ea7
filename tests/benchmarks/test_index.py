"""The index of the benchmarks: every command starts, and so does the main job."""

import importlib
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


def python(*arguments):
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, check=False
    )


def test_the_index_lists_every_command_and_refuses_others():
    listed = python("benchmarks")
    assert listed.returncode == 0
    assert all(f"| {name} " in listed.stdout for name in COMMANDS)
    refused = python("benchmarks", "no-such-command")
    assert refused.returncode == 2
    assert "no-such-command" in refused.stderr


def test_the_main_job_is_a_module_of_its_own():
    done = python("benchmarks.ocnn", "--help")
    assert done.returncode == 0
    printed = "".join(done.stdout.split())
    assert all(name in printed for name in METHODS)
