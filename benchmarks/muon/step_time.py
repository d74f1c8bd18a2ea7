"""What one training step of each contender takes, all of them taking turns."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.muon.task import Task
from benchmarks.muon.training import stepping
from benchmarks.shared.timing import alone, compiled, interleaved

BEFORE = 3
"""Steps that are taken before any is timed: first ones may differ."""
BUDGET = 4.0
"""The seconds after which a slow step takes no more turns."""


@alone
def step_seconds(task: Task, rates: Mapping[str, float], repeats: int):
    """The median seconds of a step of each contender at its rate."""
    thunks = {}
    row = jnp.asarray(task.order(0)[0])
    for name, rate in rates.items():
        contender = task.contenders[name]
        tx, step = stepping(task, contender, rate)
        params = jax.jit(contender.start)(jax.random.key(0))
        state = jax.jit(tx.init)(params)
        call = compiled(step, params, state, task.data, row).call
        for _ in range(BEFORE):
            params, state, _ = call(params, state, task.data, row)
        thunks[name] = partial(call, params, state, task.data, row)
    return interleaved(thunks, repeats, budget=BUDGET)
