"""Compiled programs, kept for the next call.

What identifies a program is the `Setup` and the types of its arrays. The last
`SETUPS` setups are kept, each with its last `SIGNATURES` types, so that a loop which
defines its objective anew at every turn does not fill the memory.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from .loop import advance, ending, opening
from .setup import Data, Setup

SETUPS, SIGNATURES = 32, 8

Compiled = Mapping[str, Callable[..., Any]]
"""The programs by name."""

# Measured on two cores, for a step of 200×4 to 1000×200: without these emitters XLA
# compiles for CPU in 0.5 to 0.8 of the time, and steps take as long within 10 %, but
# for "tangential" at 200×4 (0.12 ms instead of 0.09). Starting and ending run once, and
# their machine code need not be good. Not level 0, with which some programs return NaN.
# Three programs are compiled at once: splitting each for threads of its own costs a
# fifth of the time of the processors.
QUICK: dict[str, bool | str] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": "1",
}
HASTY: dict[str, bool | str] = {**QUICK, "xla_backend_optimization_level": "1"}


class Programs:
    """The three programs of a setup.

    Args:
        setup: The setup.
        many: Whether they run from many starts at once. The starts, the keys and the
            courses then have one more axis.
    """

    def __init__(self, setup: Setup, *, many: bool):
        start = partial(opening, setup)
        go_on = partial(advance, setup)
        end = partial(ending, setup)
        if many:
            axes: dict[str, Any] = dict.fromkeys(Data._fields) | {"allowed": 0}
            data = Data(**axes)
            start = jax.vmap(start, in_axes=(data, 0, 0, 0))
            go_on = jax.vmap(go_on, in_axes=(data, 0, 0, None, None))
            end = jax.vmap(end, in_axes=(data, 0, 0))
        self._functions = {
            "opening": jax.jit(start),
            "advance": jax.jit(go_on),
            "ending": jax.jit(end),
        }
        self._compiled: OrderedDict[Hashable, Compiled] = OrderedDict()

    def compile(
        self, data: Data, x0: optax.Params, attempt: ArrayLike, taken: ArrayLike
    ) -> tuple[Compiled, float]:
        """The programs for arrays of these types, and the seconds it took."""
        given = (data, x0, attempt, taken)
        key = _signature(given)
        if key in self._compiled:
            self._compiled.move_to_end(key)
            return self._compiled[key], 0.0
        began = time.perf_counter()
        first = self._functions["opening"].trace(*given)
        prepared, course, *_ = map(_bare, first.out_info)
        number = jax.ShapeDtypeStruct((), jnp.int32)
        # Compilation leaves the interpreter: the largest program is compiled while the
        # others are traced.
        with ThreadPoolExecutor(3) as pool:
            later = self._functions["advance"].lower(
                data, prepared, course, number, number
            )
            jobs = {"advance": pool.submit(_compile, later, QUICK)}
            jobs["opening"] = pool.submit(_compile, first.lower(), HASTY)
            last = self._functions["ending"].lower(data, prepared, course)
            jobs["ending"] = pool.submit(_compile, last, HASTY)
            found = {name: job.result() for name, job in jobs.items()}
        self._compiled[key] = found
        if len(self._compiled) > SIGNATURES:
            self._compiled.popitem(last=False)
        return found, time.perf_counter() - began

    def jitted(self) -> Compiled:
        """The programs for arrays that lie on many devices, compiled when called."""
        return self._functions


@lru_cache(maxsize=SETUPS)
def programs(setup: Setup, *, many: bool) -> Programs:
    """The programs of a setup."""
    return Programs(setup, many=many)


def on_one_device(tree: object) -> bool:
    """Whether all arrays lie on the same device."""
    devices = {
        device
        for leaf in jax.tree.leaves(tree)
        if isinstance(leaf, jax.Array)
        for device in leaf.devices()
    }
    return len(devices) <= 1 and devices <= {jax.devices()[0]}


def _compile(lowered, options):
    if jax.default_backend() != "cpu":
        return lowered.compile()
    try:
        return lowered.compile(options)
    except Exception:  # XLA's errors have no class of their own.
        # Of another version, in which an option has another name.
        return lowered.compile()


def _signature(tree):
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, tuple(jax.typeof(leaf) for leaf in leaves)


def _bare(tree):
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)
