"""Steps and seconds to a tolerance, against the QR retraction.

``python -m benchmarks.tolerance``: PCA, Procrustes and Brockett's function in float32,
to a relative gap of 1e-6 at constant learning rates. The gap is measured on the
manifold, after every step.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.methods.retraction import retracted
from benchmarks.problems import Problem
from benchmarks.problems.linear_algebra import brockett, pca, unbalanced_procrustes

GAP = 1e-6
LIMIT = 1500
REPEATS = 60
OPTIMISERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "adam": optax.adam,
}
METHODS: dict[str, Callable[[Any], Any]] = {
    "ours": cdx.constrain,
    "QR": lambda optimiser: retracted(optimiser, None),
}


class Case(NamedTuple):
    """A problem and its learning rates.

    Attributes:
        title: The name and the size of the problem, for the table.
        make: From a seed to the problem.
        rates: The learning rates of each optimiser, from small to too large.
    """

    title: str
    make: Callable[[int], Problem]
    rates: dict[str, tuple[float, ...]]


CASES = {
    "pca": Case(
        "PCA, 1000 × 50, condition number 1000",
        partial(pca, n=1000, p=50, condition=1e3),
        {
            "momentum": (0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0),
            "adam": (0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.03),
        },
    ),
    "procrustes": Case(
        "Procrustes, 200 × 40, condition number of A 10",
        partial(unbalanced_procrustes, n=200, p=40, condition=10.0),
        {
            "momentum": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0),
            "adam": (0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07),
        },
    ),
    "brockett": Case(
        "Brockett's function, 200 × 20",
        partial(brockett, n=200, p=20),
        {
            "momentum": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5),
            "adam": (0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03),
        },
    ),
}


def _stepper(
    made: Problem, method: str, optimiser: str
) -> Callable[..., tuple[Any, Any]]:
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
    """The first step that meets the gap, for each rate; `LIMIT` + 1 if none does."""
    step = _stepper(made, method, optimiser)
    best = made.best or 0.0
    goal = best + GAP * abs(best)

    @jax.jit
    def first(rate):
        def unfinished(carry):
            count, x, _, value = carry
            # Parameters that are not finite stay so.
            return (count < LIMIT) & ~(value <= goal) & jnp.isfinite(x).all()

        def proceed(carry):
            count, x, state, _ = carry
            x, state = step(x, state, rate)
            return count + 1, x, state, made.value(cdx.stiefel.project(x))

        start = 0, *_start(made, method, optimiser), jnp.inf
        count, *_, value = jax.lax.while_loop(unfinished, proceed, start)
        return jnp.where(value <= goal, count, LIMIT + 1)

    return [int(first(rate)) for rate in rates]


def seconds(
    made: Problem, optimiser: str, rates: Sequence[float]
) -> list[dict[str, float]]:
    """The median seconds of a step, for each rate, the methods taking turns."""
    steps = {method: jax.jit(_stepper(made, method, optimiser)) for method in METHODS}

    def medians(rate):
        states, taken = {}, {method: [] for method in METHODS}
        for method, step in steps.items():
            states[method] = _start(made, method, optimiser)
            jax.block_until_ready(step(*states[method], rate))
        for _ in range(REPEATS):
            for method, step in steps.items():
                began = time.perf_counter()
                states[method] = jax.block_until_ready(step(*states[method], rate))
                taken[method].append(time.perf_counter() - began)
        return {method: float(np.median(times)) for method, times in taken.items()}

    return [medians(rate) for rate in rates]


def table(records: list[dict[str, Any]]) -> str:
    """The counts and the times in Markdown, a table for each problem."""
    starts = len(records[0]["steps"]["ours"])
    lines = [
        f"Steps to a relative gap of {GAP:g} at a constant learning rate, geometric "
        f"means over {starts} starts. A start that does not meet the gap in {LIMIT} "
        f"steps counts as {LIMIT + 1}; the number of such starts is in brackets."
    ]
    if "QR" in records[0]["steps"]:
        lines[0] += (
            " *Fewer, more* is the number of starts on which ours takes fewer steps "
            "than QR, and more. Times are medians."
        )
    for name, case in CASES.items():
        mine = [r for r in records if r["problem"] == name]
        lines += ["", f"## {case.title}", "", *_rows(mine)]
    return "\n".join(lines) + "\n"


def _rows(records):
    methods, timed = list(records[0]["steps"]), list(records[0]["seconds"])
    heads = ["optimiser", "rate", *(f"steps, {m}" for m in methods)]
    heads += ["fewer, more"] if "QR" in methods else []
    heads += [f"ms a step, {m}" for m in timed]
    rows = [heads, ["---"] * len(heads)]
    for optimiser in OPTIMISERS:
        mine = [r for r in records if r["optimiser"] == optimiser]
        for r in mine:
            times = [f"{1e3 * r['seconds'][m]:.2f}" for m in timed]
            rows.append([optimiser, str(r["rate"]), *_compared(r["steps"]), *times])
        best = {m: np.min([r["steps"][m] for r in mine], axis=0) for m in methods}
        rows.append([optimiser, "best of each", *_compared(best), *([""] * len(timed))])
    return [f"| {' | '.join(row)} |" for row in rows]


def _compared(steps):
    cells = []
    for counts in steps.values():
        left = int(np.sum(np.asarray(counts) > LIMIT))
        mean = f"{np.exp(np.mean(np.log(counts))):.1f}"
        cells.append(f"{mean} ({left})" if left else mean)
    if "QR" in steps:
        ours, theirs = np.asarray(steps["ours"]), np.asarray(steps["QR"])
        cells.append(f"{np.sum(ours < theirs)}, {np.sum(ours > theirs)}")
    return cells


def _records(old: list[dict[str, Any]]):
    """A record for each problem, optimiser and rate: the old one, or an empty one."""
    keys = ("problem", "optimiser", "rate")
    known = {tuple(r[key] for key in keys): r for r in old}
    return [
        known.get(which)
        or {**dict(zip(keys, which, strict=True)), "steps": {}, "seconds": {}}
        for name, case in CASES.items()
        for optimiser, rates in case.rates.items()
        for which in ((name, optimiser, rate) for rate in rates)
    ]


def _count(records, problems, methods):
    """Add the counts that records of one problem and optimiser do not have."""
    optimiser, rates = records[0]["optimiser"], [r["rate"] for r in records]
    for method in methods:
        if all(len(r["steps"].get(method, ())) == len(problems) for r in records):
            continue
        label = f"{records[0]['problem']}, {optimiser}, {method}"
        counts = [
            count_steps(made, method, optimiser, rates)
            for made in tqdm(problems, desc=label)
        ]
        for r, row in zip(records, np.transpose(counts), strict=True):
            r["steps"][method] = row.tolist()


def main(arguments: list[str] | None = None) -> None:
    """Count and time, and write the records and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=7)
    add("--out", type=Path, default=Path("benchmarks/results/tolerance"))
    add("--resume", action="store_true", help="keep the counts, and time again")
    add("--counts-only", action="store_true", help="count the steps of ours only")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "tolerance.json"
    resumed = options.resume and file.exists()
    records = _records(json.loads(file.read_text()) if resumed else [])
    for name, case in CASES.items():
        problems = [case.make(seed) for seed in range(options.seeds)]
        for optimiser, rates in case.rates.items():
            which = name, optimiser
            mine = [r for r in records if (r["problem"], r["optimiser"]) == which]
            _count(mine, problems, ["ours"] if options.counts_only else METHODS)
            if not options.counts_only:
                times = seconds(problems[0], optimiser, rates)
                for r, taken in zip(mine, times, strict=True):
                    r["seconds"] = taken
            file.write_text(json.dumps(records, indent=1) + "\n")
    text = table(records)
    (options.out / "tolerance.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
