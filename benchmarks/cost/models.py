"""What it costs you: a training step of five models, with and without the constraint.

``python -m benchmarks models``. Steps are those of a training from its start, without a
warm-up, so that long steps are among them as they come, and are counted. Whole steps
are timed for Adam with and without `constrain`; of the methods that one would take in
place of it the update alone is, since the model's part is the same. All methods of a
model take turns, and figures are medians. Each model has a file of its own under
``--runs``, so that ``--model`` and ``--resume`` measure one after another.
"""

import itertools
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.cost import paper_methods
from benchmarks.cost.models_report import figure, report
from benchmarks.cost.networks import Network, make
from benchmarks.shared.fingerprint import of_part
from benchmarks.shared.methods import METHODS, OPTIMISERS, Task
from benchmarks.shared.results import (
    QUICK,
    RESULTS,
    environment,
    make_parser,
    write,
)
from benchmarks.shared.timing import Program, alone, compiled, interleaved

ADAM, SGD = 1e-3, 1e-2
BATCHES = 3
"""How many gradients the updates are given in turn, each of another batch."""

BUDGET = 8.0  # seconds of each method and model
ALTERNATIVES = ("r-sgd-polar", "r-sgd-qr", "landing", "soft-penalty")
"""What one would take in place of `constrain`, each a step of plain descent."""

Tree = Any


def transforms(network: Network) -> dict[str, optax.GradientTransformation]:
    """The optimisers, by the name that the report shows."""
    task = Task(
        mask=network.mask, gamma=0.0, beta=1.0, schedule=optax.constant_schedule
    )
    adam, sgd = OPTIMISERS["adam"](ADAM), OPTIMISERS["sgd"](SGD)
    others = {
        METHODS[name].label: METHODS[name].make(task, SGD).transform
        for name in ALTERNATIVES
    }
    return {
        "Adam": adam,
        "constrain(adam)": cdx.constrain(adam, network.mask),
        "SGD": sgd,
        **others,
    }


def _update(tx, params, state, grads):
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def _train(network, tx, state, x, y):
    params, stats, own = state
    grads, stats = jax.grad(network.loss, has_aux=True)(params, stats, x, y)
    params, own = _update(tx, params, own, grads)
    return params, stats, own


def bytes_of(tree: Tree) -> int:
    """The bytes of all arrays of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _copy(tree):
    return jax.tree.map(jnp.array, tree)


class _Going:
    """A step that goes on from where it is, as a function without arguments.

    Args:
        program: From the state and what comes from outside to the next state.
        state: The first state, whose buffers are given up.
        given: What comes from outside, in turn.
    """

    def __init__(self, program: Program, state: Tree, given: Sequence[tuple]):
        self._call, self.state = program.call, state
        self._given = itertools.cycle(given)

    def __call__(self) -> Tree:
        self.state = self._call(self.state, *next(self._given))
        return self.state


def long_steps(state: Tree) -> list[int] | None:
    """How many long steps there were, and of how many; None if they are not counted."""
    found = optax.tree.get(state, "num_long", None)
    if found is None:
        return None
    return [int(jnp.sum(found)), int(optax.tree.get(state, "num_updates")) * found.size]


@alone
def measure(network: Network, repeats: int) -> dict[str, Any]:
    """All that is measured of one model."""
    params, stats = network.init()
    derive = jax.jit(jax.grad(network.loss, has_aux=True))
    batches = [network.batch(jax.random.key(1 + i)) for i in range(BATCHES)]
    grads = [(derive(params, stats, *batch)[0],) for batch in batches]
    txs = transforms(network)
    found: dict[str, Any] = {"updates": {}, "whole": {}}
    going: dict[str, _Going] = {}
    for name, tx in txs.items():
        own = tx.init(params)

        def update(carry, g, tx=tx):
            return _update(tx, carry[0], carry[1], g)

        carry = _copy((params, own))
        program = compiled(update, carry, *grads[0], donate=0)
        going[f"update {name}"] = _Going(program, carry, grads)
        found["updates"][name] = {
            "compile": program.seconds,
            "state": bytes_of(own),
            "temporary": program.temporary_bytes,
        }
    for name in ("Adam", "constrain(adam)"):
        state = _copy((params, stats, txs[name].init(params)))
        step = partial(_train, network, txs[name])
        program = compiled(step, state, *batches[0], donate=0)
        going[f"whole {name}"] = _Going(program, state, batches)
        found["whole"][name] = {"compile": program.seconds, "peak": program.peak_bytes}
    thunks: dict[str, Callable[[], Any]] = dict(going)
    seconds = interleaved(thunks, repeats, budget=BUDGET)
    for key, step in going.items():
        kind, name = key.split(" ", 1)
        kept = found["updates" if kind == "update" else "whole"][name]
        kept |= {"seconds": seconds[key], "long": long_steps(step.state)}
    kernels = cdx.feasibility(params, network.mask)
    off = _feasibility(network, going)
    if network.paper:
        going.clear()
        found["paper"] = paper_methods.measure(
            *(params, grads[0][0], network.mask, repeats, BUDGET)
        )
    return {
        "about": network.about,
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        "constrained": len(kernels),
        "feasibility": off,
        **found,
    }


def _feasibility(network, going) -> dict[str, float]:
    """The largest ‖XᵀX − I‖_F over the kernels, where each update has led."""
    found = {}
    for key, step in going.items():
        if key.startswith("update"):
            offs = cdx.feasibility(step.state[0], network.mask).values()
            found[key.split(" ", 1)[1]] = float(np.max([float(off) for off in offs]))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the records, the tables and the figure."""
    parser = make_parser("models", __doc__, RESULTS / "cost")
    add = parser.add_argument
    add("--repeats", type=int)
    add("--model", nargs="+", choices=list(make()), metavar="NAME", help="these alone")
    add("--runs", type=Path, default=Path("runs/models"), help="folder of the records")
    add("--resume", action="store_true", help="keep what was measured with this step")
    options = parser.parse_args(arguments)
    repeats = options.repeats or (2 if options.quick else 7)
    networks = make(quick=options.quick)
    chosen, folder = options.model or list(networks), options.runs
    if options.quick:
        # The others compile for minutes.
        chosen, folder = ["transformer", "MLP"], QUICK / "models"
    around, records = environment(), {}
    folder.mkdir(parents=True, exist_ok=True)
    for name in (bar := tqdm(networks, disable=None)):
        bar.set_description(name)
        file, step = folder / f"{name}.json", of_part("step")
        kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
        if options.resume and kept.get("step") == step:
            records[name] = kept
        elif name in chosen:
            record = {"step": step, "load": os.getloadavg()[0]}
            records[name] = record | measure(networks[name], repeats)
            file.write_text(json.dumps(records[name]) + "\n", "utf-8")
    result = {**around, "repeats": repeats, "records": records}
    options.out.mkdir(parents=True, exist_ok=True)
    figure(options.out / "models.png", records)
    write(options.out, "models", result, report(result))
