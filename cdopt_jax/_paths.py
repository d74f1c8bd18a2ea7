"""The names of a tree's leaves, and prefixes spread over a tree."""

from collections import Counter
from typing import Any

import jax
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

    return [name(path) for path in paths]


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
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{who} must have the structure of the parameters, or of their upper "
            f"levels; {error}. The leaves are: {listing(leaf_paths(tree))}."
        ) from None
    return jax.tree.structure(tree).flatten_up_to(spread_tree)


def listing(paths: list[str], limit: int = 40) -> str:
    """The paths as text, cut where there are many."""
    shown = ", ".join(repr(path) for path in paths[:limit])
    return shown + (f", … ({len(paths)} in all)" if len(paths) > limit else "")
