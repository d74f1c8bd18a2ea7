"""One setting for everything: `constrain(optax.adam(lr))` against tuned rivals.

On each problem, ours runs once, with the same learning rate everywhere; the others are
given the best of several. ``python -m benchmarks.quality`` writes the table.
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
from benchmarks.methods.retraction import retracted
from benchmarks.problems import PROBLEMS, Problem

RATE = 0.02
STEPS = {"digits network": 1000, "copy task": 2000}
LONG = 3000

Maker = Callable[[optax.Schedule, Any], optax.GradientTransformation]


def _ours(schedule, mask):
    return cdx.constrain(optax.adam(schedule), mask)


def _ours_momentum(schedule, mask):
    return cdx.constrain(optax.sgd(schedule, momentum=0.9), mask)


def _qr_momentum(schedule, mask):
    return retracted(optax.sgd(schedule, momentum=0.9), mask)


def _qr_adam(schedule, mask):
    return retracted(optax.adam(schedule), mask)


def _algorithm_1(schedule, mask):
    return cdx.constrain(optax.sgd(schedule, momentum=0.9), mask, beta=5.0)


RIVALS: dict[str, tuple[Maker, tuple[float, ...]]] = {
    "constrain, momentum": (_ours_momentum, (0.03, 0.3)),
    "QR retraction, momentum": (_qr_momentum, (0.03, 0.3)),
    "QR retraction, Adam": (_qr_adam, (0.003, 0.02, 0.1)),
    "Algorithm 1, momentum": (_algorithm_1, (0.01, 0.1)),
}


def run(problem: Problem, make: Maker, rates, steps: int) -> dict[str, Any]:
    """The value on the manifold and the residual at the end, for each rate."""

    def descend(rate):
        def schedule(count):
            return rate * (1 + jnp.cos(jnp.pi * count / steps)) / 2

        tx = make(schedule, problem.mask)

        def step(carry, key):
            x, state = carry
            updates, state = tx.update(jax.grad(problem.loss)(x, key), state, x)
            return (optax.apply_updates(x, updates), state), None

        keys = jax.random.split(jax.random.key(0), steps)
        final: Any = jax.lax.scan(step, (problem.start, tx.init(problem.start)), keys)
        x = final[0][0]
        residuals = cdx.feasibility(x, problem.mask)
        columns = _columns(x, problem.mask)
        scaled = [residuals[path] / columns[path] ** 0.5 for path in residuals]
        on_manifold = cdx.project(x, problem.mask)
        return problem.value(on_manifold), jnp.max(jnp.stack(scaled))

    values, residuals = jax.jit(lambda r: jax.lax.map(descend, r))(
        jnp.asarray(rates, jnp.float32)
    )
    return {
        "rates": list(rates),
        "values": np.asarray(values, float).tolist(),
        "feasibility": np.asarray(residuals, float).tolist(),
    }


def _columns(params, mask) -> dict[str, int]:
    """The p of each constrained leaf, for the default reading."""
    shapes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    found = cdx.feasibility(params, mask)
    return {p: min(shapes[p][-1], int(np.prod(shapes[p][:-1]))) for p in found}


def table(records: list[dict[str, Any]]) -> str:
    """The comparison in Markdown."""
    lines = [
        f"`constrain(optax.adam({RATE}))` under a cosine decay, no tuning, float32; "
        "the best value is that of theory or of any method and learning rate tried.\n",
        "| problem | ours | best | by | excess | ‖XᵀX − I‖_F/√p |",
        "|---|---|---|---|---|---|",
    ]
    for r in records:
        rivals = {
            name: min((v for v in made["values"] if np.isfinite(v)), default=np.inf)
            for name, made in r["rivals"].items()
        }
        if r["known"] is not None:
            rivals["theory"] = r["known"]
        ours = r["ours"]["values"][0]
        rivals["constrain, Adam"] = ours
        by = min(rivals, key=lambda name: rivals[name])
        best = rivals[by]
        lines.append(
            f"| {r['problem']} | {ours:.6g} | {best:.6g} | {by} | "
            f"{100 * (ours - best) / abs(best):.3f} % | "
            f"{r['ours']['feasibility'][0]:.1e} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run every problem, and write the records and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/quality"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    records = []
    for name in tqdm(PROBLEMS, unit="problem"):
        problem = PROBLEMS[name](options.seed)
        steps = STEPS.get(name, LONG)
        records.append(
            {
                "problem": name,
                "seed": options.seed,
                "steps": steps,
                "known": problem.best,
                "ours": run(problem, _ours, (RATE,), steps),
                "rivals": {
                    rival: run(problem, make, rates, steps)
                    for rival, (make, rates) in RIVALS.items()
                },
            }
        )
        (options.out / "quality.json").write_text(json.dumps(records, indent=1))
    text = table(records)
    (options.out / "quality.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
