"""Constrained leaves of one shape, stepped together as one stack of matrices.

A model may have hundreds of small matrices of equal shape, each a leaf of its own. One
by one they would cost a program of many small kernels, and a second of compilation for
every few of them; as one stack, they are a program of the size of one.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from cdopt_jax._algebra import Form
from cdopt_jax._layout import on_one_device
from cdopt_jax._reading import Reading

SMALL = 2**13
"""The entries of the largest leaf to be stacked: beyond, one by one is quicker."""


class Group(NamedTuple):
    """Leaves that are stepped together.

    Attributes:
        members: Their positions among the constrained leaves.
        readings: How each is read as matrices.
        x: Their matrices, of shape ``(members, *batch, n, p)``, or ``(n, p)`` if there
            is one. With a first axis of size one, products on CPU are up to 1.25 times
            as slow for one matrix, and three times as quick for a stack of them.
        form: The form in which they are orthonormal.
        dtype: The dtype of the leaves.
    """

    members: tuple[int, ...]
    readings: tuple[Reading, ...]
    x: Array
    form: Form
    dtype: Any

    def largest(self, values: Array) -> Array:
        """Of one number for each matrix, the largest of each leaf."""
        top = values.reshape(len(self.members), -1).max(axis=1)
        across = self.readings[0].across
        return lax.pmax(top, across) if across else top

    def gather(self, leaves: Sequence[Any]) -> Array:
        """The matrices of other leaves, one for each constrained leaf, beside x."""
        chosen = [leaves[i] for i in self.members]
        return _stack(chosen, self.readings).astype(self.x.dtype)

    def scatter(self, stack: Array) -> list[tuple[int, Array]]:
        """The leaves of a stack, in its dtype, with their positions."""
        parts = _unstack(stack, self.readings)
        rows = zip(self.members, self.readings, parts, strict=True)
        return [(i, r.write(part, part.dtype)) for i, r, part in rows]


def grouped(leaves: Sequence[tuple[Any, Reading]]) -> list[Group]:
    """The constrained leaves, in groups of one shape where that pays."""
    found: dict[Any, list[int]] = {}
    for i, (leaf, r) in enumerate(leaves):
        alone = math.prod(r.shape) > SMALL or not on_one_device(leaf)
        tall = sorted(r.matrix, reverse=True)
        kind = (r.stack, *tall, leaf.dtype, id(r.B), r.layout, r.across)
        found.setdefault((i,) if alone else kind, []).append(i)
    groups = []
    for members in found.values():
        chosen = tuple(leaves[i][1] for i in members)
        groups.append(
            Group(
                members=tuple(members),
                readings=chosen,
                x=_stack([leaves[i][0] for i in members], chosen),
                form=chosen[0].form._replace(stacked=not _single(chosen)),
                dtype=leaves[members[0]][0].dtype,
            )
        )
    return groups


def scattered(groups: Sequence[Group], stacks: Sequence[Array]) -> list[Array]:
    """The leaves of all stacks, in the order of the leaves."""
    pairs = zip(groups, stacks, strict=True)
    landed = dict(row for group, stack in pairs for row in group.scatter(stack))
    return [landed[i] for i in range(len(landed))]


def per_leaf(groups: Sequence[Group], values: Sequence[Array]) -> Array:
    """One vector in the order of the leaves, from a vector for each group."""
    if len(groups) == 1:
        return values[0]
    order = np.argsort([i for group in groups for i in group.members])
    return jnp.concatenate(values)[order] if groups else jnp.zeros(0)


def each_group(
    groups: Sequence[Group],
    fn: Callable[..., tuple[Any, ...]],
    *columns: Sequence[Any],
    scalars: int = 0,
) -> tuple[list[Any], tuple[Array, ...]]:
    """Apply a function to every group, and put its results in the leaves' order.

    Args:
        groups: The groups.
        fn: From a group and the matrices of each column, to the stack of the new
            leaves, and any scalars for each leaf of it.
        *columns: Other leaves, one for each constrained leaf.
        scalars: How many of them there are.

    Returns:
        The new leaves, and for each of the scalars a vector with an entry for each
        leaf.
    """
    # The last leaves first, whose gradients are there first.
    results = [
        fn(group, *(group.gather(c) for c in columns)) for group in reversed(groups)
    ][::-1]
    new = scattered(groups, [stack for stack, *_ in results])
    vectors = [[rest[i] for _, *rest in results] for i in range(scalars)]
    return new, tuple(per_leaf(groups, values) for values in vectors)


def _single(readings):
    return len(readings) == 1 and not readings[0].stack


def _stack(leaves, readings):
    parts = [r.read(leaf) for leaf, r in zip(leaves, readings, strict=True)]
    if _single(readings):
        return parts[0]
    return parts[0][None] if len(parts) == 1 else jnp.stack(parts)


def _unstack(stack, readings):
    count = len(readings)
    if count == 1:
        return [stack if _single(readings) else stack[0]]
    return _split(stack, count)


@partial(jax.jit, static_argnums=1)
def _split(stack, count):
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
    never = stack.ravel()[0] < -jnp.inf
    indices = lax.cond(
        never,
        lambda: (jnp.int32(0),) * count,
        lambda: tuple(jnp.int32(i) for i in range(count)),
    )
    return [lax.dynamic_index_in_dim(stack, i, keepdims=False) for i in indices]
