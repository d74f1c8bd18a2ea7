"""Constrained leaves as matrices, for methods that are written for a single matrix.

Leaves are read in the paper's way: the last axis is the columns, and wide matrices are
transposed. Under the mask `STACKS` a leaf is a stack of matrices, which stays as it is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import cdopt_jax as cdx

STACKS = cdx.Stiefel(rows=-2, columns=-1)


class Count(NamedTuple):
    """How many steps were taken."""

    steps: jax.Array


def matrix(leaf: jax.Array) -> jax.Array:
    """The leaf as a matrix with no more columns than rows."""
    m = leaf.reshape(-1, leaf.shape[-1])
    return m.T if m.shape[0] < m.shape[1] else m


def back(m: jax.Array, leaf: jax.Array) -> jax.Array:
    """A matrix in the shape of the leaf."""
    wide = leaf.size // leaf.shape[-1] < leaf.shape[-1]
    return (m.T if wide else m).reshape(leaf.shape)


def constrained(params: Any, mask: Any) -> list[bool]:
    """Which leaves the mask chooses, in the order of ``jax.tree.leaves``."""
    chosen = jax.eval_shape(lambda p: cdx.feasibility(p, mask), params)
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    ]
    return [path in chosen for path in paths]


def on_constrained(
    fn: Callable[..., jax.Array], mask: Any, params: Any, *others: Any
) -> Any:
    """Apply a function of matrices to the constrained leaves of all these trees.

    Args:
        fn: From the matrix of a parameter, and those beside it, to a matrix.
        mask: Which leaves are constrained.
        params: The tree of parameters.
        *others: Trees of the same structure. A leaf that is free is that of the first.

    Returns:
        The tree of results.
    """
    if mask is STACKS:
        return jax.tree.map(fn, params, *others)
    leaves, treedef = jax.tree.flatten(params)
    columns = [treedef.flatten_up_to(tree) for tree in others]
    rows = zip(constrained(params, mask), leaves, *columns, strict=True)
    return treedef.unflatten(
        [
            back(fn(matrix(x), *map(matrix, rest)), x) if chosen else rest[0]
            for chosen, x, *rest in rows
        ]
    )


def descending(
    step: Callable[..., jax.Array], schedule: optax.Schedule, mask: Any
) -> optax.GradientTransformationExtraArgs:
    """A step from a point, a gradient and a rate to the next point, as an optimiser.

    Free leaves take plain gradient steps at the same rate.
    """

    def init(params):
        del params
        return Count(steps=jnp.zeros([], jnp.int32))

    def update(updates, state, params=None, **extra_args):
        del extra_args
        rate = jnp.asarray(schedule(state.steps))

        def move(x, _, g):
            return step(x, g, rate) - x

        plain = jax.tree.map(lambda g: -rate * g, updates)
        moves = on_constrained(move, mask, params, plain, updates)
        return moves, Count(steps=state.steps + 1)

    return optax.GradientTransformationExtraArgs(init, update)
