"""Learning rates that are far too large: how often they are cut, and where they end.

``python -m benchmarks.too_fast`` looks for the learning rate that needs the fewest
steps to a relative gap of `GAP`, on PCA and Procrustes, and then runs up to 100 times
that rate under a cosine decay.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.problems import PROBLEMS, Problem

CHOSEN = ("pca", "procrustes")
STEPS = 1000
GAP = 1e-3
GRID = tuple(float(r) for r in 10 ** np.arange(-3, 1.76, 0.25))
FACTORS = (1, 3, 10, 30, 100)

OPTIMISERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "adam": optax.adam,
}


def _run(problem: Problem, make, rates, decay: Callable[[Any], Any]) -> Any:
    """For each rate, the gap after each step, and the report at the end."""
    if problem.best is None:
        raise ValueError("the least value must be known")
    best = problem.best

    def descend(rate):
        tx = cdx.constrain(make(lambda count: rate * decay(count / STEPS)))

        def step(carry, _):
            x, state = carry
            updates, state = tx.update(jax.grad(problem.value)(x), state, x)
            x = optax.apply_updates(x, updates)
            value = problem.value(cdx.stiefel.project(jnp.asarray(x)))
            return (x, state), (value - best) / abs(best)

        start = (problem.start, tx.init(problem.start))
        end: Any = jax.lax.scan(step, start, length=STEPS)
        (x, state), gaps = end
        counts = state.guard.num_shortened[0], state.guard.num_long[0]
        return gaps, cdx.stiefel.feasibility(x), *counts

    program = jax.jit(lambda r: jax.lax.map(descend, r))
    return [np.asarray(v) for v in program(jnp.asarray(rates, jnp.float32))]


def best_rate(problem: Problem, make) -> tuple[float, int]:
    """The constant rate of the grid that is first to meet the gap, and when it does."""
    gaps = _run(problem, make, GRID, jnp.ones_like)[0]
    met = np.where((gaps <= GAP).any(axis=1), (gaps <= GAP).argmax(axis=1), STEPS)
    return GRID[int(met.argmin())], int(met.min()) + 1


def table(records: list[dict[str, Any]]) -> str:
    """The ends in Markdown."""
    lines = [
        f"`constrain` for {STEPS:,} steps of a cosine decay, in float32, from the rate "
        f"that is first to meet a gap of {GAP:g} (× 1) up to 100 times that rate.\n",
        "| problem | optimiser | rate | × | gap | ‖XᵀX − I‖_F | shortened | long |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['problem']} | {r['optimiser']} | {r['rate']:.2g} | {r['factor']} | "
        f"{r['gap']:.1e} | {r['feasibility']:.1e} | {r['shortened']:.0%} | "
        f"{r['long']:.0%} |"
        for r in records
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run everything, and write the records and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path("benchmarks/results/too_fast")
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    records = []
    jobs = [(problem, name) for problem in CHOSEN for name in OPTIMISERS]
    for name, optimiser in tqdm(jobs, unit="run"):
        problem, make = PROBLEMS[name](0), OPTIMISERS[optimiser]
        best, _ = best_rate(problem, make)
        rates = [best * factor for factor in FACTORS]
        cosine = optax.cosine_decay_schedule(1.0, 1)
        gaps, feasibility, shortened, long = _run(problem, make, rates, cosine)
        records += [
            {
                "problem": name,
                "optimiser": optimiser,
                "rate": rate,
                "factor": factor,
                "gap": float(gaps[i, -1]),
                "feasibility": float(feasibility[i]),
                "shortened": float(shortened[i]) / STEPS,
                "long": float(long[i]) / STEPS,
            }
            for i, (rate, factor) in enumerate(zip(rates, FACTORS, strict=True))
        ]
    (options.out / "too_fast.json").write_text(json.dumps(records, indent=1) + "\n")
    text = table(records)
    (options.out / "too_fast.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
