"""The runs of a folder as reports need them: gathered into one file, by method."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.ocnn.measuring import Record
from benchmarks.ocnn.runs import FolderError, find_runs, read_configuration
from benchmarks.shared.fingerprint import of_part
from benchmarks.shared.methods import METHODS
from benchmarks.shared.results import made

KEPT = "report.json"
MORE = "more.json"
"""Of a folder of runs: what is known besides, as `paper` writes it."""

DIGITS = 6
"""The significant digits that are kept of a record."""


class Group(NamedTuple):
    """The runs of one method.

    Attributes:
        name: The method.
        settings: Those of each run: one for each seed, but for those that diverged.
        records: Of each run.
        diverged: How many others became infinite or NaN.
    """

    name: str
    settings: list[dict[str, Any]]
    records: list[list[Record]]
    diverged: int = 0

    @property
    def label(self) -> str:
        """The name of the method in tables."""
        label = METHODS[self.name].label
        if not self.diverged:
            return label
        total = self.diverged + len(self.records)
        return f"{label} ({self.diverged} of {total} diverged)"

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


def gather(folder: Path) -> dict[str, Any]:
    """The configuration of a folder, its environment and the records of its runs.

    They are those of the runs, or, where these are gone, of the file that a report has
    left.

    Raises:
        FolderError: If there are neither.
    """
    if (folder / "configuration.json").is_file():
        runs = [
            {
                "method": run.method,
                "seed": run.seed,
                "settings": run.settings,
                "records": _columns(run.records()),
            }
            for run in find_runs(folder)
        ]
        if not runs:
            raise FolderError(f"{folder} holds no records yet")
        more = folder / MORE
        known = json.loads(more.read_text("utf-8")) if more.is_file() else {}
        head = {**read_configuration(folder), **known, "made": _made(runs)}
        return {**head, "runs": runs}
    if not (folder / KEPT).is_file():
        raise FolderError(
            f"{folder} is no folder of runs: it has neither configuration.json nor "
            f"{KEPT}"
        )
    return json.loads((folder / KEPT).read_text("utf-8"))


def _made(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """How the runs were made: the step is that of the runs, not of the code now."""
    steps = {run["settings"].get("step") for run in runs} - {None}
    how = {**made(), "step": " and ".join(sorted(steps)) or of_part("step")}
    spent = (run["records"]["seconds"][-1] or 0.0 for run in runs)
    return {**how, "seconds": round(sum(spent), 1)}


def write_gathered(folder: Path, content: dict[str, Any]) -> None:
    """Keep what `gather` has returned, one line for each run."""
    head = {name: part for name, part in content.items() if name != "runs"}
    lines = ",\n".join(json.dumps(run, allow_nan=False) for run in content["runs"])
    text = json.dumps(head, ensure_ascii=False).removesuffix("}")
    (folder / KEPT).write_text(f'{text}, "runs": [\n{lines}\n]}}\n', "utf-8")


def _timed_apart(content: dict[str, Any], name: str, records: Any) -> list[Record]:
    """Records whose seconds are the steps before them times that of a step alone."""
    timing = content.get("timing", {})
    if name not in timing.get("seconds", {}):
        return records
    each = timing["seconds"][name]
    return [
        r._replace(seconds=r.epoch * timing["steps"] * each, step_seconds=each)
        for r in records
    ]


def find_groups(content: dict[str, Any]) -> list[Group]:
    """The runs that `gather` has returned, in the order of the list of methods.

    Where steps were timed apart, seconds are by that, since runs share the machine.

    A run that diverged says nothing but that: its network is random, its entries are
    NaN. If all of a method did, they are kept, so that it is not missing.
    """
    groups = []
    for name in METHODS:
        mine = [run for run in content["runs"] if run["method"] == name]
        pairs = [
            (run["settings"], _timed_apart(content, name, _records(run["records"])))
            for run in mine
        ]
        sound = [pair for pair in pairs if np.isfinite(pair[1][-1].objective)]
        if kept := sound or pairs:
            groups.append(
                Group(
                    name=name,
                    settings=[settings for settings, _ in kept],
                    records=[records for _, records in kept],
                    diverged=len(pairs) - len(sound),
                )
            )
    return groups


def _columns(records: list[Record]) -> dict[str, list[float | None]]:
    columns = zip(Record._fields, zip(*records, strict=True), strict=True)
    return {name: [_shortened(v) for v in values] for name, values in columns}


def _shortened(value: float) -> float | None:
    """A number of few digits; None for those that JSON does not know."""
    if isinstance(value, int):
        return value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _records(columns: dict[str, list[float | None]]) -> list[Record]:
    rows = zip(*(columns[name] for name in Record._fields), strict=True)
    return [Record._make(math.nan if v is None else v for v in row) for row in rows]
