"""How programs are timed: in turns, so that a busy machine slows all of them."""

import importlib.metadata
import os
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_mm = partial(jnp.matmul, precision="highest")


def floor(x: jax.Array, g: jax.Array) -> jax.Array:
    """Four products of n×p×p and two of p×p×p, and nothing else."""
    m, k = _mm(x.mT, x), _mm(x.mT, g)
    return _mm(x, _mm(k, m)) + _mm(g, _mm(m, m))


def interleaved(
    functions: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    budget: float = float("inf"),
    least: int = 3,
) -> dict[str, float]:
    """The median seconds of each function, the functions taking turns.

    The order is drawn anew each time: threads of one library go on spinning after it is
    done, and should not always slow the same neighbour.

    Args:
        functions: What to time, without arguments; JAX results are waited for.
        repeats: How often each is run, after one run that does not count.
        budget: The seconds after which a slow function takes no more turns.
        least: The turns that even a slow one takes.

    Returns:
        The medians, under the same names.
    """
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        jax.block_until_ready(function())
    order = random.Random(0)
    for turn in range(repeats):
        for name in order.sample(list(functions), len(functions)):
            if turn >= least and sum(taken[name]) > budget:
                continue
            began = time.perf_counter()
            jax.block_until_ready(functions[name]())
            taken[name].append(time.perf_counter() - began)
    return {name: float(np.median(times)) for name, times in taken.items()}


def compiled(
    function: Callable[..., Any], *arguments: Any
) -> tuple[Callable[[], Any], float]:
    """The program for these arguments, applied to them, and the seconds to make it."""
    began = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    return partial(program, *arguments), time.perf_counter() - began


def processors() -> int | None:
    """How many this process may use; a system may not know."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def environment(*packages: str) -> dict[str, Any]:
    """What the times depend on: versions of those installed, device, processors, load.

    The load is that of the last minute: libraries whose threads wait for each other
    suffer from it out of proportion.
    """
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "device": jax.devices()[0].device_kind,
        "cpus": processors(),
        "load": os.getloadavg()[0],
    }
