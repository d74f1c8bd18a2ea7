"""Which leaves of a tree are constrained, and read how."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import numpy as np
import optax

from cdopt_jax._checks import takes
from cdopt_jax._errors import error, naming, public, user_code

from .paths import broadcast_prefix, describe_leaf, leaf_paths, listing
from .reading import Reading, Stiefel, settle

_DEFAULT = Stiefel()

Mask = bool | Stiefel | Callable[[Any], Any] | Mapping[Any, Any] | Sequence[Any] | None
"""Which leaves are constrained: None for every leaf; a tree, or its upper levels, of
True, False and `Stiefel`; or a callable from the parameters to such a tree, as `where`
makes it."""

Pattern = str | Callable[[str, Any], bool]
"""A shell pattern on the '/'-joined path, or a predicate of the path and the leaf."""

NOT_MATRICES = ("bias", "scale")
"""The names of leaves that are no matrices of weights, whatever their shapes."""

_COLLECTIONS = ("batch_stats", "cache", "intermediates", "quant_stats")


@dataclasses.dataclass(frozen=True)
class _Where:
    """The mask that `where` makes."""

    readings: tuple[tuple[Pattern, Stiefel], ...]
    exclude: tuple[Pattern, ...]

    def __call__(self, tree: Any) -> Any:
        # Also where another function calls the mask: the mistake is in the patterns.
        with user_code(), naming("where"):
            return self._mask(tree)

    def _mask(self, tree):
        rows = list(zip(leaf_paths(tree), jax.tree.leaves(tree), strict=True))
        # No leaves at all is no mistake: Optax asks so for the structure of a state.
        patterns = [*(pattern for pattern, _ in self.readings), *self.exclude]
        for pattern in patterns if rows else []:
            if not any(_matches(pattern, *row) for row in rows):
                raise error(
                    f"the pattern {pattern!r} matches no leaf; the leaves are: "
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
                if name in NOT_MATRICES and not str(pattern).endswith(name):
                    raise error(
                        f"the pattern {pattern!r} also matches {path!r}, and a leaf "
                        f"named {name!r} is not a matrix of weights; "
                        f'{describe_leaf(path, leaf)}. Write exclude="*{name}", or, if '
                        "this leaf is meant, a pattern that ends with its name."
                    )
                return spec
        return False


def _matches(pattern, path, leaf):
    if isinstance(pattern, str):
        # A path may hold brackets of its own.
        return path == pattern or fnmatchcase(path, pattern)
    found = pattern(path, leaf)
    try:
        return bool(found)
    except (TypeError, ValueError):
        raise error(
            f"a predicate must return True or False; for {path!r}, {pattern!r} "
            f"returned {found!r}."
        ) from None


@public("where")
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
        raise error(f'give patterns, such as where("*/kernel"); got {patterns}.')
    if not all(isinstance(p, str) or callable(p) for p in exclude):
        raise error(
            "exclude must be patterns or predicates, such as "
            f'exclude="*/bias"; it is {exclude!r}.'
        )
    for pattern in (*every, *exclude):
        if not isinstance(pattern, str) and not takes(pattern, 2):
            raise error(
                "a predicate must take two arguments, the path and the leaf, such as "
                f"lambda path, leaf: leaf.ndim == 2; {pattern!r} does not."
            )
    for _, reading in readings:
        if not isinstance(reading, Stiefel):
            raise error(f"spec must be a Stiefel(…); it is {reading!r}.")
    return _Where(tuple(readings), tuple(exclude))


def select(tree: Any, mask: Mask) -> list[Reading | None]:
    """The reading of each leaf, in the order of ``jax.tree.leaves``; None if free.

    Args:
        tree: The parameters, or shapes and dtypes in their place.
        mask: Which leaves are constrained.
    """
    _refuse_collections(tree)
    entry_tree: Any = _resolve(mask, tree)
    leaves, paths = jax.tree.leaves(tree), leaf_paths(tree)
    if entry_tree is None:
        entries = [True] * len(leaves)
    else:
        entries = broadcast_prefix("mask", entry_tree, tree)
    readings = []
    for path, leaf, entry in zip(paths, leaves, entries, strict=True):
        if isinstance(entry, Stiefel):
            readings.append(settle(path, leaf, entry))
        elif isinstance(entry, bool | np.bool_):
            readings.append(settle(path, leaf, _DEFAULT) if entry else None)
        else:
            raise error(
                f"mask must hold True, False or a Stiefel(…); at {path!r} it holds "
                f"{entry!r}."
            )
    if leaves and not any(readings):
        raise error(
            "mask selects no leaf, so nothing would be constrained; the leaves are: "
            f"{listing(paths)}."
        )
    return readings


def _resolve(mask: Any, tree: Any) -> Any:
    """The mask as a tree, which a callable makes of the parameters.

    A module that can be called, as in Equinox, is a tree like any other. The parameters
    of `optax.lookahead` are a pair of trees, and the mask holds for both.
    """
    if mask is Stiefel:
        raise error("mask is the class Stiefel; write Stiefel().")
    if isinstance(mask, type):
        raise error(
            f"mask is the class {mask.__name__}; give a tree of True, False and "
            'Stiefel(…), or choose leaves by name, as in where("*/kernel").'
        )
    if mask is where:
        raise error('mask is the function where; write where("*/kernel").')
    if getattr(mask, "__module__", None) == "cdopt_jax.layers":
        raise error(
            f"mask is the function layers.{mask.__name__}; write "
            f"layers.{mask.__name__}(…), which makes a reading."
        )
    if isinstance(mask, str):
        raise error(f"mask is the string {mask!r}; write where({mask!r}).")
    names = [m for m in jax.tree.leaves(mask) if isinstance(m, str)]
    if names and isinstance(mask, list | tuple):
        raise error(f"mask holds names; write where({listing(names)}).")
    both = isinstance(mask, Mapping) and isinstance(tree, Mapping)
    if both and any("/" in str(k) for k in mask.keys() - tree.keys()):
        raise error(
            "mask has paths for keys; write where({"
            + ", ".join(f"{k!r}: Stiefel(…)" for k in mask)
            + "}), or a tree of the structure of the parameters."
        )
    if mask is not None and isinstance(tree, optax.LookaheadParams):
        return optax.LookaheadParams(
            fast=_resolve(mask, tree.fast), slow=_resolve(mask, tree.slow)
        )
    if callable(mask) and all(callable(m) for m in jax.tree.leaves(mask)):
        if not takes(mask, 1):
            raise error(
                "mask is a function that must take one argument, the parameters; "
                f"{mask!r} does not. A function of the path and the leaf is for "
                "where(function)."
            )
        try:
            made = mask(tree)
        except Exception as raised:
            raised.add_note(
                "This was raised by a mask that is a function. It is called with the "
                "parameters, the whole tree; a function of the path and the leaf is "
                "for where(function)."
            )
            raise
        if made is None:
            raise error(
                "mask is a function that returned None; let it return a tree of True, "
                "False and Stiefel(…), such as jax.tree.map(lambda x: x.ndim == 2, "
                "params)."
            )
        return made
    return mask


def _refuse_collections(tree):
    """Raise on all the variables of a Linen module, of which only one is trained."""
    keys = list(tree) if isinstance(tree, Mapping) else []
    others = [key for key in keys if key in _COLLECTIONS]
    if "params" in keys and others:
        raise error(
            f"these are all the variables of a Linen module, {listing(keys)}, "
            'and not its parameters alone; write variables["params"] for '
            f"variables, and keep {listing(others)} apart."
        )
