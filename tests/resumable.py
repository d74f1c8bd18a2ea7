"""A training program that saves with Orbax and goes on from there, to be killed.

``python resumable.py DIR whole`` trains without a stop. ``… DIR killed`` saves half
way, says so and trains until it is killed. ``… DIR resumed`` restores, and trains to
the end. The first and the last write the parameters they end with.
"""

import sys
import time
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from flax.training.train_state import TrainState

import cdopt_jax as cdx

STEPS, SAVED = 10, 5
MASK = cdx.where("hidden/kernel")
X = jnp.asarray(np.random.default_rng(0).normal(size=(16, 6)), jnp.float32)
Y = jnp.asarray(np.random.default_rng(1).normal(size=(16, 3)), jnp.float32)
falls = optax.cosine_decay_schedule(0.05, STEPS)

RECIPES = {
    "schedule": lambda: cdx.constrain(optax.adam(falls), MASK),
    "auto": lambda: optax.chain(
        cdx.dissolve_gradients("auto", MASK),
        optax.adam(falls),
        cdx.keep_feasible(MASK),
    ),
    "prox": lambda: optax.chain(
        optax.clip_by_global_norm(1.0),
        cdx.constrain(
            optax.sgd(falls, momentum=0.9),
            MASK,
            regularizer=cdx.prox.l1(1e-2),
            learning_rate=falls,
        ),
    ),
}


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="out")(nn.tanh(nn.Dense(5, name="hidden")(x)))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(6, 5, rngs=rngs)
        self.out = nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.tanh(self.hidden(x)))


def linen_program(tx):
    """What is saved, a step of it, and the parameters in it."""
    params = Linen().init(jax.random.key(0), X)["params"]
    state = TrainState.create(apply_fn=Linen().apply, params=params, tx=tx)

    @jax.jit
    def step(saved):
        def loss(params):
            return jnp.mean((state.apply_fn({"params": params}, X) - Y) ** 2)

        now = state.replace(**saved)
        now = now.apply_gradients(grads=jax.grad(loss)(now.params))
        return {"step": now.step, "params": now.params, "opt_state": now.opt_state}

    start = {"step": 0, "params": params, "opt_state": state.opt_state}
    return start, step, lambda saved: saved["params"]


def nnx_program(tx):
    """The same for NNX: the states of the model and the optimiser are saved."""
    model = Nnx(nnx.Rngs(0))
    both = (model, nnx.Optimizer(model, tx, wrt=nnx.Param))
    graph, start = nnx.split(both)

    @jax.jit
    def step(saved):
        model, optimizer = nnx.merge(graph, saved)
        grads = nnx.grad(lambda m: jnp.mean((m(X) - Y) ** 2))(model)
        optimizer.update(model, grads)
        return nnx.split((model, optimizer))[1]

    return start, step, lambda saved: nnx.state(nnx.merge(graph, saved)[0], nnx.Param)


PROGRAMS = {"linen": linen_program, "nnx": nnx_program}


def main(directory: Path, mode: str) -> None:
    """Train every recipe in every way."""
    ends: dict[str, Any] = {}
    trained = []
    with ocp.StandardCheckpointer() as checkpointer:
        for flavour, build in PROGRAMS.items():
            for recipe, make in RECIPES.items():
                name = f"{flavour}-{recipe}"
                saved, step, params = build(make())
                if mode == "resumed":
                    saved = checkpointer.restore(directory / name, saved)
                for _ in range({"whole": STEPS}.get(mode, STEPS - SAVED)):
                    saved = step(saved)
                if mode == "killed":
                    checkpointer.save(directory / name, saved)
                    checkpointer.wait_until_finished()
                trained.append((step, saved))
                leaves = jax.tree.leaves(params(saved))
                ends |= {f"{name}-{i}": np.asarray(v) for i, v in enumerate(leaves)}
    if mode == "killed":
        sys.stdout.write("saved\n")
        sys.stdout.flush()
        while True:
            trained = [(step, step(saved)) for step, saved in trained]
            time.sleep(0.01)
    np.savez(directory / f"{mode}.npz", **ends)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
