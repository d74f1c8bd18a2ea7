"""Train an orthogonally constrained CNN: section 5 of the paper, in a minute.

``python -m benchmarks.ocnn`` compares the paper's two algorithms with unconstrained
Adam on the digits that come with scikit-learn, from the same projected start and with
the same l1 term. It prints a table and writes the curves and all numbers to a folder.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import jax
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks import data, figures, models, report
from benchmarks.methods import METHODS, Task
from benchmarks.training import Record, Trainer

Number = TypeVar("Number", int, float)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the experiment.

    Args:
        argv: The command line after the program's name; the process's own if None.
    """
    began = time.perf_counter()
    parser = _parser()
    options = parser.parse_args(argv)
    split = data.digits()
    count = len(split.train.labels)
    if options.batch_size > count:
        parser.error(f"--batch-size: at most the {count} training examples")
    options.out.mkdir(parents=True, exist_ok=True)

    order = data.batch_order(
        options.seed, count, epochs=options.epochs, batch_size=options.batch_size
    )
    steps = order.shape[0] * order.shape[1]
    task = Task(
        mask=models.CNN_MASK,
        regularizer=cdx.prox.l1(options.gamma),
        schedule=lambda rate: _schedule(rate, steps),
    )
    trainer = Trainer(models.CNN(split.classes), task, split, order)
    start = trainer.start(jax.random.key(options.seed))

    names = list(dict.fromkeys(options.method))
    runs = {}
    with tqdm(total=len(names) * options.epochs, unit="epoch") as bar:

        def advance(record: Record) -> None:
            bar.set_postfix(accuracy=f"{record.test_accuracy:.3f}", refresh=False)
            bar.update()

        for name in names:
            bar.set_description(name)
            runs[name] = trainer.train(METHODS[name](task), start, advance)

    configuration = {k: v for k, v in vars(options).items() if k != "out"}
    report.save(options.out / "ocnn.json", configuration, runs)
    title = f"Orthogonally constrained CNN on digits, γ = {options.gamma:g}"
    figures.curves(options.out / "ocnn.png", title, runs)

    print(f"{title}: after {options.epochs} epochs, {steps} steps")
    print(report.table(runs))
    print(report.LEGEND)
    print(f"Curves and numbers in {options.out}")
    print(f"{time.perf_counter() - began:.0f} s in all")


def _schedule(rate: float, steps: int) -> optax.Schedule:
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=rate,
        # Without it Algorithm 2 diverges with some seeds.
        warmup_steps=steps // 20,
        decay_steps=steps,
        # Algorithm 2 thresholds at learning rate × γ. Were that to end at zero, it
        # would sink below the rounding of A(X), and no entry would stay exactly zero.
        end_value=1e-3 * rate,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ocnn",
        description="Train an orthogonally constrained CNN on small digits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--epochs",
        type=_at_least(1, int),
        default=60,
        help="passes over the training data",
    )
    add("--batch-size", type=_at_least(1, int), default=64, help="examples a step")
    add(
        "--seed",
        type=_at_least(0, int),
        default=0,
        help="of the start and the order of batches",
    )
    add(
        "--gamma",
        type=_at_least(0, float),
        default=1e-4,
        help="weight γ of the l1 term",
    )
    add(
        "--method",
        nargs="+",
        choices=list(METHODS),
        default=list(METHODS),
        metavar="NAME",
        help=f"which to run, of {', '.join(METHODS)}",
    )
    add("--out", type=Path, default=Path("runs/ocnn"), help="folder for the results")
    return parser


def _at_least(bound: int, kind: Callable[[str], Number]) -> Callable[[str], Number]:
    def parse(text: str) -> Number:
        value = kind(text)
        if not bound <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {bound}, not {text}")
        return value

    # What argparse calls the type in its messages.
    parse.__name__ = kind.__name__
    return parse


if __name__ == "__main__":
    main()
