"""How a step grows with its matrices and their number: ``python -m benchmarks.scaling.growth``.

Time, temporary memory, and the seconds to trace and to compile, in float32: against n,
p, the matrices of a stack and the leaves of a tree. All programs of a sweep take turns.
Exponents are the slopes of a least-squares line through the logarithms.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.cost import MATRICES, PAIRS, in_stack, inputs
from benchmarks.scaling.growth_report import figure, table
from benchmarks.shared.timing import environment, interleaved

BUDGET = 3.0  # seconds of each program
STACK = (1000, 16, 8)
LEAVES = 300
METHODS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "keep_feasible": lambda: cdx.keep_feasible(MATRICES),
    "constrain(sgd)": lambda: cdx.constrain(optax.sgd(1.0), MATRICES),
}
OPTIMISERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(1.0),
    "constrain(sgd)": METHODS["constrain(sgd)"],
    "adam": lambda: optax.adam(1e-3),
    "constrain(adam)": lambda: cdx.constrain(optax.adam(1e-3), MATRICES),
}

Shapes = list[tuple[int, ...]]
SWEEPS: dict[str, dict[int, Shapes]] = {
    "n": {n: [(n, 64)] for n in (256, 512, 1024, 2048, 4096, 8192)},
    "p": {p: [(4096, p)] for p in (16, 32, 64, 128, 256, 512)},
    "batch": {b: [(b, 64, 16)] for b in (1, 4, 16, 64, 256, 1024)},
    "equal leaves": {k: [(64, 16)] * k for k in (10, 30, 100, 300)},
    "large leaves": {k: [(1024, 128)] * k for k in (1, 2, 4, 8)},
    "distinct leaves": {k: [(64 + 8 * i, 16) for i in range(k)] for k in (4, 8, 16)},
}
QUICK: dict[str, dict[int, Shapes]] = {
    "n": {n: [(n, 16)] for n in (64, 256)},
    "p": {p: [(256, p)] for p in (8, 32)},
    "batch": {b: [(b, 32, 8)] for b in (1, 16)},
    "equal leaves": {k: [(32, 8)] * k for k in (2, 4)},
    "large leaves": {k: [(256, 128)] * k for k in (1, 2)},
    "distinct leaves": {k: [(32 + 8 * i, 8) for i in range(k)] for k in (1, 2)},
}


class Program(NamedTuple):
    """A compiled step, its arguments, and the seconds to trace and to compile it."""

    run: Callable[[], Any]
    temporary: int
    trace: float
    compile: float


def prepare(
    make: Callable[[], optax.GradientTransformation], shapes: Shapes
) -> Program:
    """Compile one update of a tree with leaves of these shapes."""
    tx, params, grads = make(), {}, {}
    for i, shape in enumerate(shapes):
        params[f"w{i:03}"], grads[f"w{i:03}"] = inputs(shape)
    # A state as all steps but the first find it.
    _, state = jax.jit(tx.update)(grads, tx.init(params), params)

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    # Else what another program has traced would not be traced again.
    jax.clear_caches()
    began = time.perf_counter()
    lowered = jax.jit(step).lower(params, state, grads)
    traced = time.perf_counter()
    program: Any = lowered.compile()
    done = time.perf_counter()
    # The first step looks at a point of which nothing is known; later ones need not.
    params, state = program(params, state, grads)
    return Program(
        partial(program, params, state, grads),
        program.memory_analysis().temp_size_in_bytes,
        traced - began,
        done - traced,
    )


def sweep(sizes: dict[int, Shapes], repeats: int) -> list[dict[str, Any]]:
    """A record for each method and size."""
    keys = [(method, size) for size in sizes for method in METHODS]
    programs = {key: prepare(METHODS[key[0]], sizes[key[1]]) for key in tqdm(keys)}
    thunks = {f"{m} {size}": p.run for (m, size), p in programs.items()}
    seconds = interleaved(thunks, repeats, budget=BUDGET)
    return [
        {
            "method": method,
            "size": size,
            "shape": sizes[size][-1],
            "seconds": seconds[f"{method} {size}"],
            "temporary": program.temporary,
            "trace": program.trace,
            "compile": program.compile,
        }
        for (method, size), program in programs.items()
    ]


def stack(shape: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """The guarded step of many small matrices in one leaf, beside its products."""
    ours, bare = PAIRS["guarded step"]
    thunks, compiling = {}, {}
    for name, step in {"guarded step": ours, "products": in_stack(bare)}.items():
        jax.clear_caches()
        x, u = inputs(shape)
        began = time.perf_counter()
        program = jax.jit(step).lower(x, u).compile()
        compiling[name] = time.perf_counter() - began
        thunks[name] = partial(program, x, u)
    seconds = interleaved(thunks, repeats)
    return {"shape": shape, "seconds": seconds, "compile": compiling}


def optimisers(count: int, repeats: int) -> dict[str, Any]:
    """Compilation and step for many equal leaves, with and without the constraint."""
    shapes: Shapes = [(64, 16)] * count
    programs = {name: prepare(make, shapes) for name, make in tqdm(OPTIMISERS.items())}
    seconds = interleaved({k: p.run for k, p in programs.items()}, repeats)
    rows = {
        name: {"trace": p.trace, "compile": p.compile, "seconds": seconds[name]}
        for name, p in programs.items()
    }
    return {"leaves": count, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the records, the tables and the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="small sizes, to see that it runs")
    add("--repeats", type=int)
    add("--out", type=Path, default=Path("benchmarks/results/growth"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    repeats = options.repeats or (3 if options.quick else 31)
    plan = QUICK if options.quick else SWEEPS
    result = {
        **environment("jax", "jaxlib", "optax", "numpy"),
        "repeats": repeats,
        "sweeps": {name: sweep(sizes, repeats) for name, sizes in plan.items()},
        "stack": stack((50, 16, 8) if options.quick else STACK, repeats),
        "optimisers": optimisers(10 if options.quick else LEAVES, repeats),
    }
    (options.out / "growth.json").write_text(json.dumps(result, indent=1) + "\n")
    text = table(result)
    (options.out / "growth.md").write_text(text)
    figure(options.out / "growth.png", result["sweeps"])
    print(text)


if __name__ == "__main__":
    main()
