"""Trees taken apart into arrays, which a program is called with, and the rest."""

from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike

Number = int | float | complex


class Static:
    """What is left of a tree without its arrays: hashable, a part of a program.

    Two are equal if their structures are, and if what is no array is equal; what
    cannot be hashed is compared by identity.
    """

    def __init__(self, treedef: Any, leaves: Sequence[object]):
        self._treedef = treedef
        self._leaves = tuple(leaves)
        self._key = (treedef, tuple(_hashable(leaf) for leaf in self._leaves))
        self._hash = hash(self._key)

    def merge(self, arrays: Sequence[ArrayLike]) -> Any:
        """The tree with these arrays in their places."""
        given = iter(arrays)
        return self._treedef.unflatten(
            next(given) if leaf is _ARRAY else leaf for leaf in self._leaves
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


class _Array:
    """Stands where an array was."""


_ARRAY = _Array()


def as_array(value: ArrayLike | np.generic, dtype: DTypeLike | None = None) -> Array:
    """A number or an array as one of JAX.

    ``jnp.asarray`` would compile a program for each shape, in 7 to 20 ms.
    """
    if isinstance(value, Array):
        return value if dtype is None else value.astype(dtype)
    return jax.device_put(np.asarray(value, dtype))


def as_number(value: ArrayLike | np.generic, dtype: DTypeLike) -> Array:
    """A number as an argument of a program, inside of which it is an array of JAX.

    Until then it stays one of NumPy: to move it to the device by itself takes 0.1 ms,
    and a call of the solver has five of them.
    """
    if isinstance(value, Array):
        return value.astype(dtype)
    return cast(Array, np.asarray(value, dtype))


def split(tree: Any, *, keep_zeros: bool = False) -> tuple[Static, list[Array]]:
    """A tree's static part and its arrays.

    Args:
        tree: The tree.
        keep_zeros: Whether numbers and arrays that are zero belong to the static part,
            as the weights of leaves that are not regularized do.
    """
    leaves, treedef = jax.tree.flatten(tree)
    kept, arrays = [], []
    for leaf in leaves:
        array = isinstance(leaf, Array | np.ndarray | np.generic | Number)
        zero = keep_zeros and array and not isinstance(leaf, Tracer)
        if array and not (zero and not np.any(np.asarray(leaf))):
            kept.append(_ARRAY)
            # A number stays one: it takes the dtype of what it is multiplied by.
            given = isinstance(leaf, Array | np.ndarray | np.generic)
            arrays.append(as_array(leaf) if given else leaf)
        else:
            kept.append(0 if array else leaf)
    return Static(treedef, kept), arrays


def opaque(leaf: object) -> Static:
    """One object, a function say, that is no tree."""
    return Static(jax.tree.structure(0), [leaf])


class _Identity:
    """An object as a key by its identity, which it keeps alive."""

    def __init__(self, held: object):
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def _hashable(leaf):
    try:
        hash(leaf)
    except TypeError:
        return _Identity(leaf)
    return leaf
