"""What the transformations share: their state, and an action on constrained leaves."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._paths import align
from cdopt_jax._selection import Mask, Reading, select


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
