"""Make every result that is kept: ``python -m benchmarks --all``.

Each job is a process of its own, one after another. With ``--resume``, results that
are current are left alone, and commands that can go on where they stopped do so.
``--quick`` runs all of them in small, in less than ten minutes, and writes to a folder
that is not kept. ``--list`` says what is current and runs nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.index import COMMANDS, JOBS, Job
from benchmarks.shared import fingerprint
from benchmarks.shared.haste import flags
from benchmarks.shared.results import QUICK, RESULTS
from benchmarks.shared.tables import table


def stale(job: Job, folder: Path = RESULTS) -> str | None:
    """Why the result of a job is to be made again; None if it is current.

    It is current if it was made by the same command, with the part of the package that
    it measures and the code of the benchmark as they are now.
    """
    file = folder / job.result
    if not file.is_file():
        return "missing"
    made = json.loads(file.read_text("utf-8")).get("made")
    return "of unknown origin" if made is None else differs(job, made)


def differs(job: Job, made: dict[str, Any]) -> str | None:
    """What has changed since a result was made, in a few words; None if nothing."""
    if not fingerprint.is_same(job.part, made):
        return "of other moves" if job.part == "moves" else f"of another {job.part}"
    module = f"benchmarks.{COMMANDS[job.command].module}"
    if made.get("sources") != fingerprint.of_benchmark(module):
        return "of another benchmark"
    asked = [job.command, *job.arguments]
    given = made.get("command", "").split()
    if given[: len(asked)] != asked:
        return f"by another command: {' '.join(given)}"
    return None


def declare(job: Job, commit: str, folder: Path = RESULTS) -> None:
    """Write down of which commit a result is, with the fingerprints of that commit.

    It is for results that a command wrote before results said it themselves.
    """
    file = folder / job.result
    content = json.loads(file.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        archive = subprocess.run(
            ["git", "archive", commit, "cdopt_jax", "benchmarks"],
            capture_output=True,
            check=True,
            cwd=fingerprint.ROOT,
        ).stdout
        subprocess.run(["tar", "-x", "-C", place], input=archive, check=True)
        made = {part: fingerprint.of_part(part, root) for part in fingerprint.PARTS}
        module = f"benchmarks.{COMMANDS[job.command].module}"
        made["sources"] = fingerprint.of_benchmark(module, root)
        made["moves"] = json.loads(
            subprocess.run(
                [sys.executable, fingerprint.ROOT / "benchmarks/shared/moves.py"],
                env={**os.environ, "PYTHONPATH": place},
                capture_output=True,
                check=True,
            ).stdout
        )
    command = " ".join([job.command, *job.arguments])
    made = {**content.get("made", {}), "commit": commit, "command": command, **made}
    text = json.dumps({**content, "made": made}, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", "utf-8")


def line(job: Job, options: argparse.Namespace) -> list[str]:
    """The command line of a job, behind ``python -m benchmarks``."""
    if options.quick:
        out = QUICK / Path(job.result).parent
        return [job.command, *(job.quick or ()), "--quick", "--out", str(out)]
    words = [job.command, *job.arguments]
    if job.data is not None:
        words += ["--data", str(options.data)]
    return [*words, "--resume"] if job.resumes and options.resume else words


def _missing(job: Job, options: argparse.Namespace) -> bool:
    """Whether the data of a job are not there."""
    return job.data is not None and not any(options.data.glob(f"{job.data}*"))


def _chosen(options: argparse.Namespace) -> list[Job]:
    jobs = [job for job in JOBS if options.only is None or job.name in options.only]
    return [job for job in jobs if not (options.quick and job.quick is None)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return how many jobs failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks --all",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--resume", action="store_true", help="leave alone what is current")
    add("--quick", action="store_true", help="all in small, written to runs/quick")
    add("--list", action="store_true", help="say what is current, and run nothing")
    add("--only", nargs="+", choices=[job.name for job in JOBS], metavar="RESULT")
    add("--made-at", metavar="COMMIT", help="declare of which commit --only RESULT is")
    add("--data", type=Path, default=Path("data"), help="folder of the data (data)")
    options = parser.parse_args(arguments)
    if options.made_at is not None:
        if options.only is None:
            parser.error("--made-at needs --only RESULT")
        for job in _chosen(options):
            declare(job, options.made_at)
        return 0
    rows, failed = [], 0
    # What is small is not kept, and takes longer to compile than to run.
    hasty = {"XLA_FLAGS": flags()} if options.quick else {}
    surrounded = {**hasty, **os.environ}
    for job in _chosen(options):
        why = stale(job)
        words = line(job, options)
        if options.list:
            outcome, took = why or "current", ""
        elif options.resume and not options.quick and why is None:
            outcome, took = "current", ""
        elif _missing(job, options):
            outcome, took = f"left out: {options.data} has no {job.data}", ""
        else:
            print(f"python -m benchmarks {' '.join(words)}", flush=True)
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks", *words], env=surrounded
            )
            took = f"{time.perf_counter() - began:.0f}"
            outcome = "made" if done.returncode == 0 else f"exit {done.returncode}"
            failed += done.returncode != 0
        rows.append((job.name, outcome, took, " ".join(words)))
    print(table(("result", "", "s", "python -m benchmarks …"), rows))
    return failed
