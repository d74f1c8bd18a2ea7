"""Train one constrained network in one process or in many.

``python -m benchmarks launch --processes 4 -- python -m benchmarks distributed`` trains
on the devices of four processes, ``python -m benchmarks distributed`` on those of one,
with the same result. The mesh has two axes: the rows of the constrained kernel are
spread over "model", the examples of a batch over "data". Every process saves its part
of a checkpoint with Orbax, and ``--resume`` goes on from the newest, in as many
processes as before or in others.
"""

import argparse
import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from numpy.typing import ArrayLike

import cdopt_jax as cdx
from benchmarks.scaling.launch import COORDINATOR, COUNT, INDEX

Tree: TypeAlias = Any

INPUTS, HIDDEN, CLASSES, BATCH = 32, 16, 10, 96
AXES, AXIS_TYPES = ("data", "model"), (AxisType.Auto, AxisType.Auto)
MASK = cdx.where("hidden/kernel")


class UsageError(Exception):
    """Options that do not go together, or not with what is there."""


class Net(nn.Module):
    """A constrained hidden layer and a free classifier."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the logits of a batch of inputs."""
        on_manifold = nn.initializers.orthogonal()
        hidden = nn.Dense(HIDDEN, name="hidden", kernel_init=on_manifold)
        return nn.Dense(CLASSES, name="out")(nn.relu(hidden(x)))


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and write the parameters that come of it.

    Args:
        argv: The command line after the program's name; the process's own if None.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    connect(options.devices)
    try:
        train(options)
    except UsageError as error:
        parser.error(str(error))


def train(options: argparse.Namespace) -> None:
    """Train with these options."""
    mesh = make_mesh(options.model)
    schedule = optax.cosine_decay_schedule(0.02, options.steps)
    tx = cdx.constrain(optax.adam(schedule), MASK)
    folder = options.out.absolute() / "checkpoints"
    with checkpoints(folder, create=not options.resume) as manager:
        done = steps_done(manager, resume=options.resume)
        saved = start(tx, mesh)
        if done:
            # The fresh start tells structure, dtypes and where everything goes.
            saved = manager.restore(done, args=ocp.args.StandardRestore(saved))
            say(f"resumed after step {done}")
        step = make_step(tx, saved)
        for i in range(done + 1, options.steps + 1):
            saved = step(saved, batch(i, mesh))
            if i % options.save_every == 0:
                manager.save(i, args=ocp.args.StandardSave(saved))
                say(f"saved after step {i}")
                time.sleep(options.pause)
    finish(saved["params"], options.out / "final.npz")


def connect(devices: int) -> None:
    """Join the other processes, if the environment names any.

    Args:
        devices: How many devices this process is to have.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    if COORDINATOR in os.environ:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            os.environ[COORDINATOR], int(os.environ[COUNT]), int(os.environ[INDEX])
        )


def make_mesh(model: int | None) -> Mesh:
    """Arrange the devices of all processes.

    Args:
        model: How many share the rows of the kernel; the others share the batch. None
            is two, or one if there is an odd number of devices.
    """
    count = jax.device_count()
    model = model or (1 if count % 2 else 2)
    data = count // model
    if data * model != count or INPUTS % model or BATCH % data:
        raise UsageError(
            f"--model: {count} devices as {data} × {model} do not divide a batch of "
            f"{BATCH} and {INPUTS} rows evenly"
        )
    return jax.make_mesh((data, model), AXES, axis_types=AXIS_TYPES)


def start(tx: optax.GradientTransformation, mesh: Mesh) -> Tree:
    """Return the parameters and the optimiser's state, spread over the mesh."""
    params = jax.jit(Net().init)(jax.random.key(0), np.zeros((1, INPUTS)))["params"]
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("model"))
    shardings = jax.tree.map(lambda _: whole, params)
    shardings["hidden"]["kernel"] = rows
    state = tx.init(params)
    # The moments go where their parameters are, the rest is everywhere.
    state_shardings = optax.tree_map_params(
        tx,
        lambda _, sharding: sharding,
        state,
        shardings,
        transform_non_params=lambda _: whole,
    )
    return {
        "params": jax.tree.map(spread, params, shardings),
        "state": jax.tree.map(spread, state, state_shardings),
    }


def spread(x: ArrayLike, sharding: NamedSharding) -> jax.Array:
    """Make a global array of one that every process has whole."""
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def batch(step: int, mesh: Mesh) -> tuple[jax.Array, jax.Array]:
    """Return inputs and one-hot classes: those that a fixed linear map makes largest.

    They depend on the step alone, so that a resumed run sees what it would have seen.
    """
    teacher = np.random.default_rng(0).normal(size=(INPUTS, CLASSES))
    x = np.random.default_rng([1, step]).normal(size=(BATCH, INPUTS))
    y = np.eye(CLASSES)[np.argmax(x @ teacher, axis=1)]
    place = functools.partial(spread, sharding=NamedSharding(mesh, P("data")))
    return place(x.astype(np.float32)), place(y.astype(np.float32))


def make_step(
    tx: optax.GradientTransformation, saved: Tree
) -> Callable[[Tree, Tree], Tree]:
    """Compile a step, which leaves every array of `saved` where it is."""

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        logits: Any = Net().apply({"params": params}, x)
        return optax.softmax_cross_entropy(logits, y).mean()

    def step(saved: Tree, examples: tuple[jax.Array, jax.Array]) -> Tree:
        grads = jax.grad(loss)(saved["params"], *examples)
        updates, state = tx.update(grads, saved["state"], saved["params"])
        return {"params": optax.apply_updates(saved["params"], updates), "state": state}

    return jax.jit(step, out_shardings=jax.tree.map(lambda x: x.sharding, saved))


def checkpoints(folder: Path, *, create: bool) -> ocp.CheckpointManager:
    """Open the folder in which the run keeps its two newest checkpoints."""
    options = ocp.CheckpointManagerOptions(
        create=create,
        max_to_keep=2,
        # Saving is waited for, so that "saved" is said of what survives a crash.
        enable_async_checkpointing=False,
    )
    return ocp.CheckpointManager(folder, options=options)


def steps_done(manager: ocp.CheckpointManager, *, resume: bool) -> int:
    """Return how many steps the newest checkpoint has behind it, 0 without one."""
    done = manager.latest_step()
    if resume and done is None:
        raise UsageError(f"--resume: there is no checkpoint in {manager.directory}")
    if done is not None and not resume:
        raise UsageError(
            f"--out: {manager.directory} has checkpoints; go on from them by --resume"
        )
    return done or 0


def finish(params: Tree, path: Path) -> None:
    """Gather the parameters, and write them and their feasibility."""
    measure = jax.jit(lambda params: cdx.feasibility(params, MASK))
    ends = {"params": params, "feasibility": measure(params)}
    leaves = jax.tree.leaves_with_path(process_allgather(ends, tiled=True))
    named = {jax.tree_util.keystr(k, simple=True, separator="/"): v for k, v in leaves}
    if jax.process_index() == 0:
        np.savez(path, **named)
    kernel = params["hidden"]["kernel"]
    say(
        f"processes {jax.process_count()}, devices {jax.device_count()}, "
        f"kernel {kernel.shape} in parts of {kernel.sharding.shard_shape(kernel.shape)}"
        f", feasibility {named['feasibility/hidden/kernel']:.1e}, written to {path}"
    )


def say(text: str) -> None:
    """Print a line, once for all processes."""
    if jax.process_index() == 0:
        print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks distributed",
        description="Train one constrained network in one process or in many.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=_positive, default=100, help="how long to train")
    add("--save-every", type=_positive, default=20, help="steps between checkpoints")
    add("--out", type=Path, default=Path("runs/distributed"), help="folder to write to")
    add("--resume", action="store_true", help="go on from the newest checkpoint")
    add("--devices", type=_positive, default=1, help="devices of each process")
    add("--model", type=_positive, help="devices that share the rows of the kernel")
    add("--pause", type=float, default=0.0, help="seconds to wait after saving")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


# What argparse calls the type in its messages.
_positive.__name__ = "int"
