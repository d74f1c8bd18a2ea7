"""Start one command as several JAX processes on this machine.

``python -m benchmarks launch --processes 4 -- python -m benchmarks distributed`` runs
the command after ``--`` four times. Each copy finds in its environment what
`jax.distributed.initialize` asks for:

``JAX_COORDINATOR_ADDRESS``, ``JAX_COORDINATOR_BIND_ADDRESS``
    Where process 0 listens: a free port of the loopback interface, and of no other.
``JAX_NUM_PROCESSES``
    How many there are.
``JAX_PROCESS_ID``
    Which of them this one is, from 0.

What they print is passed on with the number of the process in front. If one of them
fails, the others are ended, a line says which it was, and the launcher ends with its
exit code (128 + n for signal n, as in a shell). Ctrl-C and SIGTERM end them all.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
BIND = "JAX_COORDINATOR_BIND_ADDRESS"
COUNT = "JAX_NUM_PROCESSES"
INDEX = "JAX_PROCESS_ID"

# JAX takes SIGTERM for the notice of a preemption and goes on, so that a worker that
# waits for a dead one has to be killed; others get this long to end by themselves.
GRACE_SECONDS = 1.0
# The longest line passed on whole. Compiler dumps exceed asyncio's 64 KiB.
LINE_BYTES = 1 << 24


class WorkerError(Exception):
    """A process ended with anything but 0.

    Attributes:
        code: The launcher's own exit code for it.
    """

    def __init__(self, index: int, returncode: int) -> None:
        killed = returncode < 0
        how = (
            f"was killed by {signal.Signals(-returncode).name}"
            if killed
            else f"ended with exit code {returncode}"
        )
        super().__init__(f"process {index} {how}")
        self.code = 128 - returncode if killed else returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Run the launcher.

    Args:
        argv: The command line after the program's name; the process's own if None.

    Returns:
        The exit code.
    """
    options = _options(argv)
    try:
        asyncio.run(_run_all(options.processes, options.command))
    except WorkerError as error:
        return _say(f"{error}; the others were ended", error.code)
    except OSError as error:
        return _say(f"cannot start the command: {error}", 2)
    except KeyboardInterrupt:
        return _say("interrupted; all processes were ended", 128 + signal.SIGINT)
    except asyncio.CancelledError:
        return _say("terminated; all processes were ended", 128 + signal.SIGTERM)
    return 0


async def _run_all(count: int, command: Sequence[str]) -> None:
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    address = f"127.0.0.1:{_free_port()}"
    shared = {
        COORDINATOR: address,
        # By default process 0 would listen on all interfaces, without a password.
        BIND: address,
        COUNT: str(count),
        # Python would keep back what it prints to a pipe, and lose it in a crash.
        "PYTHONUNBUFFERED": "1",
    }
    try:
        async with asyncio.TaskGroup() as group:
            for index in range(count):
                group.create_task(_run(index, command, shared | {INDEX: str(index)}))
    except ExceptionGroup as errors:
        # Any others that ended before they were asked to did so because of the first.
        raise errors.exceptions[0] from None


async def _run(index: int, command: Sequence[str], variables: dict[str, str]) -> None:
    """Run one process to its end; cancelled, end it."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=LINE_BYTES,
        # A group of its own: Ctrl-C reaches the launcher alone, which then ends the
        # process together with whatever that has started.
        start_new_session=True,
    )
    _say(f"process {index} has the id {process.pid}")
    forwarding = asyncio.create_task(_forward(index, process))
    try:
        returncode = await process.wait()
    finally:
        await _end(process)
        # Only now: the last lines of a process that failed say why.
        await forwarding
    if returncode:
        raise WorkerError(index, returncode)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leave nothing behind, not even if interrupted once more."""
    try:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE_SECONDS)
    finally:
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


async def _forward(index: int, process: asyncio.subprocess.Process) -> None:
    assert process.stdout
    async for line in process.stdout:
        text = line.decode(errors="replace").rstrip("\n")
        print(f"[{index}] {text}", flush=True)


def _say(text: str, code: int = 0) -> int:
    print(f"launch: {text}", file=sys.stderr, flush=True)
    return code


def _free_port() -> int:
    # Free now. JAX cannot be handed the open socket, so that somebody else may take
    # the port in between; process 0 then fails, which is reported like any failure.
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks launch",
        description="Start one command as several JAX processes on this machine.",
        usage="%(prog)s [--processes N] -- COMMAND …",
    )
    parser.add_argument(
        "--processes", type=int, default=2, metavar="N", help="how many (default: 2)"
    )
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="what to run")
    options = parser.parse_args(argv)
    if options.processes < 1:
        parser.error(f"--processes: must be at least 1, not {options.processes}")
    if not options.command:
        parser.error("no command: put it after --, as in -- python train.py")
    return options
