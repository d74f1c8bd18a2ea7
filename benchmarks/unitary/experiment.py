"""The runs: each rate from a grid with one seed, then every seed with it."""

import math
from collections.abc import Sequence

from benchmarks.shared.runs import Runs
from benchmarks.shared.timing import alone
from benchmarks.unitary.methods import METHODS, RATES
from benchmarks.unitary.problems import Kind


def best_rate(runs: Runs, name: str, method: str) -> float | None:
    """The rate of the grid that ends lowest; None for a method without a rate.

    NaN is the worst.
    """

    def level(record):
        gap = record["gap"]
        # Below the rounding of the values rates are alike, and the least is taken.
        return (max(gap, 1e-14) if math.isfinite(gap) else math.inf, record["rate"])

    found = runs.find(kind=name, method=method, stage="tuning")
    return min(found, key=level)["rate"] if found else None


@alone
def tune(runs: Runs, name: str, kind: Kind, seed: int) -> None:
    """Try the rates that no record has yet."""
    for method, entry in METHODS.items():
        key = {"kind": name, "method": method, "stage": "tuning"}
        done = {r["rate"] for r in runs.find(**key)}
        if not entry.rated or done.issuperset(RATES):
            continue
        run = entry.prepare(kind.draw(seed), kind.steps)
        for rate in RATES:
            if rate not in done:
                gap = run(rate).gaps[-1]
                runs.add({**key, "rate": rate, "seed": seed, "gap": gap})


@alone
def run_finals(runs: Runs, name: str, kind: Kind, seeds: Sequence[int]) -> None:
    """Run each method with each seed, at its rate."""
    for seed in seeds:
        problem = kind.draw(seed)
        for method, entry in METHODS.items():
            rate = best_rate(runs, name, method)
            key = {"kind": name, "method": method, "stage": "final", "rate": rate}
            if runs.find(**key, seed=seed):
                continue
            given = (rate,) if entry.rated else ()
            trace = entry.prepare(problem, kind.steps)(*given)
            runs.add({**key, "seed": seed, **trace._asdict()})
