"""One setting for everything: `constrain(optax.adam(lr))` against tuned rivals.

On each problem, ours runs once, with the same learning rate everywhere; the others are
given the best of several. ``python -m benchmarks.quality`` writes the table.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.shared.methods.retraction import retracted
from benchmarks.shared.problems import PROBLEMS, Problem

RATE = 0.05
STEPS = 2000
WARM = 0.05
"""The share of the steps in which the learning rate rises, before it falls."""

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


def run(
    problem: Problem, make: Maker, rates: Sequence[float], steps: int
) -> dict[str, Any]:
    """The value on the manifold and the residual at the end, for each rate."""

    def transformation(rate):
        def schedule(count):
            rise = jnp.minimum(1, (count + 1) / (WARM * steps))
            return rate * rise * (1 + jnp.cos(jnp.pi * count / steps)) / 2

        return make(schedule, problem.mask)

    # Not a scan: inside of one, convolutions are very slow on a CPU.
    @jax.jit
    def step(x, state, key, rate):
        grads = jax.grad(problem.loss)(x, key)
        updates, state = transformation(rate).update(grads, state, x)
        return optax.apply_updates(x, updates), state

    @jax.jit
    def end(x):
        residuals = cdx.feasibility(x, problem.mask)
        columns = _columns(x, problem.mask)
        scaled = [residuals[path] / columns[path] ** 0.5 for path in residuals]
        on_manifold = cdx.project(x, problem.mask)
        return problem.value(on_manifold), jnp.max(jnp.stack(scaled))

    def descend(rate):
        x, state = problem.start, transformation(rate).init(problem.start)
        for key in jax.random.split(jax.random.key(0), steps):
            x, state = step(x, state, key, rate)
        return end(x)

    values, residuals = zip(*map(descend, rates), strict=True)
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
        f"`constrain(optax.adam({RATE}))` for {STEPS:,} steps of a cosine decay after "
        f"{WARM:.0%} of warm-up, the same on every problem, in float32. The best value "
        "is that of theory or of any method and learning rate tried, from the same "
        "start; the excess over it is in per cent.\n",
        "| problem | start | ours | best | by | excess | ‖XᵀX − I‖_F/√p |",
        "|---|---|---|---|---|---|---|",
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
            f"| {r['problem']} | {r['seed']} | {ours:.6g} | {best:.6g} | {by} | "
            f"{100 * (ours - best) / abs(best):.3f} | "
            f"{r['ours']['feasibility'][0]:.1e} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run what is not yet done, and write the records and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--resume", action="store_true", help="keep what is done")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/quality"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "quality.json"
    records = json.loads(file.read_text()) if options.resume and file.exists() else []
    done = {(r["problem"], r["seed"]) for r in records}
    jobs = [(name, seed) for name in PROBLEMS for seed in range(options.seeds)]
    for name, seed in tqdm([job for job in jobs if job not in done], unit="start"):
        problem = PROBLEMS[name](seed)
        records.append(
            {
                "problem": name,
                "seed": seed,
                "known": problem.best,
                "ours": run(problem, _ours, (RATE,), STEPS),
                "rivals": {
                    rival: run(problem, make, rates, STEPS)
                    for rival, (make, rates) in RIVALS.items()
                },
            }
        )
        file.write_text(json.dumps(records, indent=1) + "\n")
        (options.out / "quality.md").write_text(table(records))
    print(table(records))


if __name__ == "__main__":
    main()
