"""The runs of a folder, by method."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.ocnn.measuring import Record
from benchmarks.shared.methods import METHODS
from benchmarks.ocnn.runs import Run, find_runs


class Group(NamedTuple):
    """The runs of one method.

    Attributes:
        name: The method.
        runs: One for each seed, but for those that diverged.
        records: Of each run.
        diverged: How many others became infinite or NaN.
    """

    name: str
    runs: list[Run]
    records: list[list[Record]]
    diverged: int = 0

    @property
    def label(self) -> str:
        """The name of the method in tables."""
        label = METHODS[self.name].label
        if not self.diverged:
            return label
        return f"{label} ({self.diverged} of {self.diverged + len(self.runs)} diverged)"

    def last(self, field: str) -> np.ndarray:
        """A field of the last record of each run."""
        return np.array([getattr(records[-1], field) for records in self.records])

    def curve(self, field: str) -> np.ndarray:
        """A field over the epochs that all runs have: of shape (runs, epochs)."""
        length = min(map(len, self.records))
        return np.array(
            [[getattr(r, field) for r in records[:length]] for records in self.records]
        )

    def seconds_to(self, accuracy: float) -> np.ndarray:
        """When each run first had that test accuracy; NaN if it never had."""
        times = [
            next((r.seconds for r in records if r.test_accuracy >= accuracy), np.nan)
            for records in self.records
        ]
        return np.array(times)


def find_groups(folder: Path) -> list[Group]:
    """The runs of a folder, by method, in the order of the list of methods.

    A run that diverged says nothing but that: its network is random, its entries are
    NaN. If all of a method did, they are kept, so that it is not missing.
    """
    found: dict[str, list[Run]] = {}
    for run in find_runs(folder):
        found.setdefault(run.method, []).append(run)
    groups = []
    for name in METHODS:
        pairs = [(run, run.records()) for run in found.get(name, [])]
        sound = [pair for pair in pairs if np.isfinite(pair[1][-1].objective)]
        kept = sound or pairs
        if kept:
            runs, records = (list(column) for column in zip(*kept, strict=True))
            groups.append(Group(name, runs, records, len(pairs) - len(sound)))
    return groups
