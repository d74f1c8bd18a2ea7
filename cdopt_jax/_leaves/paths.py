"""The names of a tree's leaves, and trees laid beside each other."""

from collections import Counter
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey

from cdopt_jax._errors import error
from cdopt_jax._math.products import is_complex

_GRADIENTS = ("updates", "grads", "grad", "gradients")

_CONJUGATE = (
    " The gradient to give is jnp.conj(jax.grad(f)(params)), the direction of steepest "
    "ascent."
)

_PER_EXAMPLE = (
    " Where these are gradients of single examples, as optax.contrib.dpsgd takes them, "
    "put what adds them up in front: optax.chain("
    "optax.contrib.differentially_private_aggregate(…), constrain(optax.sgd(…), mask))."
)


def leaf_paths(tree: Any) -> list[str]:
    """The '/'-joined path of each leaf, in the order of ``jax.tree.leaves``.

    A box that holds nothing but a ``value`` (a Flax NNX ``Variable``, a Linen
    ``Partitioned``) is no part of the name: NNX shows the boxes to ``init`` and the
    bare arrays to ``update``, and a leaf has one name.
    """
    treedef = jax.tree.structure(tree)
    try:
        return list(_known_paths(treedef))
    except TypeError:  # A container with a part that has no hash.
        return _paths(tree)


@lru_cache(maxsize=64)
def _known_paths(treedef):
    """The paths of a structure, which a call of `minimize` asks for five times."""
    return _paths(treedef.unflatten([0] * treedef.num_leaves))


def _paths(tree):
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
    name = repr(path) if path else "the array"
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{name} has shape {tuple(leaf.shape)} and dtype {leaf.dtype}"
    return f"{name} is of type {type(leaf).__name__}"


def listing(paths: list[str], limit: int = 40) -> str:
    """The paths as text, cut where there are many."""
    shown = ", ".join(repr(path) for path in paths[:limit])
    return shown + (f", … ({len(paths)} in all)" if len(paths) > limit else "")


def broadcast_prefix(label: str, prefix: Any, tree: Any) -> list[Any]:
    """The leaf of ``prefix`` that stands above each leaf of ``tree``, in order."""
    try:
        full = jax.tree.map(
            lambda entry, below: jax.tree.map(lambda _: entry, below), prefix, tree
        )
    except (ValueError, TypeError):
        found, wanted = leaf_paths(prefix), leaf_paths(tree)
        if found == wanted:
            raise error(
                f"{label} must be made of the containers of the parameters; it is a "
                f"{type(prefix).__name__} and they are a {type(tree).__name__}. Choose "
                'leaves by name, as in where("*/kernel"), or make it by jax.tree.map '
                "from the parameters."
            ) from None
        raise error(
            f"{label} must have the structure of the parameters, or of their upper "
            f"levels; its leaves are: {listing(found)}, and those of the parameters: "
            f"{listing(wanted)}."
        ) from None
    return jax.tree.structure(tree).flatten_up_to(full)


def leaves_beside(label: str, others: Any, params: Any) -> list[Any]:
    """The leaves of ``others``, a tree of the structure and shapes of ``params``."""
    leaves, treedef = jax.tree.flatten(params)
    try:
        found = treedef.flatten_up_to(others)
    except (ValueError, TypeError):
        raise error(
            f"{label} and params must have the same structure; the leaves of "
            f"{label} are: {listing(leaf_paths(others))}, those of params: "
            f"{listing(leaf_paths(params))}."
        ) from None
    if all(_fits(other, leaf) for other, leaf in zip(found, leaves, strict=True)):
        return found
    for path, other, leaf in zip(leaf_paths(params), found, leaves, strict=True):
        if not is_array(other):
            raise error(
                f"{label} must be arrays; {describe_leaf(path, other)}. Write "
                "jnp.asarray(…), or jnp.zeros_like(…) for no update."
            )
        if jnp.shape(other) != jnp.shape(leaf):
            raise error(
                f"{label} must have the shapes of params; "
                f"{describe_leaf(path, other)}, and its parameter has shape "
                f"{jnp.shape(leaf)}."
                + (_PER_EXAMPLE if jnp.shape(other)[1:] == jnp.shape(leaf) else "")
            )
        if not _fits(other, leaf):
            raise error(_dtype_fault(label, path, other, leaf))
    return found


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, its shape and dtype, or a Python number."""
    numbers = (bool, int, float, complex)
    return isinstance(leaf, numbers) or (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    )


def _fits(other, leaf):
    if not (is_array(other) and is_array(leaf)):
        return False
    if jnp.shape(other) != jnp.shape(leaf):
        return False
    given, wanted = jnp.result_type(other), jnp.result_type(leaf)
    if not jnp.issubdtype(wanted, jnp.inexact):
        return True
    inexact = jnp.issubdtype(given, jnp.inexact)
    return inexact and is_complex(given) == is_complex(wanted)


def _dtype_fault(label, path, other, leaf):
    what = describe_leaf(path, other)
    if is_complex(leaf):
        fault = (
            f"{label} must be complex where the parameters are; {what}, and its "
            f"parameter has dtype {jnp.result_type(leaf)}."
        )
        return fault + (_CONJUGATE if label in _GRADIENTS else "")
    return (
        f"{label} must be real floating point where the parameters are; {what}. Cast "
        "it to the dtype of its parameter."
    )
