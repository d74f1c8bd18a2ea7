"""Stationary points are fixed points, for every optimiser."""

from collections.abc import Iterator
from typing import Any

from benchmarks.convergence.descent import Course, descend, wrapped
from benchmarks.shared.methods import OPTIMISERS
from benchmarks.shared.problems import TRAINING
from benchmarks.shared.tables import table

TITLE = "Every optimiser ends at a stationary point"

STATIONARY = ("pca", "procrustes", "quadratic assignment")
SEARCHES = 0.3
"""The steps of L-BFGS, each of which is a search of its own, as a share of others'."""

FALL = 1e-6
USUAL = (0.1, 1.0, 10.0)
"""For the optimisers whose steps have about the length of the learning rate."""

LONGER = dict.fromkeys(["sgd", "momentum", "nesterov", "sm3"], (3.0, 30.0, 300.0))
"""For those whose steps have about the length of the gradient."""


def runs(seeds: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """The records."""
    del seeds
    names = ("adam",) if quick else OPTIMISERS
    for name in names:
        steps = 100 if quick else 3_000
        course = Course(
            steps=int(SEARCHES * steps) if name == "lbfgs" else steps,
            decay=lambda progress: FALL**progress,
        )
        rates = LONGER.get(name, USUAL)
        for title in STATIONARY[:1] if quick else STATIONARY:
            ends = descend(
                TRAINING[title](0),
                wrapped("constrain", name),
                rates,
                course,
                pair=name == "lookahead",
                searches=name == "lbfgs",
            )
            head = {"optimiser": name, "problem": title, "rates": rates}
            yield {**head, "steps": steps, "gradients": ends["gradients"]}


def report(records: list[dict[str, Any]]) -> str:
    """The table."""
    problems = list(dict.fromkeys(r["problem"] for r in records))
    rows = []
    for name in dict.fromkeys(r["optimiser"] for r in records):
        mine = {r["problem"]: r for r in records if r["optimiser"] == name}
        rates = ", ".join(f"{rate:g}" for rate in mine[problems[0]]["rates"])
        cells = [
            ", ".join(f"{v:.0e}" for v in mine[problem]["gradients"])
            for problem in problems
        ]
        rows.append([name, rates, *cells])
    return (
        "‖projected gradient‖ at the end as a share of the start's, after "
        f"{records[0]['steps']:,} steps ({SEARCHES:.0%} of them with L-BFGS) in which "
        f"the learning rate falls to {FALL:g} of the one given.\n\n"
        + table(("optimiser", "initial rates", *problems), rows)
    )
