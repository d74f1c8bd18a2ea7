"""One run: a contender trained at one rate with one seed, as one program."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cdopt_jax as cdx
from benchmarks.muon.task import Contender, Task
from benchmarks.shared.timing import Program, compiled, timed

POINTS = 40
"""How many means of the loss are kept of a run."""


def stepping(task: Task, contender: Contender, rate: Any) -> tuple[Any, Callable]:
    """The optimiser, and a step from parameters, its state, the data and a row."""
    tx = optax.with_extra_args_support(contender.optimiser(task.fall, rate))

    def step(params, state, data, row):
        batch = task.batch(data, row)
        value, grads = jax.value_and_grad(contender.loss)(params, batch)
        # Optax expects the direction of steepest ascent, also in complex parameters.
        grads = jax.tree.map(jnp.conj, grads)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return tx, step


class Trainer:
    """Trains a contender; its program serves all rates and seeds."""

    def __init__(self, task: Task, contender: Contender):
        self.task, self.contender = task, contender
        self._start = jax.jit(contender.start)
        self._program: Program | None = None
        self._measure = jax.jit(partial(task.measure, contender))

    def _training(self, params, rate, data, order):
        tx, step = stepping(self.task, self.contender, rate)

        def one(carry, row):
            *carry, value = step(*carry, data, row)
            return tuple(carry), value

        carry, losses = jax.lax.scan(one, (params, tx.init(params)), order)
        return carry[0], losses

    def run(self, rate: float, seed: int) -> dict[str, Any]:
        """What is kept of a run."""
        task = self.task
        params = self._start(jax.random.key(seed))
        order = jnp.asarray(task.order(seed))
        given = params, jnp.float32(rate), task.data, order
        self._program = self._program or compiled(self._training, *given)
        (params, losses), seconds = timed(self._program.call, *given)
        parts = np.array_split(np.asarray(losses, np.float64), min(POINTS, task.steps))
        curve = [float(part.mean()) for part in parts]
        measures = {k: float(v) for k, v in self._measure(params, task.data).items()}
        record = {"loss": curve[-1], **measures, "feasibility": self._off(params)}
        return {**record, "steps": task.steps, "run_seconds": seconds, "curve": curve}

    def _off(self, params):
        if self.contender.mask is None:
            return None
        found = cdx.feasibility(params, self.contender.mask)
        return float(max(map(float, found.values())))
