"""Constrained leaves of one shape, stepped together as one stack of matrices.

A model may have hundreds of small matrices of equal shape, each a leaf of its own. One
by one they would cost a program of many small kernels, and a second of compilation for
every few of them; as one stack, they are a program of the size of one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from cdopt_jax._algebra import Form, widen
from cdopt_jax._layout import on_one_device
from cdopt_jax._reading import Reading

SMALL = 2**13
"""The entries of the largest leaf to be stacked: beyond, one by one is quicker."""


class Group(NamedTuple):
    """Leaves that are stepped together.

    Attributes:
        members: Their positions among the constrained leaves.
        readings: How each is read as matrices.
        x: Their matrices, of shape ``(members, *batch, n, p)``.
        form: The form in which they are orthonormal.
    """

    members: tuple[int, ...]
    readings: tuple[Reading, ...]
    x: Array
    form: Form

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
        parts = _unstack(stack, len(self.members))
        rows = zip(self.members, self.readings, parts, strict=True)
        return [(i, r.write(part, part.dtype)) for i, r, part in rows]


def grouped(leaves: Sequence[tuple[Any, Reading]]) -> list[Group]:
    """The constrained leaves, in groups of one shape where that pays."""
    found: dict[Any, list[int]] = {}
    for i, (leaf, r) in enumerate(leaves):
        alone = math.prod(r.shape) > SMALL or not on_one_device(leaf)
        tall = sorted(r.matrix, reverse=True)
        kind = (r.stack, *tall, widen(leaf.dtype), id(r.B), r.layout, r.across)
        found.setdefault((i,) if alone else kind, []).append(i)
    groups = []
    for members in found.values():
        chosen = tuple(leaves[i][1] for i in members)
        x = _stack([leaves[i][0] for i in members], chosen)
        groups.append(Group(tuple(members), chosen, x, chosen[0].stacked_form))
    return groups


def each_group(
    groups: Sequence[Group],
    fn: Callable[..., tuple[Any, ...]],
    *columns: Sequence[Any],
    scalars: int = 0,
) -> tuple[list[Any], tuple[Array, ...]]:
    """Apply a function to every group, and put its results in the leaves' order.

    Args:
        groups: The groups.
        fn: From a group, its index, and the matrices of each column, to the stack of
            the new leaves, and any scalars for each matrix or leaf of it.
        *columns: Other leaves, one for each constrained leaf.
        scalars: How many of them there are.

    Returns:
        The new leaves, and for each of the scalars a vector with an entry for each
        leaf.
    """
    landed: dict[int, Array] = {}
    order: list[int] = []
    said = []
    # The last leaves first, whose gradients are there first.
    for index, group in reversed(list(enumerate(groups))):
        stack, *rest = fn(group, index, *(group.gather(c) for c in columns))
        landed |= dict(group.scatter(stack))
        order += group.members
        said.append(rest)
    new = [landed[i] for i in range(len(order))]
    if not groups:
        return new, (jnp.zeros(0),) * scalars
    joined = (jnp.concatenate(parts) for parts in zip(*said, strict=True))
    back = np.argsort(order)
    return new, tuple(v if len(groups) == 1 else v[back] for v in joined)


def _stack(leaves, readings):
    parts = [r.read(leaf) for leaf, r in zip(leaves, readings, strict=True)]
    return parts[0][None] if len(parts) == 1 else jnp.stack(parts)


def _unstack(stack, count):
    if count == 1:
        return [stack[0]]
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
