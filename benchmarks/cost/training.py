"""A training step of VGG-19, split into model and optimiser: every method.

``python -m benchmarks.network`` times the gradient of the loss, which is the same for
all methods, and what each does with it, at the shapes of the paper's network. The
gradient is that after a few steps: at the start it is ten times larger, and steps of
`constrain` are long ones, which take more products. Programs take turns, and medians
are written.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.ocnn import read_rates
from benchmarks.shared.methods import METHODS, Task
from benchmarks.shared.timing import environment, interleaved
from benchmarks.shared.vgg import VGG, VGG_MASK, loss_of, random_images, start

TASK = Task(VGG_MASK, 1e-5, 0.1, optax.constant_schedule)
BEFORE = 4
"""How many steps are taken before anything is timed, each with images of its own."""


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


def optimiser(name: str, rate: float, params: Any, grads: Any) -> partial[Any]:
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


def table(
    seconds: Mapping[str, float], model: float, long: Mapping[str, str]
) -> Iterator[str]:
    """Of each method the seconds, and what R-sgd and R-proxsgd take of it."""
    rivals = "R-sgd (polar) / it | R-proxsgd / it"
    yield f"| method | optimiser, s | whole step, s | {rivals} | long steps |"
    yield "|---" * 6 + "|"
    for name, own in seconds.items():
        ratios = [
            f"{seconds[rival] / own:.1f}" if rival in seconds else ""
            for rival in ("r-sgd-polar", "r-proxsgd")
        ]
        label = METHODS[name].label
        cells = [label, f"{own:.3f}", f"{model + own:.2f}", *ratios, long[name]]
        yield "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the records and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--depth", type=int, choices=(8, 19), default=19)
    add("--width", type=float, default=1.0)
    add("--batch", type=int, default=128)
    add("--rates", type=Path, help="file of learning rates, by a search")
    add("--repeats", type=int, default=5)
    add("--method", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME")
    add("--out", type=Path, default=Path("benchmarks/results/network"))
    options = parser.parse_args(arguments)
    model = VGG(options.depth, options.width)
    around = environment("jax", "jaxlib", "optax", "flax")
    derive = jax.jit(jax.grad(loss_of(model), has_aux=True))
    params, stats = settled(derive, model, options.batch)
    batch = random_images(options.batch)
    grads, _ = derive(params, stats, *batch)
    passes = interleaved(
        {"model": partial(derive, params, stats, *batch)}, min(3, options.repeats)
    )
    rates = {name: entry.learning_rate for name, entry in METHODS.items()}
    rates |= {} if options.rates is None else read_rates(options.rates)
    own = {
        name: optimiser(name, rates[name], params, grads)
        for name in tqdm(options.method)
    }
    seconds = interleaved(own, options.repeats)
    long = {name: long_steps(step) for name, step in own.items()}
    kernels = {x.shape for x in jax.tree.leaves(params) if x.ndim == 4}
    versions = ", ".join(f"{k} {v}" for k, v in around["versions"].items())
    text = "\n".join(
        [
            f"One training step of VGG-{options.depth} of width {options.width:g} at "
            f"batch {options.batch} on images of 32×32, float32, after {BEFORE} others "
            "that are not timed. The model alone, loss and gradient, takes "
            f"{passes['model']:.2f} s; beside it is what each method adds: the point, "
            "the l1 term and the update of all parameters, "
            f"{len(kernels)} shapes of kernels among them. Medians of up to "
            f"{options.repeats} turns on {around['device']} with {around['cpus']} "
            f"processors; {versions}.\n",
            *table(seconds, passes["model"], long),
        ]
    )
    options.out.mkdir(parents=True, exist_ok=True)
    result = {**vars(options), "out": None, "rates": rates, "model": passes["model"]}
    content = json.dumps(around | result | {"seconds": seconds}, indent=1)
    (options.out / "network.json").write_text(content + "\n")
    (options.out / "network.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
