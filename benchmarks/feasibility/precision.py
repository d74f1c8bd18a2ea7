"""How near the manifold and the optimum each choice of dtypes ends.

``python -m benchmarks precision``: PCA of 256×32 with condition number 1000, 500 steps
of a cosine decay; dtypes of leaves and gradients, with and without master copies.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.shared.methods import OPTIMISERS, WRAPPERS
from benchmarks.shared.problems.draws import geometric
from benchmarks.shared.results import RESULTS, environment, make_parser, write
from benchmarks.shared.tables import table

ROWS, COLUMNS, CONDITION = 256, 32, 1e3
STEPS = 500


class Policy(NamedTuple):
    """Which dtype is used for what.

    Attributes:
        leaf: That of the parameters.
        gradient: That in which the optimiser is given the gradients.
        copies: Whether there are master copies in float32.
    """

    leaf: str
    gradient: str
    copies: bool = False


POLICIES = {
    "f64": Policy(leaf="float64", gradient="float64"),
    "f32": Policy(leaf="float32", gradient="float32"),
    "f32, gradients bf16": Policy(leaf="float32", gradient="bfloat16"),
    "bf16": Policy(leaf="bfloat16", gradient="bfloat16"),
    "bf16, master copies": Policy(leaf="bfloat16", gradient="bfloat16", copies=True),
    "f16": Policy(leaf="float16", gradient="float16"),
    "f16, master copies": Policy(leaf="float16", gradient="float16", copies=True),
}


def _wrapped(wrapper: str, optimiser: str):
    return lambda rate: WRAPPERS[wrapper](OPTIMISERS[optimiser](rate), None)


# Of each method, the initial learning rate and a function of its schedule.
METHODS: dict[str, tuple[float, Callable[[Any], optax.GradientTransformation]]] = {
    "constrain(adam)": (0.03, _wrapped("constrain", "adam")),
    "constrain(momentum)": (1.0, _wrapped("constrain", "momentum")),
    "Algorithm 1, β = auto": (0.5, _wrapped("Algorithm 1, β = auto", "sgd")),
    "Algorithm 2, tangential": (
        0.5,
        lambda rate: cdx.proximal_step(rate, cdx.prox.none(), tangential=True),
    ),
}


class Eigenproblem(NamedTuple):
    """A problem in float64.

    Attributes:
        matrix: The matrix whose leading eigenvectors are sought.
        start: A point of the manifold.
        solution: The solution next to it.
        best: The least value.
    """

    matrix: np.ndarray
    start: np.ndarray
    solution: np.ndarray
    best: float


def eigenproblem(seed: int) -> Eigenproblem:
    """The leading eigenvectors of a matrix with geometrically falling eigenvalues."""
    matrix, spectrum, q = geometric(seed, ROWS, CONDITION)
    rng = np.random.default_rng((seed, 1))
    start = np.linalg.qr(rng.normal(size=(ROWS, COLUMNS)))[0]
    leading = q[:, :COLUMNS]
    solution = leading @ nearest(leading.T @ start)
    best = -float(spectrum[:COLUMNS].sum()) / 2
    return Eigenproblem(matrix=matrix, start=start, solution=solution, best=best)


def runner(policy: Policy, method: str, rate: float | None = None) -> Any:
    """From a matrix and a start to the last parameters and copies, if there are any."""
    usual, make = METHODS[method]
    tx: Any = make(optax.cosine_decay_schedule(usual if rate is None else rate, STEPS))
    tx = cdx.master_copies(tx) if policy.copies else tx

    @jax.jit
    def run(m, x):
        def value(x):
            y = x.astype(m.dtype)
            return -jnp.sum(y * jnp.matmul(m, y, precision="highest")) / 2

        def step(carry, _):
            x, state = carry
            grads = jax.grad(value)(x).astype(policy.gradient)
            updates, state = tx.update(grads, state, x)
            return (optax.apply_updates(x, updates), state), None

        (x, state), _ = jax.lax.scan(step, (x, tx.init(x)), length=STEPS)
        return x, state.copies if policy.copies else None

    wide = jnp.float64 if policy.leaf == "float64" else jnp.float32

    def on(made: Eigenproblem):
        return run(jnp.asarray(made.matrix, wide), jnp.asarray(made.start, policy.leaf))

    return on


def feasibility(x: Any) -> float:
    """‖XᵀX − I‖_F in double precision."""
    x = np.asarray(x, np.float64)
    return float(np.linalg.norm(x.T @ x - np.eye(x.shape[1])))


def nearest(x: Any) -> np.ndarray:
    """The nearest point of the manifold; not a number, where a run has diverged."""
    if not np.isfinite(np.asarray(x, np.float64)).all():
        return np.full(x.shape, np.nan)
    u, _, vt = np.linalg.svd(np.asarray(x, np.float64), full_matrices=False)
    return u @ vt


def gap(made: Eigenproblem, x: Any) -> float:
    """What is missing to the optimum, relative to it, on the manifold."""
    y = nearest(x)
    return float((-np.sum(y * (made.matrix @ y)) / 2 - made.best) / -made.best)


def measure(name: str, method: str, problems: list[Eigenproblem]) -> dict[str, Any]:
    """A row of the table: medians over the problems."""
    policy = POLICIES[name]
    ends: dict[str, list[float]] = {}
    # On for that policy alone, as its user would have it: it changes other programs.
    jax.config.update("jax_enable_x64", val=policy.leaf == "float64")
    run = runner(policy, method)
    for made in problems:
        x, copy = run(made)
        rounded = jnp.asarray(made.solution, policy.leaf)
        found = {"leaf": feasibility(x), "gap": gap(made, x)}
        found |= {"rounded": feasibility(rounded), "rounded gap": gap(made, rounded)}
        if copy is not None:
            found |= {"copy": feasibility(copy), "copy gap": gap(made, copy)}
        for key, figure in found.items():
            ends.setdefault(key, []).append(figure)
    medians = {key: float(np.median(figures)) for key, figures in ends.items()}
    return {"policy": name, "method": method, "rate": METHODS[method][0], **medians}


def report(result: dict[str, Any]) -> str:
    """The records in Markdown."""
    keys = ("leaf", "copy", "rounded", "gap", "copy gap", "rounded gap")
    header = ("method", "rate", "dtypes", "leaf", "copy", "rounded")
    rows = [
        [r["method"], f"{r['rate']:g}", r["policy"]]
        + [f"{r[key]:.1e}" if key in r else "" for key in keys]
        for r in result["records"]
    ]
    return (
        f"PCA {ROWS} × {COLUMNS} with condition number {CONDITION:,.0f}, {STEPS} steps "
        f"of a cosine decay, medians over {result['seeds']} problems: ‖XᵀX − I‖_F of "
        "the leaf, of its master copy, and of the solution rounded to the leaf's "
        "dtype; and the relative gap to the optimum of the same three, projected.\n\n"
        + table((*header, "gap of leaf", "of copy", "of rounded"), rows)
    )


def main(arguments: list[str] | None = None) -> None:
    """Run everything, and write the records and the table."""
    parser = make_parser("precision", __doc__, RESULTS / "feasibility")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    seeds = 1 if options.quick else options.seeds
    problems = [eigenproblem(seed) for seed in range(seeds)]
    methods = list(METHODS)[:1] if options.quick else METHODS
    jobs = [(policy, method) for method in methods for policy in POLICIES]
    records = [measure(*job, problems) for job in tqdm(jobs, unit="run")]
    result = {**environment(), "steps": STEPS, "seeds": seeds, "records": records}
    write(options.out, "precision", result, report(result))
