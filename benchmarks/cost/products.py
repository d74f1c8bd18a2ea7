"""What a step costs over its matrix products: ``python -m benchmarks products``.

Each function runs beside a bare program of exactly the products that it makes in an
ordinary step, in the same order. Programs take turns, so that a busy machine slows all
of them, and ratios of medians are written.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.shared.algebra import product
from benchmarks.shared.methods.leaves import STACKS
from benchmarks.shared.results import (
    RESULTS,
    environment,
    make_parser,
    surroundings,
    write,
)
from benchmarks.shared.tables import by, table
from benchmarks.shared.timing import compiled, floor, interleaved

SHAPES = (
    *((288, 32), (1024, 128), (2304, 256), (4608, 512), (512, 512)),
    *((300, 64, 16), (1000, 16, 8)),
)
QUICK = ((288, 32), (30, 64, 16))
BUDGET = 20.0  # seconds of each function and shape

Step = Callable[[jax.Array, jax.Array], jax.Array]


def bare_guarded(x: jax.Array, u: jax.Array) -> jax.Array:
    """The products of a short step: two of n×p×p and one of p×p×p."""
    z = x + u
    f = product(z.mT, z)
    return product(z, product(f, f))


def bare_dissolve(x: jax.Array, u: jax.Array) -> jax.Array:
    """The products of A(x), two of n×p×p and one of p×p×p, and the sum with u."""
    m = product(x.mT, x)
    return product(x, product(m, m)) + u


def landed(tx: optax.GradientTransformation) -> Step:
    """A transformation, to the new point."""

    def step(x, u):
        updates, _ = tx.update(u, tx.init(x), x)
        return jnp.asarray(optax.apply_updates(x, updates))

    return step


# Of each function, the program of its products. `floor` has those of the gradient.
PAIRS: dict[str, tuple[Step, Step]] = {
    "gradient": (lambda x, g: cdx.stiefel.gradient(x, g, 1.0), floor),
    "keep_feasible": (landed(cdx.keep_feasible(STACKS)), bare_guarded),
    "restore_feasibility": (landed(cdx.restore_feasibility(STACKS)), bare_dissolve),
    "proximal_step": (
        landed(cdx.proximal_step(0.1, cdx.prox.l1(1e-4), STACKS)),
        bare_dissolve,
    ),
}


def inputs(shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """A point, and a step as short as in ordinary training."""
    x = cdx.stiefel.random(jax.random.key(0), shape, jnp.float32)
    u = jax.random.normal(jax.random.key(1), shape, jnp.float32)
    return x, 0.1 * u / jnp.linalg.norm(u, axis=(-2, -1), keepdims=True)


def in_stack(bare: Step) -> Step:
    """A bare program with an axis more in front.

    XLA for CPU has a faster kernel for xᵀu of a stack of that shape than of one with
    three axes, and the bare program should be the best there is.
    """
    return lambda x, u: bare(x[None], u[None])[0]


def measure(shape: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """The median seconds of each function and of its products; seconds to compile."""
    steps = {name: ours for name, (ours, _) in PAIRS.items()}
    steps |= {f"bare {name}": in_stack(bare) for name, (_, bare) in PAIRS.items()}
    given = inputs(shape)
    programs = {name: compiled(step, *given) for name, step in steps.items()}
    thunks = {name: partial(p.call, *given) for name, p in programs.items()}
    return {
        "shape": shape,
        "seconds": interleaved(thunks, repeats, budget=BUDGET),
        "compile": {name: program.seconds for name, program in programs.items()},
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the records and the table."""
    parser = make_parser("products", __doc__, RESULTS / "cost")
    parser.add_argument("--repeats", type=int)
    options = parser.parse_args(arguments)
    around = environment()
    repeats = options.repeats or (5 if options.quick else 41)
    shapes = QUICK if options.quick else SHAPES
    records = [measure(shape, repeats) for shape in tqdm(shapes)]

    def cell(record, name):
        ours, bare = (record["seconds"][key] for key in (name, f"bare {name}"))
        made, alone = (record["compile"][key] for key in (name, f"bare {name}"))
        return f"{1e3 * ours:.3g} ({ours / bare:.2f}); {made:.2f} ({alone:.2f})"

    rows = [[by(r["shape"]), *(cell(r, name) for name in PAIRS)] for r in records]
    text = (
        "Median milliseconds, float32, short steps, and in brackets the ratio to a "
        "bare program of the same products; then the seconds to trace and compile, and "
        f"in brackets those of the bare program. Up to {repeats} turns. "
        f"{surroundings(around)}\n\n" + table(["shape", *PAIRS], rows)
    )
    write(options.out, "products", {**around, "records": records}, text)
