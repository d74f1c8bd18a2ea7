"""Train orthogonally constrained networks: section 5 of the paper.

``python -m benchmarks.ocnn`` trains a small network on the digits that come with
scikit-learn, in a minute: the paper's two algorithms with momentum, `constrain` and
unconstrained Adam, from the same projected start and with the same l1 term. Options
lead from there to the paper's own experiment, VGG-19 on CIFAR with every method. Runs
are kept in a folder and go on after a kill with ``--resume``; `report` makes tables and
figures of it.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from benchmarks.ocnn import report
from benchmarks.ocnn.experiment import SCHEDULES, Experiment, Refusal, read_rates
from benchmarks.ocnn.runs import FolderError
from benchmarks.shared.data import DATASETS, DataError
from benchmarks.shared.methods import METHODS
from benchmarks.shared.models import MODELS

Number = TypeVar("Number", int, float)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the experiment.

    Args:
        argv: The command line after the program's name; the process's own if None.
    """
    parser = make_parser(
        "python -m benchmarks.ocnn", "Train orthogonally constrained networks."
    )
    add = parser.add_argument
    add("--seeds", nargs="+", type=at_least(0, int), default=[0], metavar="N")
    add(
        "--rate",
        action="append",
        type=_rate,
        default=[],
        metavar="NAME=η₀",
        help="initial learning rate of a method; may be given again for others",
    )
    add("--rates", type=Path, help="file of initial learning rates, by a search")
    options = parser.parse_args(argv)
    try:
        rates = {name: entry.learning_rate for name, entry in METHODS.items()}
        rates |= {} if options.rates is None else read_rates(options.rates)
        rates |= dict(options.rate)
        experiment = Experiment(options)
        pairs = [(m, seed) for seed in options.seeds for m in experiment.methods]
        experiment.run([(m, seed, rates[m]) for m, seed in pairs])
        text = report.write(options.out)
    except (DataError, FolderError, Refusal) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(text)


class _Parser(argparse.ArgumentParser):
    """One whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Say it, and exit with code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def make_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The options that say what is trained, on what, for how long and where to."""
    parser = _Parser(prog=prog, description=description)
    add = parser.add_argument
    add("--dataset", choices=DATASETS, default="digits")
    add("--data", type=Path, default=Path("data"), help="folder of the data (data)")
    add("--examples", type=at_least(1, int), help="train on the first so many alone")
    add("--model", choices=MODELS, help="the network")
    add(
        "--width",
        type=_positive,
        default=1.0,
        help="what the channels of VGG are multiplied by (1)",
    )
    add(
        "--method",
        nargs="+",
        dest="methods",
        choices=METHODS,
        metavar="NAME",
        help=f"of {', '.join(METHODS)}",
    )
    add("--epochs", type=at_least(1, int), help="passes over the training data")
    add("--batch-size", type=at_least(1, int), help="examples of a step")
    add("--gamma", type=at_least(0, float), help="weight γ of the l1 term")
    add("--beta", type=at_least(0, float), help="weight β of the penalty in h")
    add(
        "--schedule",
        choices=SCHEDULES,
        help="of the learning rate: the paper's η₀/(0.1 k + 1) or a cosine",
    )
    add(
        "--budget-minutes",
        type=_positive,
        help="stop after the last epoch that fits; --resume goes on",
    )
    add("--out", type=Path, default=Path("runs/ocnn"), help="folder of the runs")
    add("--resume", action="store_true", help="go on with the runs in that folder")
    return parser


def at_least(bound: int, kind: Callable[[str], Number]) -> Callable[[str], Number]:
    """The type of an option that must not be less than that."""

    def parse(text: str) -> Number:
        value = kind(text)
        if not bound <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {bound}, not {text}")
        return value

    # What argparse calls the type in its messages.
    parse.__name__ = kind.__name__
    return parse


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be positive, not {text}")
    return value


def _rate(text: str) -> tuple[str, float]:
    name, found, value = text.partition("=")
    if not found or name not in METHODS:
        raise argparse.ArgumentTypeError(
            f"must be NAME=NUMBER with the name of a method, not {text}"
        )
    return name, _positive(value)
