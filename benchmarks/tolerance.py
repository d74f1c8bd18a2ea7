"""Steps and seconds to a tolerance, against the QR retraction, on PCA.

``python -m benchmarks.tolerance``: n = 1000, p = 50, condition number 1000, to a
relative gap of 1e-6, measured on the manifold, at constant learning rates.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.methods.retraction import retracted
from benchmarks.problems import Problem
from benchmarks.problems.linear_algebra import pca

GAP = 1e-6
LIMIT = 400
REPEATS = 60
RATES = {
    "momentum": (0.5, 1.0, 2.0, 3.0, 3.5),
    "adam": (0.005, 0.0075, 0.01, 0.0125, 0.015),
}
OPTIMISERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "adam": optax.adam,
}
METHODS: dict[str, Callable[[Any], Any]] = {
    "ours": cdx.constrain,
    "QR": lambda optimiser: retracted(optimiser, None),
}


def problem(seed: int) -> Problem:
    """The PCA of that seed."""
    return pca(seed, 1000, 50, 1e3)


def _stepper(made: Problem, method: str, optimiser: str):
    def step(x, state, rate):
        tx = METHODS[method](OPTIMISERS[optimiser](rate))
        updates, state = tx.update(jax.grad(made.value)(x), state, x)
        return optax.apply_updates(x, updates), state

    return step


def _start(made: Problem, method: str, optimiser: str):
    tx = METHODS[method](OPTIMISERS[optimiser](0.1))
    return made.start, tx.init(made.start)


def count_steps(
    made: Problem, method: str, optimiser: str, rates: Sequence[float]
) -> list[int]:
    """The first step at which the gap is met, for each rate; `LIMIT` + 1 if none."""
    step = jax.jit(_stepper(made, method, optimiser))
    value = jax.jit(lambda x: made.value(cdx.stiefel.project(x)))
    goal = (made.best or 0.0) * (1 - GAP)

    def first(rate):
        x, state = _start(made, method, optimiser)
        for count in range(1, LIMIT + 1):
            x, state = step(x, state, rate)
            if value(x) <= goal:
                return count
        return LIMIT + 1

    return [first(rate) for rate in rates]


def seconds(made: Problem, optimiser: str, rate: float) -> dict[str, float]:
    """The median seconds of a step, the methods taking turns."""
    steps, states, taken = {}, {}, {method: [] for method in METHODS}
    for method in METHODS:
        steps[method] = jax.jit(_stepper(made, method, optimiser))
        states[method] = _start(made, method, optimiser)
        jax.block_until_ready(steps[method](*states[method], rate))
    for _ in range(REPEATS):
        for method, step in steps.items():
            began = time.perf_counter()
            states[method] = jax.block_until_ready(step(*states[method], rate))
            taken[method].append(time.perf_counter() - began)
    return {method: float(np.median(times)) for method, times in taken.items()}


def table(records: list[dict[str, Any]]) -> str:
    """The counts and times in Markdown."""
    starts = len(records[0]["steps"]["ours"])
    lines = [
        f"PCA 1000 × 50 with condition number 1000: steps to a relative gap of {GAP:g} "
        f"at a constant learning rate, geometric means over {starts} starts, of which "
        f"those that had not met it after {LIMIT} steps count as {LIMIT + 1} (how "
        "many, in brackets); on how many starts ours took fewer steps, or more; and "
        "the median time of a step.\n",
        "| optimiser | rate | steps, ours | steps, QR | fewer, more | ms a step, ours "
        "| QR |",
        "|---|---|---|---|---|---|---|",
    ]
    for optimiser in RATES:
        mine = [r for r in records if r["optimiser"] == optimiser]
        for r in mine:
            times = [f"{1e3 * r['seconds'][m]:.1f}" for m in METHODS]
            cells = [*_compared(r["steps"]), *times]
            lines.append(f"| {optimiser} | {r['rate']} | {' | '.join(cells)} |")
        best = {m: np.min([r["steps"][m] for r in mine], axis=0) for m in METHODS}
        cells = _compared(best)
        lines.append(f"| {optimiser} | the best of each | {' | '.join(cells)} | | |")
    return "\n".join(lines) + "\n"


def _compared(steps):
    ours, theirs = np.asarray(steps["ours"]), np.asarray(steps["QR"])

    def mean(counts):
        left = int(np.sum(counts > LIMIT))
        text = f"{np.exp(np.mean(np.log(counts))):.1f}"
        return f"{text} ({left})" if left else text

    fewer, more = int(np.sum(ours < theirs)), int(np.sum(ours > theirs))
    return mean(ours), mean(theirs), f"{fewer}, {more}"


def main(arguments: list[str] | None = None) -> None:
    """Count and time, and write the records and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=7)
    add("--out", type=Path, default=Path("benchmarks/results/tolerance"))
    add("--resume", action="store_true", help="keep the counts, and time again")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    problems = [problem(seed) for seed in range(options.seeds)]
    file = options.out / "tolerance.json"
    records = json.loads(file.read_text()) if options.resume and file.exists() else []
    for r in records:
        r["seconds"] = seconds(problems[0], r["optimiser"], r["rate"])
    for optimiser, rates in () if records else RATES.items():
        counts = {
            method: np.transpose(
                [
                    count_steps(made, method, optimiser, rates)
                    for made in tqdm(problems, desc=f"{optimiser}, {method}")
                ]
            )
            for method in METHODS
        }
        for i, rate in enumerate(rates):
            records.append(
                {
                    "optimiser": optimiser,
                    "rate": rate,
                    "steps": {m: counts[m][i].tolist() for m in METHODS},
                    "seconds": seconds(problems[0], optimiser, rate),
                }
            )
    file.write_text(json.dumps(records, indent=1) + "\n")
    text = table(records)
    (options.out / "tolerance.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
