"""Steps to a gap of 1e-6, ours and those of the step that the package had before.

The older step, that of commit a14adb0, takes the normal part out of what the optimiser
proposes: v = u − xΦ(xᵀu). It then goes to A(x + v) or, where that is far from the
manifold, to the nearest point to x(I + t²S²) + tv with S = Φ(xᵀu), for the largest
t ≤ 1 that its bounds allow. The step of today is the nearest point to x + u.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

import cdopt_jax as cdx
from benchmarks.shared.methods import OPTIMISERS
from benchmarks.shared.problems import Problem, smooth
from benchmarks.shared.problems.draws import geometric
from benchmarks.shared.tables import table

TITLE = "Steps to a gap of 1e-6, beside the step before"

GAP, LIMIT, STARTS = 1e-6, 800, 7
RATES = {
    "momentum": (0.5, 1.0, 2.0, 3.0, 3.5, 5.0, 7.0),
    "adam": (0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.03),
}
NEAR, REACH, BEND = 0.25, 100.0, 9.0
"""The bounds of the older step: of the residual for A, of t²‖D‖ and of t²‖S‖²."""


def older(x: Array, u: Array) -> Array:
    """Where the older step leads from a point of the manifold."""
    eye = jnp.eye(x.shape[-1], dtype=x.dtype)
    s = x.T @ u
    s = (s + s.T) / 2
    v = u - x @ s
    m = (x + v).T @ (x + v)

    def short():
        return (x + v) @ (15 * eye - 10 * m + 3 * m @ m) / 8

    def long():
        d, s2 = v.T @ v, s @ s
        square = jnp.minimum(REACH / jnp.sqrt(_norm(d @ d)), BEND / _norm(s2))
        t = jnp.minimum(1, jnp.sqrt(square))
        return cdx.stiefel.project(x @ (eye + t**2 * s2) + t * v)

    return lax.cond(jnp.sqrt(_norm((m - eye) @ (m - eye))) <= NEAR, short, long)


def _norm(a):
    return jnp.linalg.norm(a)


def _by_older_step(optimiser: Any) -> optax.GradientTransformationExtraArgs:
    """`constrain` as it was."""

    def move(updates, params):
        return jax.tree.map(lambda u, x: older(x, u) - x, updates, params)

    return optax.chain(cdx.project_gradients(), optimiser, optax.stateless(move))


STEPS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "ours": cdx.constrain,
    "before": _by_older_step,
}


def brockett(seed: int, n: int = 200, p: int = 5) -> Problem:
    """−tr(XᵀMXN)/2 with N = diag(1, …, 1/p): eigenvectors in their order; saddles."""
    matrix, spectrum, _ = geometric(seed, n, 1e3)
    m, weights = jnp.asarray(matrix), jnp.linspace(1, 1 / p, p)

    def f(x):
        return -jnp.sum(x * (m @ x) * weights) / 2

    best = -float(spectrum[:p] @ np.linspace(1, 1 / p, p)) / 2
    start = cdx.stiefel.random(jax.random.key(seed), (n, p), float)
    return Problem(f=f, start=start, best=best)


def _procrustes(seed: int, n: int = 60) -> Problem:
    """Scaled to a second derivative of about one, as the other two are."""
    made = smooth.procrustes(seed, n)
    scale = float(jnp.linalg.norm(jax.grad(made.f)(jnp.zeros((n, n))), 2))
    best = (made.best or 0.0) / scale
    return made._replace(f=lambda x: made.f(x) / scale, best=best)


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "PCA 500×20": lambda seed: smooth.pca(seed, 500, 20),
    "Procrustes 60×60": _procrustes,
    "Brockett 200×5": brockett,
}


def _counts(
    problem: Problem, step: str, optimiser: str, rates: Sequence[float], starts: int
) -> list[list[int | None]]:
    """The steps to the gap at each rate, from each start; None if there are too many.

    The starts are the problem's own, turned by orthogonal matrices: the side of the
    solution stays the same.
    """
    best = problem.best or 0.0
    goal = best + GAP * abs(best)
    points = [problem.start, *(_turned(problem.start, k) for k in range(1, starts))]

    def one(setting):
        rate, x = setting

        def go_on(carry):
            return (carry[0] < LIMIT) & ~carry[-1]

        def advance(carry):
            count, x, state, _ = carry
            tx = STEPS[step](OPTIMISERS[optimiser](rate))
            updates, state = tx.update(jax.grad(problem.f)(x), state, x)
            x = jnp.asarray(optax.apply_updates(x, updates))
            # No point gains by being off the manifold.
            near = cdx.stiefel.dissolve(cdx.stiefel.dissolve(x))
            return count + 1, x, state, problem.f(near) <= goal

        state = jax.tree.map(
            jnp.asarray, STEPS[step](OPTIMISERS[optimiser](rate)).init(x)
        )
        first = (jnp.zeros([], int), x, state, jnp.zeros([], bool))
        count, _, _, met = lax.while_loop(go_on, advance, first)
        return jnp.where(met, count, 0)

    grid = jnp.repeat(jnp.asarray(rates), len(points))
    found = jax.jit(lambda given: lax.map(one, given))(
        (grid, jnp.tile(jnp.stack(points), (len(rates), 1, 1)))
    )
    return [[int(k) or None for k in row] for row in found.reshape(len(rates), -1)]


def _turned(start: Array, seed: int) -> Array:
    """Another start, whose determinant has the same sign where it is square."""
    rotation = cdx.stiefel.random(jax.random.key(seed), (len(start),) * 2, start.dtype)
    side = jnp.linalg.slogdet(rotation)[0]
    return rotation.at[0].multiply(side) @ start


def runs(seeds: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """The records; there are seven starts, whatever number of seeds is asked for."""
    del seeds
    starts = 2 if quick else STARTS
    with jax.enable_x64(new_val=True):
        for title in ["Procrustes 20×20"] if quick else PROBLEMS:
            problem = _procrustes(0, 20) if quick else PROBLEMS[title](0)
            for optimiser, rates in RATES.items():
                if quick and optimiser == "adam":
                    continue
                steps = {
                    name: _counts(problem, name, optimiser, rates, starts)
                    for name in STEPS
                }
                head = {"problem": title, "optimiser": optimiser, "rates": rates}
                yield {**head, "starts": starts, "steps": steps}


def mean(counts: Sequence[int | None]) -> float | None:
    """The geometric mean; None if the gap is not met from every start."""
    met = [k for k in counts if k is not None]
    if len(met) < len(counts):
        return None
    return float(np.exp(np.mean(np.log(met))))


def _cell(counts: Sequence[int | None]) -> str:
    whole = mean(counts)
    if whole is not None:
        return f"{whole:.1f}"
    return f"from {sum(k is not None for k in counts)} of {len(counts)}"


def _row(record: dict[str, Any], place: int) -> list[str]:
    own, before = (record["steps"][name][place] for name in STEPS)
    top, bottom = mean(own), mean(before)
    ratio = "" if top is None or bottom is None else f"{top / bottom:.3f}"
    return [f"{record['rates'][place]:g}", _cell(own), _cell(before), ratio]


def _summary(record: dict[str, Any]) -> str:
    """The worst ratio where the step before arrives, and that at its best rate."""
    own, before = ([mean(c) for c in record["steps"][name]] for name in STEPS)
    head = f"{record['problem']}, {record['optimiser']}: "
    known = {i: k for i, k in enumerate(before) if k is not None}
    more = [
        f"{rate:g}"
        for rate, a, b in zip(record["rates"], own, before, strict=True)
        if a is not None and b is None
    ]
    also = f"; ours arrives from all starts at {', '.join(more)} too" if more else ""
    if not known:
        return f"{head}the step before arrives from all starts at no rate{also}."
    ratios = {i: (own[i] or np.inf) / k for i, k in known.items()}
    best = min(known, key=lambda i: known[i])
    return (
        f"{head}at most {max(ratios.values()):.3f} times the steps at the rates at "
        f"which the step before arrives from all starts, {ratios[best]:.3f} times at "
        f"its best rate, {record['rates'][best]:g}{also}."
    )


def report(records: list[dict[str, Any]]) -> str:
    """The tables."""
    rows = [
        [r["problem"], r["optimiser"], *_row(r, place)]
        for r in records
        for place in range(len(r["rates"]))
    ]
    header = ("problem", "optimiser", "rate", "ours", "before", "ours ÷ before")
    return (
        f"Geometric means over {records[0]['starts']} starts of the steps to a "
        f"relative gap of {GAP:g}, at constant rates in float64; where the gap is not "
        f"met within {LIMIT:,} steps from some, from how many it is. Before is the "
        "step of commit a14adb0, which takes the normal part out of what the optimiser "
        "proposes; ours is the package's, which does not.\n\n"
        + table(header, rows)
        + "\n\n"
        + "\n".join(f"- {_summary(r)}" for r in records)
    )
