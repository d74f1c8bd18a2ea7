"""What one constrained step costs, ours and the rivals': ``python -m benchmarks step``.

A step is all that leads from a point and a Euclidean gradient to the next point, by
plain gradient descent in float32. Steps are timed inside a compiled loop, as a training
loop has them, and also called one by one from Python, where each array of a state adds
microseconds. Times are medians, taken in turns, and stand beside the bare matrix
products of `timing.floor`; how far each method is from the constraint after some steps
stands beside its time.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.cost.step_report import STYLES, figure, report
from benchmarks.shared.methods import METHODS, Method, Task, torch_packages
from benchmarks.shared.methods.leaves import STACKS
from benchmarks.shared.methods.retraction import polar_svd
from benchmarks.shared.problems import smooth
from benchmarks.shared.results import RESULTS, environment, make_parser, write
from benchmarks.shared.timing import alone, compiled, floor, interleaved

RATE = 0.1  # with gradients of norm one: a short step, as in ordinary training
BUDGET = 0.8  # seconds of each method and shape
TURN = 0.05  # seconds that the steps of one loop should take
END_SHAPE = (256, 32)
END_RATES = (0.1, 0.5)
END_STEPS = 50
TASK = Task(mask=STACKS, gamma=1e-4, beta=1.0, schedule=optax.constant_schedule)
COMPARED = (
    *("keep-feasible", "constrain-sgd", "algorithm-1", "restore-feasibility"),
    *("algorithm-2", "algorithm-2-tangential"),
    *("r-sgd-polar", "r-sgd-gram", "r-sgd-qr", "cayley", "landing", "pogo"),
    *("expen", "expen-autodiff", "soft-penalty"),
)

Shape = tuple[int, ...]
SHAPES: dict[str, list[Shape]] = {
    "shapes": [
        *((288, 32), (1024, 128), (2304, 256), (4608, 512), (512, 512)),
        *((300, 64, 16), (1000, 16, 8)),
    ],
    "n": [(n, 64) for n in (128, 256, 512, 1024, 2048, 4096)],
    "p": [(2048, p) for p in (16, 32, 64, 128, 256, 512)],
    "batch": [(b, 64, 16) for b in (1, 4, 16, 64, 256, 1024)],
}
QUICK: dict[str, list[Shape]] = {
    "shapes": [(288, 32), (30, 64, 16)],
    "n": [(n, 16) for n in (64, 256)],
    "p": [(256, p) for p in (8, 32)],
    "batch": [(b, 32, 8) for b in (1, 16)],
}


in_turns = alone(interleaved)
"""Behind a QR decomposition at 1024×128 the threads of LAPACK spin on: the floor of
products took 1.7 times as long in such a run, and QR itself 1.8 times."""


def inputs(shape: Shape) -> tuple[jax.Array, jax.Array]:
    """A point of the manifold, and a gradient of norm one for each matrix."""
    x = cdx.stiefel.random(jax.random.key(0), shape, jnp.float32)
    g = jax.random.normal(jax.random.key(1), shape, jnp.float32)
    return x, g / jnp.linalg.norm(g, axis=(-2, -1), keepdims=True)


def _step(method: Method, x, state, g):
    updates, state = method.transform.update(g, state, x)
    return optax.apply_updates(x, updates), state


def _repeated(count: int, body, start, g):
    """The state after some steps in a compiled loop.

    The gradient is an argument: of a constant, XLA computes what it can beforehand.
    """
    return jax.lax.fori_loop(0, count, lambda _, state: body(state, g), start)


def _next(method: Method, carry, g):
    x, state = carry
    return _step(method, x, state, g)


def measure(shape: Shape, repeats: int, names: list[str]) -> dict[str, Any]:
    """The median seconds of each method, in a loop and alone, and to compile it."""
    x, g = inputs(shape)
    bare = compiled(floor, x, g)
    single, making = {"floor": partial(bare.call, x, g)}, {"floor": bare.seconds}
    # Each time of what the last products made, or they would be moved out of the loop.
    bodies: dict[str, Any] = {"floor": (floor, x)}
    for name in names:
        method = METHODS[name].make(TASK, RATE)
        state = method.transform.init(x)
        program = compiled(partial(_step, method), x, state, g)
        # Point and state as all steps but the first find them.
        start = program.call(x, state, g)
        single[name] = partial(program.call, *start, g)
        making[name] = program.seconds
        bodies[name] = (partial(_next, method), start)
    once = in_turns(single, repeats, budget=BUDGET)
    loops, counts = {}, {}
    for name, (body, start) in bodies.items():
        counts[name] = int(np.clip(TURN / once[name], 2, 50))
        loop = jax.jit(partial(_repeated, counts[name], body))
        loops[name] = partial(loop, start, g)
    taken = in_turns(loops, repeats, budget=BUDGET)
    return {
        "shape": shape,
        "seconds": {name: taken[name] / counts[name] for name in taken},
        "alone": once,
        "compile": making,
    }


def measure_torch(shape: Shape, repeats: int) -> dict[str, float]:
    """The median seconds of each package for PyTorch that is installed."""
    x, g = inputs(shape)
    return torch_packages.seconds(np.array(x), np.array(g), RATE, repeats, BUDGET)


def apart(fn: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a process of its own.

    Where buffers lie depends on what was allocated before: behind the two smaller
    shapes, the step of `constrain` took 1.3 times as long at 2304×256 as by itself.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as pool:
        return pool.submit(fn, *arguments).result()


def ends(rate: float, repeats: int) -> dict[str, Any]:
    """Where each method is after descending on PCA, and the time of a step there.

    Of each: ‖XᵀX − I‖, and the relative gap of the nearest point of the manifold. A
    step may cost more where it is long, so each is timed where it arrived.
    """
    n, p = END_SHAPE
    problem = smooth.pca(0, n=n, p=p)
    gradient = jax.jit(jax.grad(problem.value))
    points: dict[str, Any] = {}
    thunks = {"floor": partial(jax.jit(floor), problem.start, problem.start)}
    for name in COMPARED:
        method = METHODS[name].make(TASK, rate)
        x, state = problem.start, method.transform.init(problem.start)
        step, point = jax.jit(partial(_step, method)), jax.jit(method.point)
        for _ in range(END_STEPS):
            x, state = step(x, state, gradient(point(x)))
        points[name] = x
        thunks[name] = partial(step, x, state, gradient(point(x)))
    points |= torch_packages.endpoints(
        np.array(problem.start), lambda x: np.array(gradient(x)), rate, END_STEPS
    )
    return {
        "shape": END_SHAPE,
        "rate": rate,
        "steps": END_STEPS,
        "points": {name: _judged(problem, x) for name, x in points.items()},
        "seconds": in_turns(thunks, repeats, budget=BUDGET),
        "torch_seconds": measure_torch(END_SHAPE, repeats),
    }


def _judged(problem, x):
    x = np.asarray(x, np.float64)
    if not np.isfinite(x).all():
        return {"feasibility": None, "gap": None}
    value = float(problem.value(polar_svd(jnp.asarray(x, jnp.float32))))
    return {
        "feasibility": float(np.linalg.norm(x.T @ x - np.eye(x.shape[1]))),
        "gap": (value - problem.best) / abs(problem.best),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the records, the tables and the figure."""
    parser = make_parser("step", __doc__, RESULTS / "cost")
    parser.add_argument("--repeats", type=int)
    options = parser.parse_args(arguments)
    around = environment()
    repeats = options.repeats or (5 if options.quick else 41)
    plan = QUICK if options.quick else SHAPES
    rates = END_RATES[-1:] if options.quick else END_RATES
    drawn = [name for name in STYLES if name in COMPARED]
    jobs = [(sweep, shape) for sweep, shapes in plan.items() for shape in shapes]
    records: dict[str, list[Any]] = {sweep: [] for sweep in plan}
    for sweep, shape in (bar := tqdm(jobs)):
        bar.set_description(f"{sweep} {shape}")
        every = sweep == "shapes"
        record = apart(measure, shape, repeats, list(COMPARED) if every else drawn)
        packages = apart(measure_torch, shape, repeats) if every else {}
        record["torch_seconds"] = packages
        records[sweep].append(record)
    result = {
        **around,
        "repeats": repeats,
        "records": records,
        "ends": [apart(ends, rate, repeats) for rate in rates],
    }
    write(options.out, "step", result, report(result))
    figure(options.out / "step.png", records)
