"""Train orthogonally constrained networks: section 5 of the paper.

``python -m benchmarks.ocnn`` trains a small network on the digits that come with
scikit-learn, in a minute: the paper's two algorithms with momentum, `constrain` and
unconstrained Adam, from the same projected start and with the same l1 term. Options
lead from there to the paper's own experiment, VGG-19 on CIFAR with every method. Runs
are kept in a folder, go on after a kill with ``--resume``, and `benchmarks.report`
makes tables and figures of it.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import optax
from tqdm import tqdm

from benchmarks import report
from benchmarks.data import DATASETS, DataError, Split
from benchmarks.methods import METHODS, Method, Task
from benchmarks.models import MODELS
from benchmarks.runs import FolderError, Run, open_folder
from benchmarks.training import Trainer

Number = TypeVar("Number", int, float)
_now = time.monotonic
MAIN = ("algorithm-1-momentum", "algorithm-2-momentum", "constrain-adam", "adam")


class Protocol(NamedTuple):
    """What is usual on a data set, where the options say nothing.

    Attributes:
        model: The network.
        epochs: Passes over the training examples.
        batch_size: Examples of a step.
        gamma: The weight of the l1 term.
        beta: The weight of the penalty in h.
        schedule: The course of the learning rate.
        methods: What is run.
    """

    model: str
    epochs: int
    batch_size: int
    gamma: float
    beta: float
    schedule: str
    methods: tuple[str, ...]


# On the digits, β = 0.1 lets ‖XᵀX − I‖ pass 1 in the first epochs, outside the region
# in which h is known to be faithful to f.
_SMALL = Protocol("cnn", 60, 64, 1e-4, 3.0, "cosine", MAIN)
_PAPER = Protocol("vgg19", 100, 128, 1e-5, 0.1, "paper", tuple(METHODS))
PROTOCOLS = {
    "digits": _SMALL,
    "fashion_mnist": _SMALL._replace(epochs=10, batch_size=128),
    "cifar10": _PAPER,
    "cifar100": _PAPER,
}


class Refusal(ValueError):
    """What was asked for cannot be done; the message is one line."""


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
        rates |= {} if options.rates is None else _read_rates(options.rates)
        rates |= dict(options.rate)
        experiment = Experiment(options)
        pairs = [(m, seed) for seed in options.seeds for m in experiment.methods]
        experiment.run([(m, seed, rates[m]) for m, seed in pairs])
        report.write(options.out)
    except (DataError, FolderError, Refusal) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(report.summary(options.out))


class Experiment:
    """The runs of one configuration.

    Args:
        options: The parsed command line; see `make_parser`.

    Raises:
        DataError: If the data are missing or damaged.
        Refusal: If the options do not fit each other.
    """

    def __init__(self, options: argparse.Namespace):
        self.options = options
        usual = PROTOCOLS[options.dataset]._asdict()
        given = vars(options)
        chosen = {
            name: value if given.get(name) is None else given[name]
            for name, value in usual.items()
        }
        self.methods = list(dict.fromkeys(chosen.pop("methods")))
        self.configuration = {
            "dataset": options.dataset,
            "examples": options.examples,
            "width": options.width,
            **chosen,
        }
        self.split = _load(options)
        self.batch_size, self.epochs = chosen["batch_size"], chosen["epochs"]
        count = len(self.split.train.labels)
        if self.batch_size > count:
            raise Refusal(f"--batch-size: at most the {count} training examples")
        make, self.mask = MODELS[chosen["model"]]
        self.model = make(self.split.classes, options.width)
        side = self.split.train.images.shape[1]
        if chosen["model"].startswith("vgg") and side < 32:
            raise Refusal(
                f"--model {chosen['model']}: five poolings need images of 32×32, and "
                f"those of {options.dataset} have {side}×{side}; take cnn or vit"
            )

    def trainer(self, seed: int) -> Trainer:
        """That of a seed."""
        chosen = self.configuration
        steps = len(self.split.train.labels) // self.batch_size
        schedule = SCHEDULES[chosen["schedule"]]
        task = Task(
            self.mask,
            chosen["gamma"],
            chosen["beta"],
            lambda rate: schedule(rate, steps, self.epochs),
        )
        return Trainer(self.model, task, self.split, self.batch_size, seed)

    def run(self, runs: Sequence[tuple[str, int, float]]) -> None:
        """Train each method with each seed at each initial learning rate.

        Those that are done are left alone, others go on where they stopped.
        """
        options = self.options
        deadline = math.inf
        if options.budget_minutes is not None:
            self._check_budget(runs[0], 60 * options.budget_minutes)
            deadline = _now() + 60 * options.budget_minutes
        open_folder(options.out, self.configuration, resume=options.resume)
        with tqdm(total=len(runs) * self.epochs, unit="epoch", disable=None) as bar:
            for name, seed, rate in runs:
                trainer = self.trainer(seed)
                method = METHODS[name].make(trainer.task, rate)
                run = Run(options.out / self.folder(name, rate) / f"seed-{seed}")
                bar.set_description(f"{name}, seed {seed}")
                if not self._train(run, trainer, method, bar, deadline):
                    tqdm.write("The budget is used up; --resume goes on from here.")
                    return

    def folder(self, name: str, rate: float) -> str:
        """Where the runs of a method are."""
        del rate
        return name

    def _train(
        self, run: Run, trainer: Trainer, method: Method, bar: Any, deadline: float
    ) -> bool:
        """Whether the run could be ended before the deadline."""
        run.begin(dict(method.settings))
        if (records := run.records()) and records[-1].epoch == self.epochs:
            bar.update(self.epochs)
            return True
        state = trainer.start(method)
        records, state = run.restore(state)
        if not records:
            records = [trainer.record(method, state, 0, 0.0, [])]
        bar.update(records[-1].epoch)
        step, seconds = trainer.compile(method, state)
        run.note(compile_seconds=seconds)
        longest = 0.0
        for epoch in range(records[-1].epoch + 1, self.epochs + 1):
            began = _now()
            if began + longest > deadline:
                return False
            state, taken = trainer.epoch(step, state, epoch)
            before = records[-1].seconds
            records.append(trainer.record(method, state, epoch, before, taken))
            run.save(records, state)
            longest = max(longest, _now() - began)
            _show(bar, records[-1])
        run.finish()
        return True

    def _check_budget(self, run: tuple[str, int, float], seconds: float) -> None:
        """Refuse, before anything is written, what would not end an epoch."""
        name, seed, rate = run
        trainer = self.trainer(seed)
        method = METHODS[name].make(trainer.task, rate)
        state = trainer.start(method)
        step, compiling = trainer.compile(method, state)
        train, key = self.split.train, jax.random.key(0)
        rows = jnp.arange(self.batch_size, dtype="int32")
        state = jax.block_until_ready(step(state, train, rows, key))
        began = _now()
        jax.block_until_ready(step(state, train, rows, key))
        needed = compiling + trainer.steps * (_now() - began)
        if needed > seconds:
            raise Refusal(
                f"--budget-minutes: an epoch of {name} takes about {needed / 60:.1f} "
                f"minutes, and {seconds / 60:g} are given"
            )


def _read_rates(path: Path) -> dict[str, float]:
    """The rates that `benchmarks.search` has written."""
    try:
        content = json.loads(path.read_text("utf-8"))
        return {name: float(content[name]) for name in METHODS if name in content}
    except (OSError, ValueError, TypeError) as error:
        raise Refusal(f"--rates: {path} cannot be read: {error}") from None


def _load(options: argparse.Namespace) -> Split:
    split = DATASETS[options.dataset](options.data)
    return split if options.examples is None else split.limited(options.examples)


def _show(bar, record):
    bar.set_postfix(
        accuracy=f"{record.test_accuracy:.3f}",
        loss=f"{record.train_loss:.3f}",
        feasibility=f"{record.feasibility:.1e}",
        sparsity=f"{record.sparsity:.1%}",
        step=f"{record.step_seconds:.3f}s",
        refresh=False,
    )
    bar.update()


def _cosine(rate: float, steps: int, epochs: int) -> optax.Schedule:
    total = steps * epochs
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=rate,
        # Without it Algorithm 2 diverges with some seeds.
        warmup_steps=total // 20,
        decay_steps=total,
        # Algorithm 2 thresholds at learning rate × γ. Were that to end at zero, it
        # would sink below the rounding of A(X), and no entry would stay exactly zero.
        end_value=1e-3 * rate,
    )


def _paper(rate: float, steps: int, epochs: int) -> optax.Schedule:
    """η₀/(0.1·k + 1) in epoch k, counted from zero."""
    del epochs
    return lambda count: rate / (0.1 * (jnp.asarray(count) // steps) + 1)


SCHEDULES: dict[str, Callable[[float, int, int], optax.Schedule]] = {
    "cosine": _cosine,
    "paper": _paper,
}


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


if __name__ == "__main__":
    main(sys.argv[1:])
