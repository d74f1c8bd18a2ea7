"""What `constrain` should do by default, decided by measurement.

Every variant of the guarded step runs on every problem from three starts, with the same
learning rates under the same decay. ``python -m benchmarks.choices`` writes the table.
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

STEPS = 400
CHOSEN = (
    "pca",
    "procrustes",
    "quadratic assignment",
    "sparse pca",
    "subspace recovery",
)
RATES = {"momentum": (0.03, 0.1, 0.3, 1.0), "adam": (0.003, 0.01, 0.03, 0.1)}


def _front(fn) -> optax.GradientTransformation:
    return optax.stateless(lambda g, x: jax.tree.map(fn, x, g))


def _transported_momentum(rate) -> optax.GradientTransformation:
    """Momentum 0.9 whose buffer is projected to the tangent space at every step."""

    def update(updates, state, params=None):
        buffer = jax.tree.map(
            lambda x, m, g: cdx.stiefel.tangent(x, 0.9 * m) + g,
            params,
            state[0],
            updates,
        )
        scaled, inner = optax.scale_by_learning_rate(rate).update(buffer, state[1])
        return scaled, (buffer, inner)

    def init(params):
        buffer = jax.tree.map(jnp.zeros_like, params)
        return buffer, optax.scale_by_learning_rate(rate).init(params)

    return optax.GradientTransformation(init, update)


def _scale_by_matrix_adam(b1=0.9, b2=0.999, eps=1e-8) -> optax.GradientTransformation:
    """Adam with one second moment for the matrix, instead of one for each entry."""

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return jnp.zeros([], jnp.int32), zeros, jax.tree.map(jnp.mean, zeros)

    def update(updates, state, params=None):
        del params
        count, mu, nu = state
        count = count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.mean(g**2), nu, updates)
        first, second = 1 - b1**count, 1 - b2**count
        step = jax.tree.map(
            lambda m, v: (m / first) / (jnp.sqrt(v / second) + eps), mu, nu
        )
        return step, (count, mu, nu)

    return optax.GradientTransformation(init, update)


def _matrix_adam(rate) -> optax.GradientTransformation:
    return optax.chain(_scale_by_matrix_adam(), optax.scale_by_learning_rate(rate))


def _momentum(rate) -> optax.GradientTransformation:
    return optax.sgd(rate, momentum=0.9)


JACOBIAN, TANGENT = _front(cdx.stiefel.vjp), _front(cdx.stiefel.tangent)
Maker = Callable[[Any], optax.GradientTransformation]


def _guarded(front, optimiser: Maker, radius=0.5) -> Maker:
    def make(rate):
        return optax.chain(front, optimiser(rate), cdx.keep_feasible(radius=radius))

    return make


VARIANTS: dict[str, dict[str, Maker]] = {
    "momentum": {
        "J_A in front": _guarded(JACOBIAN, _momentum),
        "tangent in front": _guarded(TANGENT, _momentum),
        "nothing in front": _guarded(optax.identity(), _momentum),
        "momentum transported": _guarded(JACOBIAN, _transported_momentum),
        "radius 0.1": _guarded(JACOBIAN, _momentum, 0.1),
        "radius 0.01": _guarded(JACOBIAN, _momentum, 0.01),
    },
    "adam": {
        "J_A in front": _guarded(JACOBIAN, optax.adam),
        "tangent in front": _guarded(TANGENT, optax.adam),
        "nothing in front": _guarded(optax.identity(), optax.adam),
        "one second moment a matrix": _guarded(JACOBIAN, _matrix_adam),
        "radius 0.1": _guarded(JACOBIAN, optax.adam, 0.1),
        "radius 0.01": _guarded(JACOBIAN, optax.adam, 0.01),
    },
}


def run(problem: Problem, make: Maker, rates: tuple[float, ...]) -> dict[str, Any]:
    """The value at the end, on the manifold, for each initial learning rate."""

    def descend(rate):
        tx = make(lambda count: rate * (1 + jnp.cos(jnp.pi * count / STEPS)) / 2)

        def step(carry, key):
            x, state = carry
            updates, state = tx.update(jax.grad(problem.loss)(x, key), state, x)
            return (optax.apply_updates(x, updates), state), None

        keys = jax.random.split(jax.random.key(0), STEPS)
        start = (problem.start, tx.init(problem.start))
        final: Any = jax.lax.scan(step, start, keys)[0]
        x, state = final
        long = optax.tree.get(state, "num_long")
        projected = jax.tree.map(cdx.stiefel.project, x)
        return problem.value(projected), cdx.stiefel.feasibility(x), long

    values, residuals, long = jax.jit(lambda r: jax.lax.map(descend, r))(
        jnp.asarray(rates, jnp.float32)
    )
    return {
        "values": np.asarray(values).tolist(),
        "feasibility": np.asarray(residuals).tolist(),
        "long": (np.asarray(long)[:, 0] / STEPS).tolist(),
    }


def table(records: list[dict[str, Any]]) -> str:
    """The evidence in Markdown: excess over the best value found, in per cent."""
    best: dict[tuple[str, int], float] = {}
    for r in records:
        key = (r["problem"], r["seed"])
        known = PROBLEMS[r["problem"]](r["seed"]).best
        found = min(v for v in r["values"] if np.isfinite(v))
        best[key] = min(
            best.get(key, np.inf), found, np.inf if known is None else known
        )
    lines = []
    for family in VARIANTS:
        heads = " | ".join(CHOSEN)
        lines += [
            f"\n**{family}**: excess over the best value found, at the best of the "
            f"learning rates {RATES[family]} and, in brackets, at the largest; mean of "
            "three starts, per cent",
            f"\n| variant | {heads} | worst ‖XᵀX − I‖ | long steps |",
            "|---|" + "---|" * (len(CHOSEN) + 2),
        ]
        for variant in VARIANTS[family]:
            cells, residual, long = [], [], []
            for problem in CHOSEN:
                mine = [
                    r
                    for r in records
                    if (r["family"], r["variant"], r["problem"])
                    == (family, variant, problem)
                ]
                excess = [
                    [
                        100
                        * (v - best[problem, r["seed"]])
                        / abs(best[problem, r["seed"]])
                        for v in r["values"]
                    ]
                    for r in mine
                ]
                means = np.mean(excess, axis=0)
                cells.append(f"{means.min():.4f} ({means[-1]:.3f})")
                residual += [max(r["feasibility"]) for r in mine]
                long += [np.mean(r["long"]) for r in mine]
            lines.append(
                f"| {variant} | "
                + " | ".join(cells)
                + f" | {max(residual):.1e} | {np.mean(long):.0%} |"
            )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the records and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/choices"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    jobs = [
        (problem, seed, family, variant)
        for problem in CHOSEN
        for seed in range(options.seeds)
        for family in VARIANTS
        for variant in VARIANTS[family]
    ]
    records = []
    for problem, seed, family, variant in tqdm(jobs, unit="run"):
        made = run(PROBLEMS[problem](seed), VARIANTS[family][variant], RATES[family])
        head = {"problem": problem, "seed": seed, "family": family, "variant": variant}
        records.append(head | made)
    (options.out / "choices.json").write_text(json.dumps(records, indent=1))
    text = table(records)
    (options.out / "choices.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
