"""Muon and its kind on constrained matrices: ``python -m benchmarks muon``.

Three tasks. ``modular`` is the network of "Modular manifolds" on CIFAR-10, ``text`` a
character-level transformer on the sources of Python's standard library, ``copying`` the
copying problem of recurrent networks. The learning rate of each method comes from one
grid; then all seeds are run with it. Records are lines of JSON in the folder of
``--runs``, so that a stopped command goes on with ``--resume``. ``--time`` runs no
training: it times single steps, all methods taking turns, for an idle machine.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.muon import copying, modular, text
from benchmarks.muon.experiment import best_rate, run_all
from benchmarks.muon.report import figure, rows_of, spent, text_of
from benchmarks.muon.step_time import step_seconds
from benchmarks.muon.task import Task
from benchmarks.shared.data import DATASETS, DataError
from benchmarks.shared.results import (
    RESULTS,
    environment,
    make_parser,
    surroundings,
    write,
)
from benchmarks.shared.runs import Runs

OURS = {"modular": "constrain-muon", "text": "constrain-muon", "copying": "orthogonal"}
"""The contender against which the others are judged."""


def make_task(name: str, data: Path, *, quick: bool) -> Task:
    """The task of that name; in small if it is only to be seen to run."""
    if name == "modular":
        split = DATASETS["cifar10"](data)
        if quick:
            few = split.limited(4096)
            return modular.make("CIFAR-10", few, epochs=1, rates=(0.01, 0.1))
        return modular.make("CIFAR-10", split)
    if name == "text":
        return text.make(steps=4, rates=(0.03,)) if quick else text.make()
    return copying.make(delay=20, steps=4, rates=(1e-3,)) if quick else copying.make()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and write the report."""
    parser = make_parser("muon", __doc__, RESULTS / "muon")
    add = parser.add_argument
    add("--task", choices=OURS, default="modular")
    add("--data", type=Path, default=Path("data"), help="folder of CIFAR-10 (data)")
    add("--runs", type=Path, default=Path("runs/muon"), help="folder of the records")
    add("--resume", action="store_true", help="keep the runs that are there")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--methods", nargs="+", help="those to train now; the report has all so far")
    add("--minutes", type=float, default=math.inf, help="begin no run after these")
    add("--time", action="store_true", help="time steps at the rates that were found")
    options = parser.parse_args(arguments)
    name, folder = options.task, options.runs
    if options.quick:
        options.seeds, folder = options.seeds[:1], folder / "quick"
        # What is kept is not replaced by what is small.
        if options.out == RESULTS / "muon":
            options.out = folder
    runs, times = Runs(folder / f"{name}.jsonl"), folder / f"{name}-time.json"
    if runs.records and not (options.resume or options.time):
        parser.exit(2, f"{parser.prog}: {runs.path} holds runs: add --resume\n")
    try:
        task = make_task(name, options.data, quick=options.quick)
    except DataError as error:
        parser.exit(2, f"{parser.prog}: {error}, or name its folder by --data\n")
    names = options.methods or list(task.contenders)
    if unknown := set(names) - set(task.contenders):
        known = ", ".join(task.contenders)
        parser.exit(2, f"{parser.prog}: no {', '.join(unknown)}; there are {known}\n")
    chosen = task._replace(contenders={n: task.contenders[n] for n in names})
    around = environment()
    if options.time:
        found = {n: runs.find(method=n, seed=options.seeds[0]) for n in task.contenders}
        if not all(found.values()):
            why = f"{runs.path} has no runs of some methods: train them before --time"
            parser.exit(2, f"{parser.prog}: {why}\n")
        rates = {n: best_rate(r, options.seeds[0]) for n, r in found.items()}
        seconds = step_seconds(task, rates, 3 if options.quick else 30)
        content = {"seconds": seconds, **around}
        times.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    elif not run_all(chosen, runs, options.seeds, 60 * options.minutes):
        print("The time is used up; --resume goes on from here.")
        return
    timed = json.loads(times.read_text("utf-8")) if times.exists() else None
    rows = rows_of(task, runs, options.seeds, timed and timed["seconds"])
    if timed is not None:
        around = {key: timed.get(key, value) for key, value in around.items()}
    figure(options.out / f"{name}.png", task, rows)
    body = text_of(
        *(task, rows, OURS[name]),
        cost=spent(task, rows, options.seeds),
        timed_apart=timed is not None,
        image=f"{name}.png",
    )
    result = {**around, "timed": timed, "records": runs.records}
    write(options.out, name, result, f"{body}\n\n{surroundings(around)}")
