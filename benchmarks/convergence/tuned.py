"""One setting of Adam on every problem, against rivals that are tuned."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.convergence.descent import Course, cosine, descend, wrapped
from benchmarks.shared.problems import TRAINING
from benchmarks.shared.tables import table

TITLE = "One setting of Adam against tuned rivals"

RATE, WARM_UP = 0.05, 0.05
RIVALS = {
    "constrain, momentum": ("constrain", "momentum", (0.03, 0.3)),
    "QR retraction, momentum": ("QR retraction", "momentum", (0.03, 0.3)),
    "QR retraction, Adam": ("QR retraction", "adam", (0.003, 0.02, 0.1)),
    "Algorithm 1, momentum": (
        "Algorithm 1, β = 5, guarded",
        "momentum",
        (0.01, 0.1),
    ),
}
OURS = {"constrain, Adam": ("constrain", "adam", (RATE,))}


def _warm_cosine(progress):
    return jnp.minimum(1, (progress + 1e-4) / WARM_UP) * cosine(progress)


def runs(seeds: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """The records."""
    course = Course(steps=50 if quick else 1000, decay=_warm_cosine)
    names = list(TRAINING)[:1] if quick else TRAINING
    methods = OURS | dict(list(RIVALS.items())[: 1 if quick else None])
    for name in names:
        for seed in range(seeds):
            problem = TRAINING[name](seed)
            yield {
                "problem": name,
                "seed": seed,
                "known": problem.best,
                "steps": course.steps,
                "methods": {
                    method: descend(
                        problem,
                        wrapped(wrapper, optimiser, problem.mask),
                        rates,
                        course,
                    )
                    for method, (wrapper, optimiser, rates) in methods.items()
                },
            }


def report(records: list[dict[str, Any]]) -> str:
    """The table."""
    rows = []
    for r in records:
        values = {
            name: min((v for v in made["values"] if np.isfinite(v)), default=np.inf)
            for name, made in r["methods"].items()
        }
        if r["known"] is not None:
            values["theory"] = r["known"]
        own = r["methods"]["constrain, Adam"]
        by = min(values, key=lambda name: values[name])
        excess = 100 * (own["values"][0] - values[by]) / abs(values[by])
        compared = (f"{own['values'][0]:.6g}", f"{values[by]:.6g}", by)
        off = f"{own['feasibility'][0]:.1e}"
        rows.append([r["problem"], r["seed"], *compared, f"{excess:.3f}", off])
    return (
        f"`constrain(optax.adam({RATE}))` for {records[0]['steps']:,} steps of a "
        f"cosine decay after {WARM_UP:.0%} of warm-up, the same on every problem, in "
        "float32. The best value is that of theory or of any method and learning rate "
        "tried, from the same start; the excess over it is in per cent.\n\n"
        + table(
            ("problem", "start", "ours", "best", "by", "excess", "‖XᵀX − I‖_F/√p"), rows
        )
    )
