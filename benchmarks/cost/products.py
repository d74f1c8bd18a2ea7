"""What the constraint costs: ``python -m benchmarks.cost``, or with ``--network``.

Without the option, each function runs beside a bare program of exactly the products
that it makes in an ordinary step, in the same order; with it, whole training steps of
VGG-19 run beside those of the same optimiser without the constraint. Programs take
turns, so that a busy machine slows all of them, and ratios of medians are written.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.shared.timing import compiled, environment, floor, interleaved
from benchmarks.shared.vgg import VGG, VGG_MASK, random_images, start, train_step

SHAPES = (
    (288, 32),
    (1024, 128),
    (2304, 256),
    (4608, 512),
    (512, 512),
    (300, 64, 16),
    (1000, 16, 8),
)
QUICK = ((288, 32), (30, 64, 16))
BUDGET = 20.0  # seconds of each function and shape
MATRICES = cdx.Stiefel(rows=-2, columns=-1)
OPTIMISERS = {"sgd": optax.sgd(1e-2, momentum=0.9), "adam": optax.adam(1e-3)}

_mm = partial(jnp.matmul, precision="highest")

Step = Callable[[jax.Array, jax.Array], jax.Array]


def bare_guarded(x: jax.Array, u: jax.Array) -> jax.Array:
    """The products of a short step: two of n×p×p and one of p×p×p."""
    z = x + u
    f = _mm(z.mT, z)
    return _mm(z, _mm(f, f))


def bare_dissolve(x: jax.Array, u: jax.Array) -> jax.Array:
    """The products of A(x), two of n×p×p and one of p×p×p, and the sum with u."""
    m = _mm(x.mT, x)
    return _mm(x, _mm(m, m)) + u


def landed(tx: optax.GradientTransformation) -> Step:
    """A transformation, to the new point."""

    def step(x, u):
        updates, _ = tx.update(u, tx.init(x), x)
        return jnp.asarray(optax.apply_updates(x, updates))

    return step


# Of each function, the program of its products. `floor` has those of the gradient.
PAIRS: dict[str, tuple[Step, Step]] = {
    "gradient": (lambda x, g: cdx.stiefel.gradient(x, g, 1.0), floor),
    "guarded step": (landed(cdx.keep_feasible(MATRICES)), bare_guarded),
    "restore_feasibility": (landed(cdx.restore_feasibility(MATRICES)), bare_dissolve),
    "proximal_step": (
        landed(cdx.proximal_step(0.1, cdx.prox.l1(1e-4), MATRICES)),
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
    """The median seconds of each function, and of its products alone."""
    steps = {name: ours for name, (ours, _) in PAIRS.items()}
    steps |= {f"bare {name}": in_stack(bare) for name, (_, bare) in PAIRS.items()}
    thunks = {name: compiled(step, *inputs(shape))[0] for name, step in steps.items()}
    return {"shape": shape, "seconds": interleaved(thunks, repeats, budget=BUDGET)}


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Milliseconds, and in brackets the ratio to the bare products."""
    yield "| shape | " + " | ".join(PAIRS) + " |"
    yield "|---" * (len(PAIRS) + 1) + "|"
    for record in records:
        seconds = record["seconds"]
        cells = [
            f"{1e3 * seconds[name]:.3g} ({seconds[name] / seconds[f'bare {name}']:.2f})"
            for name in PAIRS
        ]
        shape = "×".join(map(str, record["shape"]))
        yield f"| {shape} | " + " | ".join(cells) + " |"


def peak_bytes(program: Any) -> int:
    """The most memory that a compiled program holds at a time, as XLA planned it.

    That is its arguments, its temporaries and those of its outputs that do not reuse
    (alias) the buffer of a donated argument. The code itself is not counted.
    """
    plan = program.memory_analysis()
    held = plan.argument_size_in_bytes + plan.temp_size_in_bytes
    return held + plan.output_size_in_bytes - plan.alias_size_in_bytes


def compile_training(
    model: VGG, tx: optax.GradientTransformation, count: int, **options: Any
) -> tuple[Any, Any]:
    """A training step that reuses the buffers of its state, and the state's shapes.

    Args:
        model: The network.
        tx: The optimiser.
        count: How many images a batch has.
        **options: Of the compiler.
    """
    state = jax.eval_shape(lambda: start(model, tx))
    batch = jax.eval_shape(lambda: random_images(count, model.classes))
    program = jax.jit(train_step(model, tx), donate_argnums=0)
    return program.lower(state, batch).compile(options), state


def _in_place(program, state, batch):
    """A step as a function without arguments, which returns the new state."""

    def run():
        nonlocal state
        state = program(state, batch)
        return state

    return run


def measure_network(model: VGG, count: int, repeats: int, name: str) -> dict[str, Any]:
    """Time and memory of a training step, with and without the constraint.

    One optimiser at a time, so that no more than two networks are held at once.
    """
    txs = {"plain": OPTIMISERS[name]}
    txs["constrained"] = cdx.constrain(txs["plain"], VGG_MASK)
    programs, compiling, thunks = {}, {}, {}
    batch = random_images(count, model.classes)
    for kind, tx in txs.items():
        began = time.perf_counter()
        programs[kind], _ = compile_training(model, tx, count)
        compiling[kind] = time.perf_counter() - began
        thunks[kind] = _in_place(programs[kind], start(model, tx), batch)
    seconds = interleaved(thunks, repeats)
    guard = thunks["constrained"]()["optimizer"].guard
    return {
        "optimiser": name,
        "seconds": seconds,
        "compile": compiling,
        "bytes": {kind: peak_bytes(program) for kind, program in programs.items()},
        "long steps": int(guard.num_long.sum()),
        "steps": int(guard.num_updates) * guard.num_long.size,
    }


def network_table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The two optimisers, side by side."""
    kinds = ("s a step", "peak MB", "s to compile")
    columns = [f"{kind}, plain | constrained | ratio" for kind in kinds]
    yield f"| optimiser | {' | '.join(columns)} | long steps |"
    yield "|---" * 11 + "|"
    for record in records:
        cells = [record["optimiser"]]
        for field, unit in (("seconds", 1.0), ("bytes", 1e6), ("compile", 1.0)):
            plain, ours = (record[field][k] / unit for k in ("plain", "constrained"))
            cells += [f"{plain:.4g}", f"{ours:.4g}", f"{ours / plain:.3f}"]
        cells.append(f"{record['long steps']} of {record['steps']}")
        yield "| " + " | ".join(cells) + " |"


def _main_products(options):
    shapes = QUICK if options.quick else SHAPES
    repeats = options.repeats or (5 if options.quick else 41)
    records = [measure(shape, repeats) for shape in tqdm(shapes)]
    head = (
        "Median milliseconds, float32, short steps, and in brackets the ratio to a "
        "bare program of the same products."
    )
    return "cost", {"repeats": repeats, "records": records}, head, table(records)


def _main_network(options):
    width = options.width or (0.125 if options.quick else 1.0)
    count, repeats = options.batch, options.repeats or (2 if options.quick else 5)
    model = VGG(19, width)
    records = [
        measure_network(model, count, repeats, name) for name in tqdm(OPTIMISERS)
    ]
    head = (
        f"A training step of VGG-19 of width {width:g} at batch {count}, random images "
        "of 32×32, float32: loss, gradient, update and new parameters, buffers "
        "donated. Peak memory is what XLA planned: arguments, temporaries and outputs, "
        "less the outputs that reuse arguments. Long steps are those that took the "
        "rarer, more costly branch, each kernel counted."
    )
    result = {"width": width, "batch": count, "repeats": repeats, "records": records}
    return "network", result, head, network_table(records)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the records and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--network", action="store_true", help="training steps of VGG-19")
    add("--width", type=float, help="of the network")
    add("--batch", type=int, default=128, help="of the network")
    add("--quick", action="store_true", help="small programs, to see that it runs")
    add("--repeats", type=int)
    add("--out", type=Path, default=Path("benchmarks/results/cost"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    around = environment("jax", "jaxlib", "optax", "flax", "numpy")
    run = _main_network if options.network else _main_products
    name, result, head, lines = run(options)
    where = (
        f"{around['device']}, {around['cpus']} processors, load {around['load']:.1f}"
    )
    versions = ", ".join(f"{k} {v}" for k, v in around["versions"].items())
    head += f" Up to {result['repeats']} turns; device: {where} before; {versions}."
    text = "\n".join([head + "\n", *lines]) + "\n"
    result = json.dumps(around | result, indent=1)
    (options.out / f"{name}.json").write_text(result + "\n")
    (options.out / f"{name}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
