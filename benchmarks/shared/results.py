"""What every command has in common: its options, its files, and how they were made."""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks.shared import fingerprint
from benchmarks.shared.moves import moves

RESULTS = Path("benchmarks/results")
QUICK = Path("runs/quick")
"""Where commands write when they are only to be seen to run."""

PACKAGES = (
    *("cdopt_jax", "jax", "jaxlib", "optax", "flax", "numpy", "scipy", "scikit-learn"),
    *("torch", "geoopt", "geotorch", "pogo-torch", "pymanopt", "pystop"),
)


class Running(NamedTuple):
    """The command that is running.

    Attributes:
        line: What was typed behind ``python -m benchmarks``.
        module: The module whose ``main`` it is.
        began: When, by `time.perf_counter`.
    """

    line: str
    module: str
    began: float


_RUNNING: ContextVar[Running | None] = ContextVar("running", default=None)


@contextmanager
def running(name: str, module: str, arguments: Sequence[str]) -> Iterator[None]:
    """What is written meanwhile, is written by this command.

    Args:
        name: The name under which the index finds the command.
        module: The module whose ``main`` it is.
        arguments: What it is given.
    """
    line = " ".join([name, *arguments])
    command = Running(line=line, module=module, began=time.perf_counter())
    token = _RUNNING.set(command)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def made() -> dict[str, Any]:
    """The commit, the fingerprints of the code and, if it is known, the command.

    ``step`` and ``solver`` are those parts of the package, ``sources`` the code of the
    benchmark; ``seconds`` is how long the command has been running.
    """
    found: dict[str, Any] = {"commit": _commit()}
    found |= {part: fingerprint.of_part(part) for part in fingerprint.PARTS}
    found["moves"] = moves()
    command = _RUNNING.get()
    if command is not None:
        found["command"] = command.line
        found["sources"] = fingerprint.of_benchmark(command.module)
        found["seconds"] = round(time.perf_counter() - command.began, 1)
    return found


def _commit() -> str | None:
    """The commit that is checked out, with a + if files were changed since."""

    def git(*arguments: str) -> str:
        line = ("git", "-C", str(fingerprint.ROOT), *arguments)
        return subprocess.run(
            line, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "cdopt_jax", "benchmarks/*.py")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


class _Quick(argparse.Action):
    """A flag that keeps what is small from replacing what is kept."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any):
        super().__init__(option_strings, dest, nargs=0, default=False, **more)

    def __call__(self, parser, namespace, values, option_string=None):
        del values, option_string
        namespace.quick = True
        if namespace.out == parser.get_default("out"):
            namespace.out = QUICK / namespace.out.name


def make_parser(name: str, description: str | None, out: Path):
    """The options of all commands.

    Args:
        name: The name under which the index finds the command.
        description: What it answers.
        out: The folder to which it writes if no other is given.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action=_Quick, help=f"small, to see it run; writes to {QUICK}"
    )
    parser.add_argument("--out", type=Path, default=out, help=f"folder ({out})")
    return parser


def write(folder: Path, name: str, result: dict[str, Any], text: str) -> None:
    """Write the records and the report with how they were made; print the report."""
    folder.mkdir(parents=True, exist_ok=True)
    how = made()
    content = json.dumps({**result, "made": how}, indent=1, ensure_ascii=False)
    (folder / f"{name}.json").write_text(content + "\n", "utf-8")
    text = "\n\n".join([text.rstrip("\n"), in_words(how)])
    (folder / f"{name}.md").write_text(text + "\n", "utf-8")
    print(text)


def in_words(how: dict[str, Any]) -> str:
    """How a report was made, as the line that ends it."""
    line = f"`python -m benchmarks {how['command']}`" if "command" in how else "a call"
    took = f" in {how['seconds'] / 60:.1f} minutes" if "seconds" in how else ""
    commit = "" if how["commit"] is None else f", commit {how['commit']}"
    return f"Made by {line}{took}{commit}, step {how['step']}."


def processors() -> int | None:
    """How many this process may use; a system may not know."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def environment() -> dict[str, Any]:
    """What the figures depend on: the code, versions of packages, machine and load.

    The load is that of the last minute: libraries whose threads wait for each other
    suffer from it out of proportion.
    """
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "device": jax.devices()[0].device_kind,
        "machine": _machine(),
        "processors": processors(),
        "load": os.getloadavg()[0],
        "made": made(),
    }


def _machine() -> str:
    """The model of the processor, where the system tells."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


def surroundings(result: dict[str, Any]) -> str:
    """An `environment` in words."""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    load = f", load {result['load']:.1f} before" if "load" in result else ""
    machine = result.get("machine", result["device"])
    return f"{machine}, {result['processors']} processors{load}; {versions}."
