"""How programs are compiled and timed."""

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.shared.algebra import product

alone = threadpool_limits.wrap(limits=1, user_api="blas")
"""A function without threads of LAPACK beside those of XLA, which wait for each other:
with them a step of manifold Muon, which decomposes matrices, took seven times as long
on two busy cores."""


def floor(x: jax.Array, g: jax.Array) -> jax.Array:
    """Four products of n×p×p and two of p×p×p, and nothing else."""
    m, k = product(x.mT, x), product(x.mT, g)
    return product(x, product(k, m)) + product(g, product(m, m))


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """The result of a call, computed to the end, and the seconds that it took."""
    jax.block_until_ready(arguments)
    began = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, time.perf_counter() - began


def interleaved(
    functions: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    budget: float = float("inf"),
    least: int = 3,
) -> dict[str, float]:
    """The median seconds of each function, the functions taking turns.

    Turns make a busy machine slow all functions alike. The order is drawn anew each
    time, because the threads of one library go on spinning after its work is done and
    should not always slow the same neighbour.

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
            if turn < least or sum(taken[name]) <= budget:
                taken[name].append(timed(functions[name])[1])
    return {name: float(np.median(times)) for name, times in taken.items()}


class Program(NamedTuple):
    """A compiled function, and what it took to make it.

    Attributes:
        call: The function for arguments of the shapes that it was compiled for.
        trace_seconds: The time to trace and lower it.
        compile_seconds: The time to compile it.
    """

    call: Any
    trace_seconds: float
    compile_seconds: float

    @property
    def seconds(self) -> float:
        """The time to make it."""
        return self.trace_seconds + self.compile_seconds

    @property
    def temporary_bytes(self) -> int:
        """The memory that it needs besides arguments and results, as XLA planned it."""
        return self.call.memory_analysis().temp_size_in_bytes

    @property
    def peak_bytes(self) -> int:
        """The most memory that it holds at a time, as XLA planned it.

        That is its arguments, its temporaries and those of its outputs that do not
        reuse (alias) the buffer of a donated argument. The code is not counted.
        """
        plan = self.call.memory_analysis()
        held = plan.argument_size_in_bytes + plan.temp_size_in_bytes
        return held + plan.output_size_in_bytes - plan.alias_size_in_bytes


def compiled(
    function: Callable[..., Any],
    *arguments: Any,
    donate: int | tuple[int, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> Program:
    """Compile a function for these arguments, which may be shapes alone.

    Args:
        function: What to compile.
        *arguments: Arrays or `jax.ShapeDtypeStruct`.
        donate: The arguments whose buffers the program may reuse.
        options: Of the compiler.
    """
    began = time.perf_counter()
    lowered = jax.jit(function, donate_argnums=donate).lower(*arguments)
    traced = time.perf_counter()
    call = lowered.compile(None if options is None else dict(options))
    return Program(
        call=call,
        trace_seconds=traced - began,
        compile_seconds=time.perf_counter() - traced,
    )
