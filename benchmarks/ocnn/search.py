"""Initial learning rates by grid search: ``python -m benchmarks search``.

As in the paper, η₀ is that of {k₁·10^(−k₂): k₁ = 1, 3, 5, 7, 9; k₂ = 1, 2} after which
the accuracy is highest. Options are those of `train`; the rates go to a file
that it reads by ``--rates``.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.ocnn import train
from benchmarks.ocnn.experiment import Experiment, Refusal
from benchmarks.ocnn.runs import FolderError, find_runs
from benchmarks.shared.data import DataError
from benchmarks.shared.methods import METHODS
from benchmarks.shared.tables import table

GRID = tuple(round(k1 * 10.0**-k2, 3) for k2 in (2, 1) for k1 in (1, 3, 5, 7, 9))


class Search(Experiment):
    """Runs that differ in the learning rate, in one folder."""

    def folder(self, name: str, rate: float) -> str:
        """A folder for each learning rate."""
        return f"{name}@{rate:g}"


def main(argv: Sequence[str] | None = None) -> None:
    """Search, and write the rates.

    Args:
        argv: The command line after the program's name; the process's own if None.
    """
    parser = train.make_parser(
        "python -m benchmarks search", "Find initial learning rates by grid search."
    )
    add = parser.add_argument
    add("--seed", type=train.at_least(0, int), default=0)
    add("--grid", nargs="+", type=float, default=GRID, help="the rates to try")
    parser.set_defaults(out=Path("runs/search"))
    options = parser.parse_args(argv)
    try:
        search = Search(options)
        tried = [
            (m, options.seed, rate) for m in search.methods for rate in options.grid
        ]
        search.run(tried)
    except (DataError, FolderError, Refusal) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    found = accuracies(options.out, search.epochs)
    rates = best(found)
    (options.out / "rates.json").write_text(json.dumps(rates, indent=1) + "\n")
    text = report(found, rates)
    (options.out / "search.md").write_text(text)
    print(text)


def accuracies(folder: Path, epochs: int) -> dict[str, dict[float, float]]:
    """Of each method, the accuracy after the last epoch at each rate."""
    found: dict[str, dict[float, float]] = {}
    for run in find_runs(folder):
        last = run.records()[-1]
        if last.epoch == epochs:
            name, _, rate = run.method.rpartition("@")
            found.setdefault(name, {})[float(rate)] = last.test_accuracy
    return {name: found[name] for name in METHODS if name in found}


def best(found: Mapping[str, Mapping[float, float]]) -> dict[str, float]:
    """The rate of the highest accuracy; of equals, the smallest."""
    return {
        name: max(sorted(tried), key=lambda rate: tried[rate])
        for name, tried in found.items()
    }


def report(
    found: Mapping[str, Mapping[float, float]], rates: Mapping[str, float]
) -> str:
    """The accuracies, the best of each method in bold."""
    grid = sorted({rate for tried in found.values() for rate in tried})

    def cell(name, rate):
        text = f"{100 * found[name][rate]:.1f}" if rate in found[name] else ""
        return f"**{text}**" if rate == rates[name] else text

    rows = [
        [METHODS[name].label, *(cell(name, rate) for rate in grid)] for name in found
    ]
    return (
        "Test accuracy after the search, in percent, at each initial learning rate.\n\n"
        + table(["method", *(f"{rate:g}" for rate in grid)], rows)
        + "\n"
    )
