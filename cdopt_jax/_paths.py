"""The names of a tree's leaves, and prefixes spread over a tree."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey


def leaf_paths(tree: Any) -> list[str]:
    """The '/'-joined path of each leaf, in the order of ``jax.tree.leaves``.

    A box that holds nothing but a ``value`` (a Flax NNX ``Variable``, a Linen
    ``Partitioned``) is no part of the name: NNX shows the boxes to ``init`` and the
    bare arrays to ``update``, and a leaf has one name.
    """
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    children = Counter(path[:-1] for path in paths if path)

    def name(path):
        boxed = path and path[-1] == GetAttrKey("value") and children[path[:-1]] == 1
        path = path[:-1] if boxed else path
        return jax.tree_util.keystr(path, simple=True, separator="/")

    names = [name(path) for path in paths]
    # Where keys hold a '/' themselves, two leaves may come to have one name.
    taken = Counter(names)
    return [
        jax.tree_util.keystr(path) if taken[name] > 1 else name
        for name, path in zip(names, paths, strict=True)
    ]


def describe_leaf(path: str, leaf: Any) -> str:
    """A leaf in words, for an error: its path, shape and dtype."""
    who = repr(path) if path else "the array"
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{who} has shape {tuple(leaf.shape)} and dtype {leaf.dtype}"
    return f"{who} is of type {type(leaf).__name__}"


def spread(who: str, prefix: Any, tree: Any) -> list[Any]:
    """The leaf of ``prefix`` that stands above each leaf of ``tree``, in order."""
    try:
        spread_tree = jax.tree.map(
            lambda entry, below: jax.tree.map(lambda _: entry, below), prefix, tree
        )
    except (ValueError, TypeError):
        raise ValueError(
            f"{who} must have the structure of the parameters, or of their upper "
            f"levels; its leaves are: {listing(leaf_paths(prefix))}, and those of the "
            f"parameters: {listing(leaf_paths(tree))}."
        ) from None
    return jax.tree.structure(tree).flatten_up_to(spread_tree)


def align(who: str, label: str, others: Any, params: Any) -> list[Any]:
    """The leaves of ``others`` beside those of ``params``, of the same shapes."""
    leaves, treedef = jax.tree.flatten(params)
    try:
        along = treedef.flatten_up_to(others)
    except (ValueError, TypeError):
        raise ValueError(
            f"{who}: {label} and params must have the same structure; the leaves of "
            f"the one are: {listing(leaf_paths(others))}, of the other: "
            f"{listing(leaf_paths(params))}."
        ) from None
    for path, other, leaf in zip(leaf_paths(params), along, leaves, strict=True):
        if jnp.shape(other) != jnp.shape(leaf):
            raise ValueError(
                f"{who}: {label} must have the shapes of params; "
                f"{describe_leaf(path, other)}, its parameter {jnp.shape(leaf)}."
            )
        if not jnp.issubdtype(jnp.result_type(other), jnp.floating) and (
            jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        ):
            raise ValueError(
                f"{who}: {label} must be floating point; {describe_leaf(path, other)}."
            )
    return along


def listing(paths: list[str], limit: int = 40) -> str:
    """The paths as text, cut where there are many."""
    shown = ", ".join(repr(path) for path in paths[:limit])
    return shown + (f", … ({len(paths)} in all)" if len(paths) > limit else "")
