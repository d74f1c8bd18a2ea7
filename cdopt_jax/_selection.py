"""Which leaves of a tree are constrained, and read how."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import numpy as np

from ._paths import describe_leaf, leaf_paths, listing, spread
from ._reading import Reading, Stiefel, settle

_DEFAULT = Stiefel()

Mask = Any
"""None for every leaf; a tree, or its upper levels, of True, False and `Stiefel`; or a
callable from the parameters to one, such as `where` makes."""


Pattern = str | Callable[[str, Any], bool]
"""A shell pattern on the '/'-joined path, or a predicate of the path and the leaf."""

_NOT_MATRICES = ("bias", "scale")
_COLLECTIONS = ("batch_stats", "cache", "intermediates", "quant_stats")


@dataclasses.dataclass(frozen=True)
class _Where:
    readings: tuple[tuple[Pattern, Stiefel], ...]
    exclude: tuple[Pattern, ...]

    def __call__(self, tree: Any) -> Any:
        rows = list(zip(leaf_paths(tree), jax.tree.leaves(tree), strict=True))
        # No leaves at all is no mistake: Optax asks so for the structure of a state.
        patterns = [*(pattern for pattern, _ in self.readings), *self.exclude]
        for pattern in patterns if rows else []:
            if not any(_matches(pattern, *row) for row in rows):
                raise ValueError(
                    f"where: the pattern {pattern!r} matches no leaf; the leaves are: "
                    f"{listing([path for path, _ in rows])}."
                )
        entries = [self._entry(*row) for row in rows]
        return jax.tree.structure(tree).unflatten(entries)

    def _entry(self, path, leaf):
        if any(_matches(pattern, path, leaf) for pattern in self.exclude):
            return False
        for pattern, spec in self.readings:
            if _matches(pattern, path, leaf):
                name = path.rpartition("/")[2]
                if name in _NOT_MATRICES and not str(pattern).endswith(name):
                    raise ValueError(
                        f"where: the pattern {pattern!r} also catches "
                        f"{describe_leaf(path, leaf)}, which is no matrix of weights. "
                        f'Write exclude="*{name}", or name it if it is meant.'
                    )
                return spec
        return False


def _matches(pattern, path, leaf):
    if isinstance(pattern, str):
        return fnmatchcase(path, pattern)
    return bool(pattern(path, leaf))


def where(
    *patterns: Pattern | Mapping[str, Stiefel],
    spec: Stiefel = _DEFAULT,
    exclude: Pattern | Sequence[Pattern] = (),
) -> Callable[[Any], Any]:
    """A mask by name: the leaves whose path matches one of the patterns.

    Args:
        *patterns: Shell patterns on the '/'-joined path. ``*`` crosses '/' too, so
            ``"*kernel"`` finds every kernel and ``"*/kernel"`` all below the top. Or
            predicates of the path and the leaf. Or mappings from patterns to the
            readings of their leaves. A leaf is read as the first that matches says.
        spec: How the leaves are read as matrices, but for those of mappings.
        exclude: Patterns or predicates of leaves that are free, whatever matches.

    Returns:
        A callable from a tree to a mask, for every function here that takes a mask.

    Raises:
        ValueError: At once, without patterns; and from the mask, where a pattern
            matches nothing, with the paths there are, or catches a bias or a scale.

    Examples:
        >>> import jax.numpy as jnp, cdopt_jax as cdx
        >>> params = {"Dense_0": {"kernel": jnp.eye(3, 2), "bias": jnp.zeros(2)}}
        >>> mask = cdx.where("*/kernel")(params)
        >>> mask["Dense_0"]["bias"]
        False

        Different readings, all but the last layer:

        >>> mask = cdx.where(
        ...     {"*/query/kernel": cdx.layers.attention(), "*": cdx.layers.dense()},
        ...     exclude=["*/bias", "head/*"],
        ... )
    """
    readings = []
    for given in patterns:
        pairs = given.items() if isinstance(given, Mapping) else [(given, spec)]
        readings += pairs
    if isinstance(exclude, str) or not isinstance(exclude, Sequence):
        exclude = (exclude,)
    every = [pattern for pattern, _ in readings]
    if not readings or not all(isinstance(p, str) or callable(p) for p in every):
        raise ValueError(
            f'where: give patterns, such as where("*/kernel"); got {patterns}.'
        )
    if not all(isinstance(p, str) or callable(p) for p in exclude):
        raise ValueError(
            "where: exclude must be patterns or predicates, such as "
            f'exclude="*/bias"; it is {exclude!r}.'
        )
    for _, reading in readings:
        if not isinstance(reading, Stiefel):
            raise ValueError(f"where: spec must be a Stiefel(…); it is {reading!r}.")
    return _Where(tuple(readings), tuple(exclude))


def resolve(who: str, mask: Mask, tree: Any) -> Any:
    """The mask of a tree, which a callable makes of it.

    A module that can be called, as in Equinox, is a tree like any other.
    """
    if mask is Stiefel:
        raise ValueError(f"{who}: mask is the class Stiefel; write Stiefel().")
    made_by = callable(mask) and all(callable(m) for m in jax.tree.leaves(mask))
    return mask(tree) if made_by else mask


def select(who: str, tree: Any, mask: Mask) -> list[Reading | None]:
    """The reading of each leaf, in the order of ``jax.tree.leaves``; None if free.

    Args:
        who: The public function that asks, for its errors.
        tree: The parameters, or shapes and dtypes in their place.
        mask: Which leaves are constrained.
    """
    _refuse_collections(who, tree)
    mask = resolve(who, mask, tree)
    leaves, paths = jax.tree.leaves(tree), leaf_paths(tree)
    if mask is None:
        entries = [True] * len(leaves)
    else:
        entries = spread(f"{who}: mask", mask, tree)
    readings = []
    for path, leaf, entry in zip(paths, leaves, entries, strict=True):
        if isinstance(entry, Stiefel):
            readings.append(settle(who, path, leaf, entry))
        elif isinstance(entry, bool | np.bool_):
            readings.append(settle(who, path, leaf, _DEFAULT) if entry else None)
        else:
            raise ValueError(
                f"{who}: mask must hold True, False or a Stiefel(…); at {path!r} it "
                f"holds {entry!r}."
            )
    if leaves and not any(readings):
        raise ValueError(
            f"{who}: mask selects no leaf, so nothing would be constrained; the leaves "
            f"are: {listing(paths)}."
        )
    return readings


def _refuse_collections(who, tree):
    """Raise on all the variables of a Linen module, of which only one is trained."""
    keys = list(tree) if isinstance(tree, Mapping) else []
    others = [key for key in keys if key in _COLLECTIONS]
    if "params" in keys and others:
        raise ValueError(
            f"{who}: these are all the variables of a Linen module, {listing(keys)}, "
            'and not its parameters alone; write variables["params"] for '
            f"variables, and keep {listing(others)} apart."
        )
