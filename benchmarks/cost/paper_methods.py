"""What a step of each method of the paper's experiment costs, without the network."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.ocnn.paper import METHODS as NAMES
from benchmarks.shared.methods import METHODS, Task
from benchmarks.shared.timing import compiled, interleaved

GAMMA, BETA = 1e-5, 0.1
"""The weights of the paper."""

RATE, ADAPTIVE_RATE = 1e-2, 1e-3
ADAPTIVE = ("ranger", "yogi", "constrain-adam")
"""The methods whose updates have the size of the rate in every entry."""


def measure(
    params: Any, grads: Any, mask: Any, repeats: int, budget: float
) -> dict[str, Any]:
    """By label, the seconds of a step and of its compilation.

    A step is all but the gradient: where to take it, and what to do with it.
    """
    task = Task(mask=mask, gamma=GAMMA, beta=BETA, schedule=optax.constant_schedule)
    thunks, programs = {}, {}
    for name in NAMES:
        rate = ADAPTIVE_RATE if name in ADAPTIVE else RATE
        method = METHODS[name].make(task, rate)

        def step(params, state, grads, method=method):
            point = method.point(params)
            updates, state = method.transform.update(grads, state, params)
            return optax.apply_updates(params, updates), state, point

        given = params, method.transform.init(params), grads
        label = METHODS[name].label
        programs[label] = compiled(step, *given)
        # From where a first step has led: that one may be longer than others.
        new, state, _ = programs[label].call(*given)
        new = jax.tree.map(jnp.array, new)
        thunks[label] = partial(programs[label].call, new, state, grads)
    seconds = interleaved(thunks, repeats, budget=budget)
    return {
        label: {"seconds": seconds[label], "compile": program.seconds}
        for label, program in programs.items()
    }
