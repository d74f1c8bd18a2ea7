"""Why `constrain` is as it is: variants of it, measured."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cdopt_jax as cdx
from benchmarks.convergence.descent import Course, Maker, descend
from benchmarks.shared.methods import OPTIMISERS
from benchmarks.shared.problems import TRAINING
from benchmarks.shared.tables import table

TITLE = "Why constrain is as it is"


def _front(fn) -> optax.GradientTransformation:
    return optax.stateless(lambda g, x: jax.tree.map(fn, x, g))


JACOBIAN, TANGENT = _front(cdx.stiefel.vjp), _front(cdx.stiefel.tangent)


def _transported_momentum(rate) -> optax.GradientTransformation:
    """Momentum 0.9 whose buffer is projected to the tangent space at every step."""

    def update(updates, state, params=None):
        buffer = jax.tree.map(
            lambda x, m, g: cdx.stiefel.tangent(x, 0.9 * m) + g, params, state, updates
        )
        return optax.tree.scale(-rate, buffer), buffer

    def init(params):
        return optax.tree.zeros_like(params)

    return optax.GradientTransformation(init, update)


def _matrix_adam(rate) -> optax.GradientTransformation:
    """Adam with one second moment for the matrix, instead of one for each entry."""
    b1, b2, eps = 0.9, 0.999, 1e-8

    def init(params):
        zeros = optax.tree.zeros_like(params)
        return jnp.zeros([], jnp.int32), zeros, jax.tree.map(jnp.mean, zeros)

    def update(updates, state, params=None):
        del params
        count, mu, nu = state[0] + 1, *state[1:]
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.mean(g**2), nu, updates)
        first, second = 1 - b1**count, 1 - b2**count
        moves = jax.tree.map(
            lambda m, v: -rate * (m / first) / (jnp.sqrt(v / second) + eps), mu, nu
        )
        return moves, (count, mu, nu)

    return optax.GradientTransformation(init, update)


def _guarded(front, optimiser: Maker, radius: float = 0.5) -> Maker:
    return lambda rate: optax.chain(
        front, optimiser(rate), cdx.keep_feasible(radius=radius)
    )


def _variants_of(optimiser: Maker, special: dict[str, Maker]) -> dict[str, Maker]:
    return {
        "J_A in front": _guarded(JACOBIAN, optimiser),
        "tangent in front": _guarded(TANGENT, optimiser),
        "nothing in front": _guarded(optax.identity(), optimiser),
        **{name: _guarded(JACOBIAN, other) for name, other in special.items()},
        "radius 0.1": _guarded(JACOBIAN, optimiser, 0.1),
        "radius 0.01": _guarded(JACOBIAN, optimiser, 0.01),
    }


VARIANTS: dict[str, dict[str, Maker]] = {
    "momentum": _variants_of(
        OPTIMISERS["momentum"], {"momentum transported": _transported_momentum}
    ),
    "adam": _variants_of(
        OPTIMISERS["adam"], {"one second moment a matrix": _matrix_adam}
    ),
}

CHOSEN = ("pca", "procrustes", "quadratic assignment", "sparse pca", "subspace")
RATES = {"momentum": (0.03, 0.1, 0.3, 1.0), "adam": (0.003, 0.01, 0.03, 0.1)}


def runs(seeds: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """The records."""
    course = Course(steps=20 if quick else 400)
    for title in CHOSEN[:1] if quick else CHOSEN:
        for seed in range(seeds):
            problem = TRAINING[title](seed)
            for name, variants in VARIANTS.items():
                for variant, make in variants.items():
                    ends = descend(problem, make, RATES[name], course)
                    head = {"problem": title, "seed": seed, "optimiser": name}
                    yield head | {"variant": variant, "known": problem.best} | ends


def report(records: list[dict[str, Any]]) -> str:
    """The table."""
    problems = list(dict.fromkeys(r["problem"] for r in records))
    best: dict[tuple[str, int], float] = {}
    for r in records:
        key = (r["problem"], r["seed"])
        known = [v for v in (*r["values"], r["known"]) if v is not None]
        best[key] = min(best.get(key, np.inf), *(v for v in known if np.isfinite(v)))

    def excess(r):
        least = best[r["problem"], r["seed"]]
        return [100 * (v - least) / abs(least) for v in r["values"]]

    parts = [
        "Excess over the best value found, in per cent, at the best of the learning "
        "rates and, in brackets, at the largest; means over starts."
    ]
    for name, variants in VARIANTS.items():
        rows = []
        for variant in variants:
            which = (name, variant)
            mine = [r for r in records if (r["optimiser"], r["variant"]) == which]
            means = [
                np.mean([excess(r) for r in mine if r["problem"] == problem], axis=0)
                for problem in problems
            ]
            worst = max(max(r["feasibility"]) for r in mine)
            long = np.mean([r["long"] for r in mine])
            cells = [f"{m.min():.4f} ({m[-1]:.3f})" for m in means]
            rows.append([variant, *cells, f"{worst:.1e}", f"{long:.0%}"])
        heads = (name, *problems, "worst ‖XᵀX − I‖_F/√p", "long steps")
        parts += [f"Learning rates {RATES[name]}:", table(heads, rows)]
    return "\n\n".join(parts)
