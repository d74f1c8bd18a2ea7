"""Section 5 of the paper at a size for two cores: ``python -m benchmarks paper``.

Nine methods, the paper's six and three of today: the initial learning rate of each is
the best of one grid, then all seeds are trained with it, one run on each core, and
steps are timed in turns when all is done. γ takes the same share of a kernel's entries
as in the paper's VGG-19. Runs have checkpoints after each epoch: ``--resume`` goes on.
"""

import json
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
from tqdm import tqdm

from benchmarks.ocnn import gamma, report, train
from benchmarks.ocnn.experiment import Experiment, Refusal
from benchmarks.ocnn.groups import MORE
from benchmarks.ocnn.runs import FolderError, open_folder
from benchmarks.ocnn.search import (
    Search,
    accuracies,
    best,
    report as search_report,
)
from benchmarks.shared.data import DataError, batches
from benchmarks.shared.results import QUICK, RESULTS, environment, make_parser
from benchmarks.shared.timing import alone, interleaved
from benchmarks.shared.vgg import VGG

METHODS = (
    *("algorithm-1", "algorithm-2", "ranger", "yogi", "r-sgd-polar", "r-proxsgd"),
    *("constrain-adam", "constrain-muon", "soft-penalty"),
)
GRID = (0.003, 0.01, 0.03, 0.1, 0.3)
TURNS, BEFORE = 20, 3
"""How often steps are timed, and how many are taken before."""


class Size(NamedTuple):
    """How much of the experiment is done on a data set.

    Attributes:
        arguments: Those of `train`.
        search: Those of the search, in which they differ.
        scaled: Whether γ is scaled to the paper's VGG-19.
    """

    arguments: tuple[str, ...]
    search: tuple[str, ...] = ()
    scaled: bool = False


WIDTH, EPOCHS = 0.125, 6
_CIFAR = Size(
    arguments=("--model", "vgg8", "--width", str(WIDTH), "--epochs", str(EPOCHS)),
    # All images: by an epoch of 10,000 of them, which is 78 steps, two searches that
    # differed in γ alone chose 0.003 and 0.01 for constrain(adam).
    search=("--epochs", "1"),
    scaled=True,
)
SIZES = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "digits": Size(arguments=("--epochs", "60"), search=("--epochs", "20")),
}
Runs = list[tuple[str, int, float]]


def _options(arguments: Sequence[str], **more: Any) -> Any:
    options = train.make_parser("python -m benchmarks paper", "").parse_args(arguments)
    vars(options).update(more)
    return options


@alone
def _work(kind: type[Experiment], options: Any, runs: Runs) -> None:
    kind(options).run(runs)


def _pin(cores: Any) -> None:
    """Keep a process to a core of its own, so that runs do not slow each other."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})


def _all(kind: type[Experiment], options: Any, parts: list[Runs], jobs: int) -> None:
    """Run the parts, one on each core."""
    experiment = kind(options)
    folder: Path = options.out
    open_folder(folder, experiment.configuration, resume=True)
    del experiment
    spawn = multiprocessing.get_context("spawn")
    cores = spawn.SimpleQueue()
    known = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    for i in range(jobs):
        cores.put(known[i % len(known)])
    with ProcessPoolExecutor(jobs, spawn, _pin, (cores,)) as pool:
        try:
            done = [pool.submit(_work, kind, options, runs) for runs in parts]
            for job in tqdm(done, unit="method", disable=None):
                job.result()
        finally:
            pool.shutdown(cancel_futures=True)


@alone
def step_seconds(options: Any, rates: dict[str, float]) -> dict[str, Any]:
    """The time of a step of each method, all of them taking turns, and to compile."""
    around = environment()
    experiment = Experiment(options)
    thunks, compiling = {}, {}
    for name, rate in tqdm(rates.items(), unit="method", disable=None):
        trainer = experiment.trainer(name, rate)
        state = trainer.start(*experiment.draw(jax.random.key(0)))
        thunks[name] = _going(trainer, state, experiment)
        compiling[name] = trainer.step.seconds
        for _ in range(BEFORE):
            thunks[name]()
    seconds = interleaved(thunks, TURNS)
    steps = len(experiment.split.train.labels) // experiment.batch_size
    known = {"compile": compiling, "load": around["load"], "steps": steps}
    return {"seconds": seconds, **known}


def _going(trainer, state, experiment):
    """A step that goes on from where it is, as a function without arguments."""
    train_set, key = experiment.split.train, jax.random.key(0)
    rows = batches(0, 1, len(train_set.labels), experiment.batch_size)
    count = 0

    def step():
        nonlocal state, count
        some = rows[count % len(rows)]
        state, count = trainer.step.call(state, train_set, some, key), count + 1
        return state

    return step


def _shrinking(options: Any, classes: int) -> gamma.Shrinking:
    """The γ of a run on CIFAR."""
    count = options.examples or 50_000
    model = VGG(8, options.width, classes)
    return gamma.scaled(model, count // 128, options.epochs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, train, time and report; what is done is left alone."""
    parser = make_parser("paper", __doc__, RESULTS / "ocnn")
    add = parser.add_argument
    add("--dataset", choices=SIZES, default="cifar10")
    add("--data", type=Path, default=Path("data"), help="folder of the data (data)")
    add("--runs", type=Path, default=Path("runs/paper"), help="folder of the runs")
    add("--epochs", help=f"in place of {EPOCHS}, on CIFAR")
    add("--examples", help="train on the first so many alone")
    add("--method", nargs="+", choices=METHODS, default=METHODS, metavar="NAME")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--jobs", type=int, default=2, help="runs at a time, each on a core (2)")
    add("--resume", action="store_true", help="go on with the runs that are there")
    given = parser.parse_args(arguments)
    size, folder = SIZES[given.dataset], given.runs / given.dataset
    grid, methods, seeds = GRID, list(given.method), given.seeds
    common = ["--dataset", given.dataset, "--data", str(given.data), *size.arguments]
    search = list(size.search)
    for name in ("epochs", "examples"):
        if getattr(given, name) is not None:
            common += [f"--{name}", getattr(given, name)]
    if given.quick:
        common = ["--dataset", "digits", "--epochs", "2"]
        search, size = ["--epochs", "1"], size._replace(scaled=False)
        grid, methods, seeds = GRID[2:3], ["constrain-adam", "r-sgd-polar"], seeds[:1]
        folder = QUICK / "paper"
    if folder.exists() and not (given.resume or given.quick):
        parser.exit(2, f"{parser.prog}: {folder} holds runs: add --resume\n")
    out = given.out if given.quick else given.out / given.dataset
    try:
        options = _options(common, out=folder / "runs", resume=True)
        more: dict[str, Any] = {}
        if size.scaled:
            shrinking = _shrinking(options, 100 if given.dataset == "cifar100" else 10)
            options.gamma, more["gamma"] = shrinking.gamma, gamma.in_words(shrinking)
        looking = _options([*common, *search], out=folder / "search", resume=True)
        looking.gamma = options.gamma
        tried = [[(m, seeds[0], rate) for rate in grid] for m in methods]
        _all(Search, looking, tried, given.jobs)
        found = accuracies(looking.out, Search(looking).epochs)
        rates = {m: rate for m, rate in best(found).items() if m in methods}
        more["search"] = search_report(found, best(found))
        parts = [[(m, seed, rates[m]) for seed in seeds] for m in methods]
        _all(Experiment, options, parts, given.jobs)
        more["timing"] = step_seconds(options, rates)
        (options.out / MORE).write_text(json.dumps(more, indent=1) + "\n", "utf-8")
        print(report.write(options.out, out=out))
    except (DataError, FolderError, Refusal) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
