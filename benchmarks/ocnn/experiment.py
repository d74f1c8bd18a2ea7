"""The runs of one configuration: which data, model and stepsizes, and for how long."""

import argparse
import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from benchmarks.ocnn.measuring import Judge, Record
from benchmarks.ocnn.runs import Run, open_folder
from benchmarks.ocnn.training import State, Trainer, drawing
from benchmarks.shared.data import DATASETS, Split
from benchmarks.shared.fingerprint import of_part
from benchmarks.shared.methods import METHODS, TRAINED, Task
from benchmarks.shared.models import MODELS
from benchmarks.shared.timing import timed

_now = time.monotonic
OURS = ("algorithm", "ranger", "yogi", "constrain")
"""How the names of methods begin that are of this package."""

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
_SMALL = Protocol(
    model="cnn",
    epochs=60,
    batch_size=64,
    gamma=1e-4,
    beta=3.0,
    schedule="cosine",
    methods=MAIN,
)
_PAPER = Protocol(
    model="vgg19",
    epochs=100,
    batch_size=128,
    gamma=1e-5,
    beta=0.1,
    schedule="paper",
    methods=TRAINED,
)
PROTOCOLS = {
    "digits": _SMALL,
    "fashion_mnist": _SMALL._replace(epochs=10, batch_size=128),
    "cifar10": _PAPER,
    "cifar100": _PAPER,
}


class Refusal(ValueError):
    """What was asked for cannot be done; the message is one line."""


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
        make, mask = MODELS[chosen["model"]]
        self.model = make(self.split.classes, options.width)
        side = self.split.train.images.shape[1]
        if chosen["model"].startswith("vgg") and side < 32:
            raise Refusal(
                f"--model {chosen['model']}: five poolings need images of 32×32, and "
                f"those of {options.dataset} have {side}×{side}; take cnn or vit"
            )
        steps = count // self.batch_size
        schedule = SCHEDULES[chosen["schedule"]]
        self.task = Task(
            mask=mask,
            gamma=chosen["gamma"],
            beta=chosen["beta"],
            schedule=lambda rate: schedule(rate, steps, self.epochs),
        )
        self.judge = Judge(self.model, self.task, self.split)
        self.draw = drawing(self.model, self.task, self.split)
        # Programs are compiled once for all seeds.
        self.trainer = functools.cache(self._trainer)

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
                trainer = self.trainer(name, rate)
                run = Run(options.out / self.folder(name, rate) / f"seed-{seed}")
                bar.set_description(f"{name}, seed {seed}")
                if not self._train(run, trainer, seed, bar, deadline):
                    tqdm.write("The budget is used up; --resume goes on from here.")
                    return

    def folder(self, name: str, rate: float) -> str:
        """Where the runs of a method are."""
        del rate
        return name

    def _trainer(self, name: str, rate: float) -> Trainer:
        method = METHODS[name].make(self.task, rate)
        return Trainer(self.model, self.task, self.split, self.batch_size, method)

    def _train(
        self, run: Run, trainer: Trainer, seed: int, bar: Any, deadline: float
    ) -> bool:
        """Whether the run could be ended before the deadline."""
        # A run of ours must not go on with another step; rivals do not have it.
        own = {"step": of_part("step")} if run.method.startswith(OURS) else {}
        run.begin({**trainer.method.settings, **own})
        if (records := run.records()) and records[-1].epoch == self.epochs:
            bar.update(self.epochs)
            return True
        # The same parameters for all methods.
        state = trainer.start(*self.draw(jax.random.key(seed)))
        records, state = run.restore(state)
        if not records:
            records = [self._record(trainer, state, 0, 0.0, [])]
        bar.update(records[-1].epoch)
        run.note(compile_seconds=trainer.step.seconds)
        longest = 0.0
        for epoch in range(records[-1].epoch + 1, self.epochs + 1):
            began = _now()
            if began + longest > deadline:
                return False
            state, taken = trainer.epoch(state, seed, epoch)
            before = records[-1].seconds
            records.append(self._record(trainer, state, epoch, before, taken))
            run.save(records, state)
            longest = max(longest, _now() - began)
            _show(bar, records[-1])
        run.finish()
        return True

    def _record(
        self,
        trainer: Trainer,
        state: State,
        epoch: int,
        before: float,
        taken: Sequence[float],
    ) -> Record:
        """What there is to say after an epoch.

        Args:
            trainer: What trains.
            state: Where it stands.
            epoch: After which epoch.
            before: The seconds of the epochs before.
            taken: Those of each step of this one.
        """
        return Record(
            epoch=epoch,
            seconds=before + sum(taken),
            step_seconds=float(np.median(taken)) if taken else 0.0,
            **self.judge(state.params, trainer.point(state.params), state.stats),
        )

    def _check_budget(self, run: tuple[str, int, float], seconds: float) -> None:
        """Refuse, before anything is written, what would not end an epoch."""
        name, seed, rate = run
        trainer = self.trainer(name, rate)
        state = trainer.start(*self.draw(jax.random.key(seed)))
        train, key = self.split.train, jax.random.key(0)
        rows = jnp.arange(self.batch_size, dtype="int32")
        state, _ = timed(trainer.step.call, state, train, rows, key)
        _, took = timed(trainer.step.call, state, train, rows, key)
        needed = trainer.step.seconds + trainer.steps * took
        if needed > seconds:
            raise Refusal(
                f"--budget-minutes: an epoch of {name} takes about {needed / 60:.1f} "
                f"minutes, and {seconds / 60:g} are given"
            )


def read_rates(path: Path) -> dict[str, float]:
    """The rates that `search` has written."""
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
