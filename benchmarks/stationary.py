"""Stationary points are fixed points, for every optimiser of the sweep.

``python -m benchmarks.stationary`` runs `constrain` with each of them on three smooth
problems at three learning rates a decade apart, which all fall by `DECAY` in the end,
and compares the projected gradient with that of the start.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.hostile import OPTIMISERS
from benchmarks.problems import PROBLEMS, Problem

CHOSEN = ("pca", "procrustes", "quadratic assignment")
STEPS = 10_000
SEARCHES = 3000
"""The steps of L-BFGS, each of which is a search of its own."""

DECAY = 1e-6
RATES = (0.1, 1.0, 10.0)
"""Of the optimisers whose steps have about the length of the learning rate."""

LONGER = dict.fromkeys(("sgd", "momentum", "nesterov", "sm3"), (3.0, 30.0, 300.0))
"""Of those whose steps have about the length of the gradient."""

UNCENTRED = "ranger, not centred"
"""Centring a gradient hides from any optimiser what is the same in all rows of it."""

EVERY = {
    **OPTIMISERS,
    UNCENTRED: lambda rate: optax.lookahead(optax.radam(rate), 5, 0.5),
}


def run(
    problem: Problem, optimiser: str, rates: Sequence[float], steps: int
) -> list[float]:
    """The last projected gradient as a share of the first, for each learning rate."""
    make = EVERY[optimiser]
    start, paired = problem.start, optimiser.startswith("ranger")
    if paired:
        start = optax.LookaheadParams.init_synced(start)

    def here(params):
        return params.fast if paired else params

    def size(params):
        x = here(params)
        return jnp.linalg.norm(cdx.stiefel.tangent(x, jax.grad(problem.value)(x)))

    def descend(rate):
        def step(carry, count):
            params, state = carry
            tx = cdx.constrain(make(rate * DECAY ** (count / steps)))
            value, grad = jax.value_and_grad(problem.value)(here(params))
            more = {"value": value, "grad": grad, "value_fn": problem.value}
            searches = optimiser == "lbfgs"
            updates, after = tx.update(
                grad, state, params, **(more if searches else {})
            )
            after = jax.tree.map(lambda a, b: a.astype(b.dtype), after, state)
            return (optax.apply_updates(params, updates), after), None

        state = cdx.constrain(make(rate)).init(start)
        state = jax.tree.map(jnp.asarray, state)
        final: Any = jax.lax.scan(step, (start, state), jnp.arange(steps))[0]
        return size(final[0]) / size(start)

    program = jax.jit(lambda r: jax.lax.map(descend, r))
    return np.asarray(program(jnp.asarray(rates, jnp.float32)), float).tolist()


def table(records: list[dict[str, Any]]) -> str:
    """The shares in Markdown."""
    lines = [
        f"‖projected gradient‖ at the end as a share of the start's, after {STEPS:,} "
        f"steps ({SEARCHES} of L-BFGS) in which the learning rate falls to {DECAY:g} "
        "of the one given.\n",
        f"| optimiser | initial rates | {' | '.join(CHOSEN)} |",
        "|---|---|" + "---|" * len(CHOSEN),
    ]
    for name in EVERY:
        mine = {r["problem"]: r for r in records if r["optimiser"] == name}
        if mine:
            rates = ", ".join(f"{r:g}" for r in mine[CHOSEN[0]]["rates"])
            cells = [
                ", ".join(f"{v:.0e}" for v in mine[problem]["shares"])
                for problem in CHOSEN
                if problem in mine
            ]
            lines.append(f"| {name} | {rates} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run everything, and write the records and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("benchmarks/results/stationary"))
    add("--only", nargs="*", default=list(EVERY), choices=list(EVERY))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "stationary.json"
    kept = json.loads(file.read_text()) if file.exists() else []
    records = [r for r in kept if r["optimiser"] not in options.only]
    for name in tqdm(options.only, unit="optimiser"):
        rates = LONGER.get(name, RATES)
        for problem in CHOSEN:
            steps = SEARCHES if name == "lbfgs" else STEPS
            shares = run(PROBLEMS[problem](0), name, rates, steps)
            head = {"optimiser": name, "problem": problem}
            records.append({**head, "rates": rates, "shares": shares})
        file.write_text(json.dumps(records, indent=1) + "\n")
        (options.out / "stationary.md").write_text(table(records))
    print(table(records))


if __name__ == "__main__":
    main()
