"""How a step grows with its matrices and their number: ``python -m benchmarks growth``.

Time, temporary memory, and the seconds to trace and to compile, in float32: against n,
p, the matrices of a stack and the leaves of a tree; and the products and messages of
each device, against the devices that share a matrix. All programs of a sweep take
turns. Exponents are the slopes of a least-squares line through the logarithms.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.scaling import devices
from benchmarks.scaling.growth_report import figure, report
from benchmarks.shared.fingerprint import of_part
from benchmarks.shared.methods import OPTIMISERS, WRAPPERS
from benchmarks.shared.methods.leaves import STACKS
from benchmarks.shared.results import RESULTS, environment, make_parser, write
from benchmarks.shared.timing import Program, alone, compiled, interleaved

BUDGET = 3.0  # seconds of each program
LEAVES = 300


class Kind(NamedTuple):
    """An optimiser, and what holds it to the manifold."""

    wrapper: str
    optimiser: str
    rate: float

    def make(self) -> optax.GradientTransformation:
        """The transformation."""
        return WRAPPERS[self.wrapper](OPTIMISERS[self.optimiser](self.rate), STACKS)


METHODS = {
    "keep_feasible(sgd)": Kind(wrapper="keep_feasible", optimiser="sgd", rate=1.0),
    "constrain(sgd)": Kind(wrapper="constrain", optimiser="sgd", rate=1.0),
}
WITHOUT = {
    "sgd": Kind(wrapper="unconstrained", optimiser="sgd", rate=1.0),
    "constrain(sgd)": METHODS["constrain(sgd)"],
    "adam": Kind(wrapper="unconstrained", optimiser="adam", rate=1e-3),
    "constrain(adam)": Kind(wrapper="constrain", optimiser="adam", rate=1e-3),
}

Shapes = list[tuple[int, ...]]
SWEEPS: dict[str, dict[int, Shapes]] = {
    "n": {n: [(n, 64)] for n in (256, 512, 1024, 2048, 4096, 8192)},
    "p": {p: [(4096, p)] for p in (16, 32, 64, 128, 256, 512)},
    "batch": {b: [(b, 64, 16)] for b in (1, 4, 16, 64, 256, 1024)},
    "equal leaves": {k: [(64, 16)] * k for k in (10, 30, 100, 300)},
    "distinct leaves": {k: [(64 + 8 * i, 16) for i in range(k)] for k in (4, 8, 16)},
}
QUICK: dict[str, dict[int, Shapes]] = {
    "n": {n: [(n, 16)] for n in (64, 256)},
    "p": {p: [(256, p)] for p in (8, 32)},
    "batch": {b: [(b, 32, 8)] for b in (1, 16)},
    "equal leaves": {k: [(32, 8)] * k for k in (2, 4)},
    "distinct leaves": {k: [(32 + 8 * i, 8) for i in range(k)] for k in (1, 2)},
}


def inputs(shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """A point, and a step as short as in ordinary training."""
    x = cdx.stiefel.random(jax.random.key(0), shape, jnp.float32)
    u = jax.random.normal(jax.random.key(1), shape, jnp.float32)
    return x, 0.1 * u / jnp.linalg.norm(u, axis=(-2, -1), keepdims=True)


class Step(NamedTuple):
    """A compiled step, and the same without arguments."""

    program: Program
    run: partial[Any]


def prepare(kind: Kind, shapes: Shapes) -> Step:
    """Compile one update of a tree with leaves of these shapes."""
    tx, params, grads = kind.make(), {}, {}
    for i, shape in enumerate(shapes):
        params[f"w{i:03}"], grads[f"w{i:03}"] = inputs(shape)
    # A state as all steps but the first find it.
    _, state = jax.jit(tx.update)(grads, tx.init(params), params)

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    # Else what another program has traced would not be traced again.
    jax.clear_caches()
    program = compiled(step, params, state, grads)
    # The first step looks at a point of which nothing is known; later ones need not.
    params, state = program.call(params, state, grads)
    return Step(program=program, run=partial(program.call, params, state, grads))


def sweep(sizes: dict[int, Shapes], repeats: int) -> list[dict[str, Any]]:
    """A record for each method and size."""
    keys = [(method, size) for size in sizes for method in METHODS]
    steps = {key: prepare(METHODS[key[0]], sizes[key[1]]) for key in tqdm(keys)}
    thunks = {f"{m} {size}": step.run for (m, size), step in steps.items()}
    seconds = interleaved(thunks, repeats, budget=BUDGET)
    return [
        {
            "method": method,
            "size": size,
            "shape": sizes[size][-1],
            "seconds": seconds[f"{method} {size}"],
            "temporary": program.temporary_bytes,
            "trace": program.trace_seconds,
            "compile": program.compile_seconds,
        }
        for (method, size), (program, _) in steps.items()
    ]


def many_leaves(count: int, repeats: int) -> dict[str, Any]:
    """Compilation and step for many equal leaves, with and without the constraint."""
    shapes: Shapes = [(64, 16)] * count
    steps = {name: prepare(kind, shapes) for name, kind in tqdm(WITHOUT.items())}
    seconds = interleaved({name: step.run for name, step in steps.items()}, repeats)
    rows = {
        name: {
            "trace": program.trace_seconds,
            "compile": program.compile_seconds,
            "seconds": seconds[name],
        }
        for name, (program, _) in steps.items()
    }
    return {"leaves": count, "rows": rows}


@alone
def timed(plan: dict[str, dict[int, Shapes]], leaves: int, repeats: int) -> Any:
    """All that is timed."""
    return {
        **environment(),
        "repeats": repeats,
        "sweeps": {name: sweep(sizes, repeats) for name, sizes in plan.items()},
        "many leaves": many_leaves(leaves, repeats),
    }


def _kept(file: Path) -> Any:
    """What a file has that was timed, if that was with this step."""
    content = json.loads(file.read_text("utf-8")) if file.exists() else {}
    made = content.pop("made", {})
    return content if made.get("step") == of_part("step") else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the records, the tables and the figure."""
    parser = make_parser("growth", __doc__, RESULTS / "scaling")
    add = parser.add_argument
    add("--repeats", type=int)
    add("--resume", action="store_true", help="keep times that are of this step")
    options = parser.parse_args(arguments)
    repeats = options.repeats or (3 if options.quick else 31)
    # Before anything runs; programs on one device use all cores as before.
    jax.config.update("jax_num_cpu_devices", devices.COUNTS[-1])
    plan = QUICK if options.quick else SWEEPS
    found = _kept(options.out / "growth.json") if options.resume else None
    found = found or timed(plan, 10 if options.quick else LEAVES, repeats)
    counted = devices.measure((256, 16)) if options.quick else devices.measure()
    result = {**found, "devices": counted}
    write(options.out, "growth", result, report(result))
    figure(options.out / "growth.png", result["sweeps"], result["devices"])
