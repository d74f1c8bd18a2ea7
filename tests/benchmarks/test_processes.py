"""Several processes train as one does, and outlive the death of one of them.

Every process here is a real one, started by `launch`.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scaling import launch

pytest.importorskip("orbax.checkpoint")

ROOT = Path(__file__).parents[2]
TRAIN = (sys.executable, "-m", "benchmarks", "distributed")
LAUNCH = (sys.executable, "-m", "benchmarks", "launch")
RECIPE = ("--steps", "12", "--save-every", "4")
TIMEOUT = 150
# Nothing of the tests' own settings, and programs that compile in half the time.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("JAX_", "XLA_"))
} | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
# A shell's background jobs ignore interrupts, and so would what they start.
INTERRUPTIBLE = (
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])",
)


@contextlib.contextmanager
def started(*command):
    """A process that ends with the block, or after a while."""
    with subprocess.Popen(
        (*INTERRUPTIBLE, *command),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        # Not kill, which would leave the launcher's own processes behind.
        watchdog = threading.Timer(TIMEOUT, process.terminate)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.terminate()


def launcher(count, *command):
    return (*LAUNCH, f"--processes={count}", *command)


def run(*command):
    """The exit code of a command and what it printed."""
    with started(*command) as process:
        printed, _ = process.communicate()
    return process.returncode, printed


def train(count, out, *options):
    """The same of a training; one process needs no launcher."""
    command = (*TRAIN, *RECIPE, "--out", str(out), *options)
    return run(*command) if count == 1 else run(*launcher(count, "--", *command))


def read_until(process, text):
    """The lines up to the first that contains the text."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


def ids(lines):
    """The process ids that the launcher tells, by index."""
    told = [line.split() for line in lines if " has the id " in line]
    return {int(words[2]): int(words[-1]) for words in told}


def alive(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def load(out):
    with np.load(out / "final.npz") as ends:
        return dict(ends)


def assert_same(actual, expected, tolerance):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            actual[name], value, rtol=0, atol=tolerance, err_msg=name
        )


@pytest.fixture
def whole(once):
    """The folder of an uninterrupted run and what it printed, by its processes."""

    def run_to_the_end(count, out):
        code, printed = train(count, out)
        assert code == 0, printed
        return printed

    def make(count):
        return once(f"processes-{count}", partial(run_to_the_end, count))

    return make


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_end_where_one_does(whole, count):
    _, printed = whole(count)
    assert f"processes {count}, devices {count}" in printed
    assert "kernel (32, 16) in parts of (16, 16)" in printed
    one, several = load(whole(1)[0]), load(whole(count)[0])
    # Sums over processes round in another order: 2e-7 was seen.
    assert_same(several, one, tolerance=1e-6)
    for ends in (one, several):
        assert all(np.isfinite(value).all() for value in ends.values())
        assert ends["feasibility/hidden/kernel"] < 1e-5


@pytest.mark.slow
def test_a_run_with_a_killed_process_ends_and_can_be_resumed(whole, tmp_path):
    out = tmp_path / "killed"
    # Sure to be killed before it goes on, however busy the machine.
    pausing = (*TRAIN, *RECIPE, "--out", str(out), "--pause", str(TIMEOUT))
    with started(*launcher(2, "--", *pausing)) as process:
        workers = ids(read_until(process, "saved after step 4"))
        os.kill(workers[1], signal.SIGKILL)
        printed, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    last = printed.splitlines()[-1]
    assert last == "launch: process 1 was killed by SIGKILL; the others were ended"
    assert not any(alive(pid) for pid in workers.values())
    assert not (out / "final.npz").exists()

    other = shutil.copytree(out, tmp_path / "by one")
    code, printed = train(2, out, "--resume")
    assert code == 0, printed
    assert "resumed after step 4" in printed
    assert_same(load(out), load(whole(2)[0]), tolerance=0)

    # One process puts together what two have saved.
    code, printed = train(1, other, "--resume")
    assert code == 0, printed
    assert_same(load(other), load(whole(2)[0]), tolerance=1e-6)


def test_a_resumed_run_needs_a_checkpoint(tmp_path):
    code, printed = train(2, tmp_path / "none", "--resume")
    assert code == 2
    assert "error: --resume: there is no checkpoint in" in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_new_run_does_not_overwrite_an_old_one(whole):
    code, printed = train(1, whole(1)[0])
    assert code == 2
    assert "has checkpoints; go on from them by --resume" in printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes=0", "--", "true"], "--processes: must be at least 1, not 0"),
        (["--processes=two", "--", "true"], "--processes: invalid int value: 'two'"),
        (["--processes=2"], "no command: put it after --"),
    ],
)
def test_the_launcher_refuses_bad_input_in_a_line(arguments, message, capsys):
    # It starts no process, so neither does the test.
    with pytest.raises(SystemExit) as stopped:
        launch.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_command_that_cannot_be_started_is_told_in_a_line():
    code, printed = run(*LAUNCH, "--", "no-such-command")
    assert code == 2
    assert "cannot start the command: [Errno 2]" in printed.splitlines()[-1]
    assert "Traceback" not in printed


def python(program):
    """A worker without JAX."""
    return ("--", sys.executable, "-c", program)


def test_every_process_is_told_its_number_and_one_address():
    show = "import os; print(*(os.environ['JAX_' + n] for n in {}))".format(
        ("PROCESS_ID", "NUM_PROCESSES", "COORDINATOR_ADDRESS")
    )
    code, printed = run(*launcher(3, *python(show)))
    assert code == 0
    told = sorted(line.split() for line in printed.splitlines() if line[0] == "[")
    assert [words[:3] for words in told] == [[f"[{i}]", str(i), "3"] for i in range(3)]
    (address,) = {words[3] for words in told}
    assert address.startswith("127.0.0.1:")


def answers(host, port):
    """Whether somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 5):
        return True
    return False


def test_the_coordinator_listens_on_the_loopback_address_alone():
    """All of 127.0.0.0/8 reaches a socket that listens on all interfaces."""
    program = (
        "import os, jax, time; jax.distributed.initialize("
        "os.environ['JAX_COORDINATOR_ADDRESS'], 1, 0);"
        f"print('up', os.environ['JAX_COORDINATOR_ADDRESS']); time.sleep({TIMEOUT})"
    )
    with started(*launcher(1, *python(program))) as process:
        last = read_until(process, "up ")[-1]
        host, port = last.split()[-1].split(":")
        name = socket.gethostname()
        others = {address[4][0] for address in socket.getaddrinfo(name, None)}
        heard = {h for h in {host, "127.0.0.2", "::1", *others} if answers(h, port)}
        process.terminate()
        process.communicate()
    assert heard == {host}


def test_the_first_failure_is_told_and_its_code_passed_on():
    program = "import os, time; os.environ['JAX_PROCESS_ID'] == '1' and exit(7)"
    code, printed = run(*launcher(3, *python(f"{program}; time.sleep({TIMEOUT})")))
    assert code == 7
    last = printed.splitlines()[-1]
    assert last == "launch: process 1 ended with exit code 7; the others were ended"


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_a_stopped_launcher_stops_even_processes_that_would_go_on(number, word):
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    wait = f"{stubborn} print('up'); time.sleep({TIMEOUT})"
    with started(*launcher(2, *python(wait))) as process:
        lines = read_until(process, "up") + read_until(process, "up")
        process.send_signal(number)
        printed, _ = process.communicate()
    assert process.returncode == 128 + number
    assert printed == f"launch: {word}; all processes were ended\n"
    assert len(ids(lines)) == 2
    assert not any(alive(pid) for pid in ids(lines).values())
