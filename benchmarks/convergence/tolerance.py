"""Steps and time to a tolerance, against the QR retraction."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.convergence.descent import Course, constant, descend, wrapped
from benchmarks.shared.problems import Problem, smooth
from benchmarks.shared.tables import table
from benchmarks.shared.timing import interleaved

TITLE = "Steps and time to a tolerance"

TOLERANCE, LIMIT, REPEATS = 1e-6, 1500, 60
WRAPPED = ("constrain", "QR retraction")
CASES: dict[str, tuple[Callable[[int], Problem], dict[str, Sequence[float]]]] = {
    "PCA, 1000 × 50, condition number 1000": (
        partial(smooth.pca, n=1000, p=50, condition=1e3),
        {
            "momentum": (0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0),
            "adam": (0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.03),
        },
    ),
    "Procrustes, 200 × 40, condition number of A 10": (
        smooth.unbalanced_procrustes,
        {
            "momentum": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0),
            "adam": (0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07),
        },
    ),
    "Brockett's function, 200 × 20": (
        smooth.brockett,
        {
            "momentum": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5),
            "adam": (0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03),
        },
    ),
}


def runs(seeds: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """The records."""
    course = Course(steps=20 if quick else LIMIT, decay=constant, gap=TOLERANCE)
    for title, (make, tried) in list(CASES.items())[-1 if quick else 0 :]:
        problems = [make(seed) for seed in range(seeds)]
        for name, grid in tried.items():
            rates = grid[:2] if quick else grid
            steps: dict[str, list[Any]] = {wrapper: [] for wrapper in WRAPPED}
            for wrapper in WRAPPED:
                for problem in problems:
                    found = descend(problem, wrapped(wrapper, name), rates, course)
                    counts = zip(found["steps"], found["met"], strict=True)
                    steps[wrapper].append(
                        [count if met else course.steps + 1 for count, met in counts]
                    )
            for i, rate in enumerate(rates):
                yield {
                    "problem": title,
                    "optimiser": name,
                    "rate": rate,
                    "limit": course.steps,
                    "steps": {w: [row[i] for row in steps[w]] for w in WRAPPED},
                    "seconds": _seconds(problems[0], name, rate, 3 if quick else None),
                }


def _seconds(problem: Problem, name: str, rate: float, repeats: int | None):
    """The median seconds of a step, each wrapper going on from where it is."""

    def stepper(wrapper):
        tx = wrapped(wrapper, name)(rate)
        carry = (problem.start, tx.init(problem.start))

        @jax.jit
        def step(x, state):
            updates, state = tx.update(jax.grad(problem.value)(x), state, x)
            return optax.apply_updates(x, updates), state

        def run():
            nonlocal carry
            carry = step(*carry)
            return carry

        return run

    return interleaved({w: stepper(w) for w in WRAPPED}, repeats or REPEATS)


def _mean(counts, limit) -> str:
    left = int(np.sum(np.asarray(counts) > limit))
    mean = f"{np.exp(np.mean(np.log(counts))):.1f}"
    return f"{mean} ({left})" if left else mean


def _compared(steps, limit) -> list[str]:
    ours, theirs = (np.asarray(steps[wrapper]) for wrapper in WRAPPED)
    fewer, more = int(np.sum(ours < theirs)), int(np.sum(ours > theirs))
    return [*(_mean(steps[w], limit) for w in WRAPPED), f"{fewer}, {more}"]


def report(records: list[dict[str, Any]]) -> str:
    """The table."""
    starts, limit = len(records[0]["steps"]["constrain"]), records[0]["limit"]
    parts = [
        f"Steps to a relative gap of {TOLERANCE:g} at a constant learning rate, "
        f"geometric means over {starts} starts. A start that does not meet the gap in "
        f"{limit} steps counts as {limit + 1}; the number of such starts is in "
        "brackets. *Fewer, more* is the number of starts on which ours takes fewer "
        "steps than QR, and more. Times are medians."
    ]
    heads = ["optimiser", "rate", *(f"steps, {w}" for w in WRAPPED), "fewer, more"]
    heads += [f"ms a step, {w}" for w in WRAPPED]
    for title in dict.fromkeys(r["problem"] for r in records):
        rows = []
        for name in ("momentum", "adam"):
            mine = [
                r for r in records if (r["problem"], r["optimiser"]) == (title, name)
            ]
            for r in mine:
                times = [f"{1e3 * r['seconds'][w]:.2f}" for w in WRAPPED]
                rows.append([name, r["rate"], *_compared(r["steps"], limit), *times])
            best = {w: np.min([r["steps"][w] for r in mine], axis=0) for w in WRAPPED}
            rows.append([name, "best of each", *_compared(best, limit), "", ""])
        parts += [f"### {title}", table(heads, rows)]
    return "\n\n".join(parts)
