"""Arrays of one shape, computed together."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .sharding import on_one_device


def by_shape(fn: Callable[..., Any], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of ``fn``, which is called once for all arguments of one shape.

    A network has many kernels and few numbers of columns. What is computed from p×p
    matrices alone is compiled once for each p, and not once for each kernel.

    Args:
        fn: A function of arrays, and of arrays with one more axis in front.
        rows: The arguments of each call. Those that are not arrays are the same in all
            calls that are made together. (A stack of equal constants is no substitute:
            XLA joins two of them with every pass over the whole program.)

    Returns:
        The results, in the order of the rows.
    """
    found: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        arrays = [a for a in row if isinstance(a, Array)]
        alike = tuple(
            (a.shape, a.dtype) if isinstance(a, Array) else ("same", a) for a in row
        )
        together = all(on_one_device(a) for a in arrays)
        found.setdefault(alike if together else i, []).append(i)
    results: dict[int, Any] = {}
    for members in found.values():
        if len(members) == 1:
            results[members[0]] = fn(*rows[members[0]])
            continue
        columns = zip(*(rows[i] for i in members), strict=True)
        arguments = [jnp.stack(c) if isinstance(c[0], Array) else c[0] for c in columns]
        leaves, treedef = jax.tree.flatten(fn(*arguments))
        parts = zip(*(split(leaf, len(members)) for leaf in leaves), strict=True)
        results |= dict(zip(members, map(treedef.unflatten, parts), strict=True))
    return [results[i] for i in range(len(rows))]


def greatest(scalars: Sequence[Array]) -> Array:
    """The largest of some scalars; zero if there are none.

    They are compared in pairs, then pairs of pairs. Of a chain, as of a stack, XLA
    moves one reshape with every pass over the whole program, which took 2.6 s to
    compile for the 53 kernels of a ResNet-50.
    """
    if not scalars:
        return jnp.zeros([])
    half = len(scalars) // 2
    if not half:
        return scalars[0]
    return jnp.maximum(greatest(scalars[:half]), greatest(scalars[half:]))


@partial(jax.jit, static_argnums=1)
def split(stack: Array, count: int) -> list[Array]:
    """The parts of a stack along its first axis."""
    # Compiled as a whole: outside of a program, the branches would be compiled at each
    # call.
    return lax.platform_dependent(
        stack,
        cpu=lambda stack: _by_index(stack, count),
        default=lambda stack: [stack[i] for i in range(count)],
    )


def _by_index(stack, count):
    """The parts of a stack, by indices that are not known at compile time.

    On CPU, XLA compiles a kernel for each slice at a constant offset, some 30 ms
    apiece, but equal kernels once. Two branches are what it does not look through.
    """
    never = jnp.real(stack).ravel()[0] < -jnp.inf
    indices = lax.cond(
        never,
        lambda: (jnp.int32(0),) * count,
        lambda: tuple(jnp.int32(i) for i in range(count)),
    )
    return [lax.dynamic_index_in_dim(stack, i, keepdims=False) for i in indices]
