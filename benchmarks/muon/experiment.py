"""The runs of a task: each rate from a grid, then all seeds with it."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tqdm import tqdm

from benchmarks.muon.task import Task
from benchmarks.muon.training import Trainer
from benchmarks.shared.runs import Runs
from benchmarks.shared.timing import alone


def level(record: dict[str, Any]) -> float:
    """The training loss at the end, by which rates are chosen; NaN is the worst."""
    loss = record["loss"]
    return loss if math.isfinite(loss) else math.inf


def best_rate(records: Sequence[dict[str, Any]], seed: int) -> float:
    """The rate of the lowest training loss with this seed."""
    return min((r for r in records if r["seed"] == seed), key=level)["rate"]


def missing(
    task: Task, runs: Runs, name: str, seeds: Sequence[int]
) -> Iterator[tuple[float, int]]:
    """The rates and seeds of a contender that no record has yet.

    The rate is known once the grid is done, so each run must be recorded before the
    next is asked for.
    """
    for rate in task.rates:
        if not runs.find(method=name, rate=rate, seed=seeds[0]):
            yield rate, seeds[0]
    rate = best_rate(runs.find(method=name), seeds[0])
    for seed in seeds[1:]:
        if not runs.find(method=name, rate=rate, seed=seed):
            yield rate, seed


@alone
def run_all(
    task: Task,
    runs: Runs,
    seeds: Sequence[int],
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Train what is missing; whether all could be done in the time.

    A run is not begun where the longest one so far would not fit any more.
    """
    deadline, longest = clock() + seconds, 0.0
    for name, contender in (bar := tqdm(task.contenders.items(), disable=None)):
        trainer = Trainer(task, contender)
        for rate, seed in missing(task, runs, name, seeds):
            bar.set_description(f"{contender.label}, rate {rate:g}, seed {seed}")
            began = clock()
            if began + longest > deadline:
                return False
            found = trainer.run(rate, seed)
            runs.add({"method": name, "rate": rate, "seed": seed, **found})
            longest = max(longest, clock() - began)
    return True
