"""What the transformations share: their state, and an action on constrained leaves."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._paths import align, leaf_paths, listing
from cdopt_jax._reading import Reading
from cdopt_jax._selection import Mask, select


class StepState(NamedTuple):
    """The state of a transformation that follows a schedule.

    Attributes:
        step: How many updates were made; not ``count``, so that
            ``optax.tree.get(state, "count")`` still finds the optimiser's.
    """

    step: Array


def first_step() -> StepState:
    """The state before the first update."""
    return StepState(jnp.zeros([], jnp.int32))


def next_step(state: StepState) -> StepState:
    """The state after one more update."""
    return StepState(jnp.asarray(optax.safe_increment(state.step)))


def stack(values: list[Any], dtype: Any) -> Array:
    """A vector with an entry for each constrained leaf, of which there may be none."""
    if not values:
        return jnp.zeros(0, dtype)
    return jnp.stack([jnp.asarray(value, dtype) for value in values])


def check_state(
    who: str,
    state: Any,
    kind: type,
    per_leaf: Callable[[Any], Array],
    paths: list[str],
) -> None:
    """Raise unless a state is of this kind, with an entry for each constrained leaf.

    Args:
        who: The public function that asks, for its errors.
        state: What was given as the state.
        kind: The type that init made.
        per_leaf: From such a state to a vector of it that has those entries.
        paths: The constrained leaves.
    """
    if not isinstance(state, kind):
        raise ValueError(
            f"{who}: the state must be the {kind.__name__} that init made; it is a "
            f"{type(state).__name__}. Where it was restored from a checkpoint, restore "
            "it with init(params) as the target, which has the right structure."
        )
    found = per_leaf(state).size
    if found != len(paths):
        raise ValueError(
            f"{who}: the state must be that of these parameters, with an entry for "
            f"each constrained leaf ({listing(paths)}); it has {found} of them. Make "
            "it by init(params), or restore the checkpoint of this model."
        )


def pair(
    who: str, mask: Mask, updates: Any, params: Any
) -> tuple[Any, list[tuple[Any, Any, Reading | None]]]:
    """Updates, parameters and readings side by side, and the tree they came from."""
    if params is None:
        raise ValueError(
            f"{who}: this transformation needs the current parameters; call "
            "update(updates, state, params)."
        )
    leaves, treedef = jax.tree.flatten(params)
    readings = select(who, params, mask)
    along = align(who, "updates", updates, params)
    return treedef, list(zip(along, leaves, readings, strict=True))


def on_constrained(
    who: str,
    mask: Mask,
    updates: Any,
    params: Any,
    fn: Callable[..., Array],
    *,
    lands: bool = False,
) -> Any:
    """``fn(x, u, B)`` in place of each constrained update u; the others as they are.

    Args:
        who: The public function that asks, for its errors.
        mask: Which leaves are constrained.
        updates: The updates.
        params: The parameters.
        fn: From the matrices x and u, in the dtype of the computation, to the new u.
        lands: Whether x + u is a chosen point, which u must then have the precision
            to reach, even where the gradients have less of it than the parameters.
    """
    treedef, rows = pair(who, mask, updates, params)

    def one(u, x, r):
        if r is None:
            return u
        dtype = jnp.promote_types(u.dtype, x.dtype) if lands else u.dtype
        return r.write(fn(r.read(x), r.read(u), r.B), dtype)

    return treedef.unflatten([one(*row) for row in rows])


def constrained_paths(who: str, mask: Mask, params: Any) -> list[str]:
    """The paths of the constrained leaves."""
    readings = select(who, params, mask)
    return [p for p, r in zip(leaf_paths(params), readings, strict=True) if r]
