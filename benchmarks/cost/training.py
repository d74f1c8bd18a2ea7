"""What a training step of VGG-19 costs: ``python -m benchmarks training``.

First, whole steps with and without `constrain`: time, peak memory and compilation.
Then the step split into model and optimiser, every method: the gradient of the loss is
the same for all, so that what each method does with it is timed apart, at the shapes of
the paper's network. That gradient is one after a few steps: at the start it is ten
times larger, and steps of `constrain` are long ones, which take more products.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.ocnn.experiment import read_rates
from benchmarks.shared.methods import METHODS, OPTIMISERS, TRAINED, Task
from benchmarks.shared.results import (
    RESULTS,
    environment,
    make_parser,
    surroundings,
    write,
)
from benchmarks.shared.tables import table
from benchmarks.shared.timing import Program, compiled, interleaved
from benchmarks.shared.vgg import (
    VGG,
    VGG_MASK,
    loss_of,
    random_images,
    start,
    train_step,
)

WHOLE = {"momentum": 1e-2, "adam": 1e-3}
"""The optimisers of whole steps, and their learning rates."""

TASK = Task(mask=VGG_MASK, gamma=1e-5, beta=0.1, schedule=optax.constant_schedule)
BEFORE = 4
"""How many steps are taken before anything is timed, each with images of its own."""


def compile_training(
    model: VGG, tx: optax.GradientTransformation, count: int, **options: Any
) -> tuple[Program, Any]:
    """A training step that reuses the buffers of its state, and the state's shapes.

    Args:
        model: The network.
        tx: The optimiser.
        count: How many images a batch has.
        **options: Of the compiler.
    """
    state = jax.eval_shape(lambda: start(model, tx))
    batch = jax.eval_shape(lambda: random_images(count, model.classes))
    step = train_step(model, tx)
    return compiled(step, state, batch, donate=0, options=options), state


def measure_whole(model: VGG, count: int, repeats: int, name: str) -> dict[str, Any]:
    """Time and memory of a whole step, with and without the constraint.

    One optimiser at a time, so that no more than two networks are held at once.
    """
    plain = OPTIMISERS[name](WHOLE[name])
    txs = {"plain": plain, "constrained": cdx.constrain(plain, VGG_MASK)}
    programs, thunks = {}, {}
    batch = random_images(count, model.classes)
    for kind, tx in txs.items():
        programs[kind], _ = compile_training(model, tx, count)
        thunks[kind] = _in_place(programs[kind].call, start(model, tx), batch)
    seconds = interleaved(thunks, repeats)
    state = thunks["constrained"]()["optimizer"]
    long = optax.tree.get(state, "num_long")
    return {
        "optimiser": name,
        "seconds": seconds,
        "compile": {kind: program.seconds for kind, program in programs.items()},
        "bytes": {kind: program.peak_bytes for kind, program in programs.items()},
        "long": int(jnp.sum(long)),
        "steps": int(optax.tree.get(state, "num_updates")) * long.size,
    }


def _in_place(program, state, batch):
    """A step as a function without arguments, which returns the new state."""

    def run():
        nonlocal state
        state = program(state, batch)
        return state

    return run


def whole_table(records: Sequence[dict[str, Any]]) -> str:
    """The optimisers of whole steps, with and without the constraint."""
    fields = {"s a step": "seconds", "peak MB": "bytes", "s to compile": "compile"}
    header = [
        title
        for kind in fields
        for title in (f"{kind}, plain", f"{kind}, constrained", "ratio")
    ]
    rows = []
    for record in records:
        cells = [record["optimiser"]]
        for field in fields.values():
            unit = 1e6 if field == "bytes" else 1.0
            plain, ours = (record[field][k] / unit for k in ("plain", "constrained"))
            cells += [f"{plain:.4g}", f"{ours:.4g}", f"{ours / plain:.3f}"]
        rows.append([*cells, f"{record['long']} of {record['steps']}"])
    return table(["optimiser", *header, "long steps"], rows)


def settled(derive: Callable[..., Any], model: VGG, count: int) -> tuple[Any, Any]:
    """Parameters after a few steps, and statistics."""
    tx = cdx.constrain(optax.adam(1e-3), VGG_MASK)
    state = start(model, tx)
    params, stats, optimizer = state["params"], state["stats"], state["optimizer"]
    update = jax.jit(tx.update)
    for step in range(BEFORE):
        grads, stats = derive(params, stats, *random_images(count, seed=2 + step))
        updates, optimizer = update(grads, optimizer, params)
        params = optax.apply_updates(params, updates)
    return params, stats


def own_part(name: str, rate: float, params: Any, grads: Any) -> partial[Any]:
    """What a method adds to the gradient of φ: the point, γr, and the update."""
    method = METHODS[name].make(TASK, rate)

    def step(params, grads, state):
        point = method.point(params)
        if method.differentiates_regularizer:
            more = jax.grad(TASK.regularizer.value)(point)
            grads = jax.tree.map(jnp.add, grads, more)
        updates, state = method.transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state, point

    program = jax.jit(step)
    state = method.transform.init(params)
    # As in the middle of a run: first steps may differ.
    params, state, _ = program(params, grads, state)
    return partial(program, params, grads, state)


def long_steps(step: partial[Any]) -> str:
    """In how many kernels the step is a long one, where `constrain` counts them."""
    before = optax.tree.get(step.args[-1], "num_long", None)
    if before is None:
        return ""
    _, after, _ = step()
    long = optax.tree.get(after, "num_long") - before
    return f"{int(jnp.sum(long))} of {long.size}"


def measure_parts(
    model: VGG, count: int, repeats: int, rates: dict[str, float]
) -> dict[str, Any]:
    """The seconds of the model's gradient, and of what each method adds."""
    derive = jax.jit(jax.grad(loss_of(model), has_aux=True))
    params, stats = settled(derive, model, count)
    batch = random_images(count)
    grads, _ = derive(params, stats, *batch)
    passes = interleaved(
        {"model": partial(derive, params, stats, *batch)}, min(3, repeats)
    )
    own = {
        name: own_part(name, rate, params, grads) for name, rate in tqdm(rates.items())
    }
    return {
        "model": passes["model"],
        "rates": rates,
        "seconds": interleaved(own, repeats),
        "long": {name: long_steps(step) for name, step in own.items()},
    }


def parts_table(parts: dict[str, Any]) -> str:
    """Of each method the seconds, and the ratio of R-sgd and R-proxsgd to them."""
    seconds, rivals = parts["seconds"], ("r-sgd-polar", "r-proxsgd")
    rows = [
        [
            *(METHODS[name].label, f"{own:.3f}", f"{parts['model'] + own:.2f}"),
            *(f"{seconds[r] / own:.1f}" if r in seconds else "" for r in rivals),
            parts["long"][name],
        ]
        for name, own in seconds.items()
    ]
    ratios = [f"{METHODS[rival].label} / it" for rival in rivals]
    return table(
        ["method", "optimiser, s", "whole step, s", *ratios, "long steps"], rows
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the records and the tables."""
    parser = make_parser("training", __doc__, RESULTS / "cost")
    add = parser.add_argument
    add("--depth", type=int, choices=(8, 19), default=19)
    add("--width", type=float)
    add("--batch", type=int, default=128)
    add("--rates", type=Path, help="file of learning rates, by a search")
    add("--repeats", type=int)
    add("--method", nargs="+", choices=TRAINED, default=TRAINED, metavar="NAME")
    options = parser.parse_args(arguments)
    quick = options.quick
    width = options.width or (0.125 if quick else 1.0)
    repeats = options.repeats or (2 if quick else 5)
    depth, count = (8, 16) if quick else (options.depth, options.batch)
    model = VGG(depth, width)
    around = environment()
    rates = {name: METHODS[name].learning_rate for name in options.method}
    if options.rates is not None:
        known = read_rates(options.rates)
        rates = {name: known.get(name, rate) for name, rate in rates.items()}
    whole = [measure_whole(model, count, repeats, name) for name in tqdm(WHOLE)]
    parts = measure_parts(model, count, repeats, rates)
    text = "\n\n".join(
        [
            f"A training step of VGG-{depth} of width {width:g} at batch {count}, "
            "random images of 32×32, float32: loss, gradient, update and new "
            "parameters, buffers donated. Peak memory is what XLA planned: arguments, "
            "temporaries and outputs, less the outputs that reuse arguments. Long "
            "steps are those that took the rarer, more costly branch, each kernel "
            f"counted. Medians of up to {repeats} turns. {surroundings(around)}",
            whole_table(whole),
            f"After {BEFORE} steps that are not timed, the model alone, loss and "
            f"gradient, takes {parts['model']:.2f} s; beside it is what each method "
            "adds: the point, the l1 term and the update of all parameters.",
            parts_table(parts),
        ]
    )
    setting = {"depth": depth, "width": width, "batch": count, "repeats": repeats}
    result = {**around, **setting, "whole": whole, "parts": parts}
    write(options.out, "training", result, text)
