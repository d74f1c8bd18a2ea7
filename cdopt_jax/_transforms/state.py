"""States of transformations: counts of updates, and what a state must be."""

from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._errors import error
from cdopt_jax._leaves.paths import listing
from cdopt_jax._leaves.view import View


def zero() -> Array:
    """The count before the first update."""
    return jnp.zeros([], jnp.int32)


def incremented(count: Array) -> Array:
    """The count after one more update."""
    return jnp.asarray(optax.safe_increment(count))


Paths = tuple[dict[str, tuple[()]], ...]
"""The paths of leaves, each the key of an empty container.

A state may hold arrays and containers, and no text. The keys of a dictionary belong to
the structure of a state: `jit`, `scan`, checkpoints and Optax's wrappers keep them."""


def constrained_paths(view: View) -> Paths:
    """The paths of the constrained leaves, for a state."""
    # Optax asks for the structure of a state with a placeholder for the parameters,
    # and looks for the placeholder in it.
    return tuple({path: ()} for path in view.paths) or view.params


def names(paths: Paths) -> list[str]:
    """The paths as text."""
    return [path for entry in paths for path in entry]


def check_state_type(state: Any, kind: type) -> None:
    """Raise unless a state is of the type that ``init`` made."""
    if not isinstance(state, kind):
        raise error(
            f"the state must be the {kind.__name__} that init made; its type is "
            f"{type(state).__name__}. Call update(updates, state, params), in this "
            "order. Where the state was restored from a checkpoint, restore it with "
            "init(params) as the target, which has the right structure."
        )


def check_state_size(entries: int, view: View) -> None:
    """Raise unless a state has an entry for each constrained leaf.

    Args:
        entries: How many leaves the state has entries for.
        view: The view of the parameters.
    """
    if entries != len(view.points):
        raise error(
            "the state must be that of these parameters, with an entry for each "
            f"constrained leaf ({listing(view.paths)}); it has {entries} of them. Make "
            "it by init(params), or restore the checkpoint of this model."
        )
