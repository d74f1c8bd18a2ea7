"""What one constrained step costs, ours and the rivals': ``python -m benchmarks.cost.step``.

A step is all that leads from a point and a Euclidean gradient to the next point, by
plain gradient descent in float32. Times are medians, taken in turns, and stand beside
the bare matrix products of `timing.floor`; how far each method is from the constraint
after some steps stands beside its time.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks import cost, torch_rivals
from benchmarks.cost.step_report import STYLES, figure, table
from benchmarks.shared.methods.landing import landing
from benchmarks.shared.methods.penalties import expen, expen_autodiff, soft_penalty
from benchmarks.shared.methods.pogo import pogo
from benchmarks.shared.methods.retraction import (
    cayley,
    descent,
    polar_gram,
    polar_svd,
    qr,
)
from benchmarks.shared.problems.linear_algebra import pca
from benchmarks.shared.timing import compiled, environment, floor, interleaved

RATE = 0.1  # with gradients of norm one: a short step, as in ordinary training
BUDGET = 2.0  # seconds of each method and shape
END_SHAPE = (256, 32)
END_RATES = (0.1, 0.5)
END_STEPS = 50
MATRICES = cdx.Stiefel(rows=-2, columns=-1)

Shape = tuple[int, ...]
Carry = tuple[jax.Array, Any]


class Method(NamedTuple):
    """A way to step, from a point and a state to the next ones.

    Attributes:
        init: From a point to the state.
        step: From both, and a gradient, to both.
    """

    init: Callable[[jax.Array], Any]
    step: Callable[[Carry, jax.Array], Carry]


def _ours(make: Callable[[float], Any]) -> Callable[[float], Method]:
    def at(rate):
        tx = make(rate)

        def step(carry, g):
            x, state = carry
            updates, state = tx.update(g, state, x)
            return jnp.asarray(optax.apply_updates(x, updates)), state

        return Method(tx.init, step)

    return at


def _rival(step: Callable[..., jax.Array]) -> Callable[[float], Method]:
    def at(rate):
        return Method(lambda _: (), lambda carry, g: (step(carry[0], g, rate=rate), ()))

    return at


def _after_sgd(last):
    return _ours(lambda rate: optax.chain(optax.sgd(rate), last))


def _proximal(*, tangential):
    l1 = cdx.prox.l1(1e-4)
    return _ours(
        lambda rate: cdx.proximal_step(rate, l1, MATRICES, tangential=tangential)
    )


METHODS: dict[str, Callable[[float], Method]] = {
    "ours, guarded step": _after_sgd(cdx.keep_feasible(MATRICES)),
    "ours, constrain(sgd)": _ours(
        lambda rate: cdx.constrain(optax.sgd(rate), MATRICES)
    ),
    "ours, Algorithm 1": _ours(
        lambda rate: optax.chain(cdx.dissolve_gradients(1.0, MATRICES), optax.sgd(rate))
    ),
    "ours, restored": _after_sgd(cdx.restore_feasibility(MATRICES)),
    "ours, Algorithm 2": _proximal(tangential=False),
    "ours, Algorithm 2, tangential": _proximal(tangential=True),
    "polar, SVD": _rival(descent(polar_svd)),
    "polar, eigh of XᵀX": _rival(descent(polar_gram)),
    "QR": _rival(descent(qr)),
    "Cayley": _rival(cayley),
    "landing": _rival(landing),
    "POGO": _rival(pogo),
    "ExPen": _rival(expen),
    "ExPen, autodiff": _rival(expen_autodiff),
    "soft penalty": _rival(soft_penalty),
}
SHAPES: dict[str, list[Shape]] = {
    "shapes": list(cost.SHAPES),
    "n": [(n, 64) for n in (128, 256, 512, 1024, 2048, 4096)],
    "p": [(2048, p) for p in (16, 32, 64, 128, 256, 512)],
    "batch": [(b, 64, 16) for b in (1, 4, 16, 64, 256, 1024)],
}
QUICK: dict[str, list[Shape]] = {
    "shapes": [(288, 32), (96, 96), (30, 64, 16)],
    "n": [(n, 16) for n in (64, 256)],
    "p": [(256, p) for p in (8, 32)],
    "batch": [(b, 32, 8) for b in (1, 16)],
}


def inputs(shape: Shape) -> tuple[jax.Array, jax.Array]:
    """A point of the manifold, and a gradient of norm one for each matrix."""
    x = cdx.stiefel.random(jax.random.key(0), shape, jnp.float32)
    g = jax.random.normal(jax.random.key(1), shape, jnp.float32)
    return x, g / jnp.linalg.norm(g, axis=(-2, -1), keepdims=True)


def measure(shape: Shape, repeats: int, names: list[str]) -> dict[str, Any]:
    """The median seconds of each method, and the seconds to compile it."""
    x, g = inputs(shape)
    programs = {"floor": compiled(floor, x, g)}
    thunks = {"floor": programs["floor"][0]}
    for name in names:
        method = METHODS[name](RATE)
        programs[name] = compiled(method.step, (x, method.init(x)), g)
        # Point and state as all steps but the first find them.
        later = programs[name][0]()
        thunks[name] = partial(jax.jit(method.step), later, g)
    return {
        "shape": shape,
        "seconds": interleaved(thunks, repeats, budget=BUDGET),
        "compile": {name: took for name, (_, took) in programs.items()},
    }


def measure_torch(shape: Shape, repeats: int) -> dict[str, float]:
    """The median seconds of each package for PyTorch that is installed."""
    x, g = inputs(shape)
    return torch_rivals.seconds(np.array(x), np.array(g), RATE, repeats, BUDGET)


def ends(rate: float, repeats: int) -> dict[str, Any]:
    """Where each method is after descending on PCA, and the time of a step there.

    Of each: ‖XᵀX − I‖, and the relative gap of the nearest point of the manifold. A
    step may cost more where it is long, so each is timed where it arrived.
    """
    made = pca(0, *END_SHAPE)
    gradient = jax.jit(jax.grad(made.value))
    points: dict[str, Any] = {}
    thunks = {"floor": partial(jax.jit(floor), made.start, made.start)}
    for name, at in METHODS.items():
        method = at(rate)
        carry, program = (made.start, method.init(made.start)), jax.jit(method.step)
        for _ in range(END_STEPS):
            carry = program(carry, gradient(carry[0]))
        points[name] = carry[0]
        thunks[name] = partial(program, carry, gradient(carry[0]))
    points |= torch_rivals.endpoints(
        np.array(made.start), lambda x: np.array(gradient(x)), rate, END_STEPS
    )
    return {
        "shape": END_SHAPE,
        "rate": rate,
        "steps": END_STEPS,
        "points": {name: _judged(made, x) for name, x in points.items()},
        "seconds": interleaved(thunks, repeats, budget=BUDGET),
        "torch_seconds": measure_torch(END_SHAPE, repeats),
    }


def _judged(made, x):
    x = np.asarray(x, np.float64)
    if not np.isfinite(x).all():
        return {"feasibility": None, "gap": None}
    value = float(made.value(polar_svd(jnp.asarray(x, jnp.float32))))
    return {
        "feasibility": float(np.linalg.norm(x.T @ x - np.eye(x.shape[1]))),
        "gap": (value - made.best) / abs(made.best),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the records, the tables and the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="small shapes, to see that it runs")
    add("--repeats", type=int)
    add("--out", type=Path, default=Path("benchmarks/results/step"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    around = environment("jax", "jaxlib", "optax", "numpy", *torch_rivals.PACKAGES)
    repeats = options.repeats or (5 if options.quick else 41)
    plan = QUICK if options.quick else SHAPES
    rates = END_RATES[-1:] if options.quick else END_RATES
    drawn = [name for name in STYLES if name in METHODS]
    jobs = [(sweep, shape) for sweep, shapes in plan.items() for shape in shapes]
    records: dict[str, list[Any]] = {sweep: [] for sweep in plan}
    for sweep, shape in (bar := tqdm(jobs)):
        bar.set_description(f"{sweep} {shape}")
        every = sweep == "shapes"
        record = measure(shape, repeats, list(METHODS) if every else drawn)
        record["torch_seconds"] = measure_torch(shape, repeats) if every else {}
        records[sweep].append(record)
    result = {
        **around,
        "repeats": repeats,
        "records": records,
        "ends": [ends(rate, repeats) for rate in rates],
    }
    (options.out / "step.json").write_text(json.dumps(result, indent=1) + "\n")
    text = table(result)
    (options.out / "step.md").write_text(text)
    figure(options.out / "step.png", records)
    print(text)


if __name__ == "__main__":
    main()
