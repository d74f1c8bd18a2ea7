"""What the transformations share: their state, and an action on constrained leaves."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.core import Tracer

from cdopt_jax._paths import align, describe_leaf, leaf_paths, listing
from cdopt_jax._reading import Reading
from cdopt_jax._selection import Mask, select

from ._groups import Group, each_group, grouped


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


class Leaves(NamedTuple):
    """The leaves of the parameters, with the constrained ones in groups.

    Attributes:
        params: The tree.
        leaves: Its leaves.
        readings: How the constrained ones are read as matrices; None for the free.
    """

    params: Any
    leaves: list[Any]
    readings: list[Reading | None]

    @property
    def chosen(self) -> list[tuple[Any, Reading]]:
        """The constrained ones, and their readings."""
        pairs = zip(self.leaves, self.readings, strict=True)
        return [(leaf, r) for leaf, r in pairs if r]

    @property
    def groups(self) -> list[Group]:
        """The constrained ones, as matrices."""
        return grouped(self.chosen)

    @property
    def paths(self) -> list[str]:
        """The paths of the constrained ones."""
        return self.constrained(leaf_paths(self.params))

    def beside(self, who: str, updates: Any) -> list[Any]:
        """The leaves of the updates."""
        return list(align(who, "updates", updates, self.params))

    def constrained(self, leaves: Sequence[Any]) -> list[Any]:
        """Those that belong to constrained parameters."""
        pairs = zip(leaves, self.readings, strict=True)
        return [leaf for leaf, r in pairs if r]

    def merge(self, constrained: Iterable[Any], free: Iterable[Any]) -> Any:
        """The tree with these for the constrained leaves, and for the others those."""
        new = iter(constrained)
        pairs = zip(free, self.readings, strict=True)
        merged = [next(new) if r else leaf for leaf, r in pairs]
        return jax.tree.structure(self.params).unflatten(merged)

    def update(
        self,
        fn: Callable[..., Any],
        updates: Sequence[Any],
        *,
        lands: bool = False,
        scalars: int = 0,
    ) -> tuple[Any, tuple[Array, ...]]:
        """The updates with ``fn`` applied to the constrained ones.

        Args:
            fn: As `each_group` takes it, of the matrices of the updates.
            updates: The leaves of the updates.
            lands: Whether x + u is a chosen point, which u must then have the precision
                to reach, even where the gradients have less than the parameters.
            scalars: How many scalars ``fn`` returns besides.

        Returns:
            The tree of updates, and the vectors of what ``fn`` said of each leaf.
        """
        given, at = self.constrained(updates), self.constrained(self.leaves)
        new, vectors = each_group(self.groups, fn, given, scalars=scalars)

        def cast(y, u, x):
            return y.astype(jnp.promote_types(u.dtype, x.dtype) if lands else u.dtype)

        rows = zip(new, given, at, strict=True)
        return self.merge([cast(*row) for row in rows], updates), vectors


def survey(who: str, mask: Mask, params: Any) -> Leaves:
    """The leaves of the parameters; an error if there are none."""
    if params is None:
        raise ValueError(
            f"{who}: this transformation needs the current parameters; call "
            "update(updates, state, params)."
        )
    return Leaves(params, jax.tree.leaves(params), select(who, params, mask))


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of groups and arrays as one of `Leaves` and arrays.

    It is compiled where it is called outside of any program: step by step, conditionals
    would be compiled anew at each call.
    """

    @partial(jax.jit, static_argnums=(0, 1))
    def program(readings, slots, leaves, metrics, arguments):
        metric = [None if slot is None else metrics[slot] for slot in slots]
        pairs = zip(readings, metric, strict=True)
        read = [r if b is None else dataclasses.replace(r, B=b) for r, b in pairs]
        return fn(grouped(list(zip(leaves, read, strict=True))), *arguments)

    def call(leaves: Leaves, *arguments: Any) -> Any:
        if not leaves.chosen:
            return fn([], *arguments)
        points, readings = zip(*leaves.chosen, strict=True)
        given = [None if callable(r.B) else r.B for r in readings]
        if any(isinstance(a, Tracer) for a in jax.tree.leaves((points, arguments))):
            return fn(leaves.groups, *arguments)
        # A metric that several leaves share is one argument.
        metrics = {id(b): b for b in given if b is not None}
        order = list(metrics)
        slots = tuple(None if b is None else order.index(id(b)) for b in given)
        pairs = zip(readings, given, strict=True)
        fixed = [r if b is None else dataclasses.replace(r, B=None) for r, b in pairs]
        return program(tuple(fixed), slots, points, list(metrics.values()), arguments)

    return call


def begin(who: str, mask: Mask, params: Any) -> list[str]:
    """The paths of the constrained leaves, for an ``init``, which sees them first."""
    readings, paths = select(who, params, mask), leaf_paths(params)
    for path, leaf, r in zip(paths, jax.tree.leaves(params), readings, strict=True):
        if r and r.secret is not None:
            raise ValueError(
                f"{who}: a leaf on Auto mesh axes that is split along anything but its "
                "first row axis and its batch must say so, since a compiled step could "
                f"not see it and would gather it in full; {describe_leaf(path, leaf)} "
                f"and is laid out as {r.secret}. Read it by Stiefel(…, "
                f"sharding={r.secret}), or make the mesh with Explicit axes."
            )
    return [path for path, r in zip(paths, readings, strict=True) if r]


def constrained_paths(who: str, mask: Mask, params: Any) -> list[str]:
    """The paths of the constrained leaves."""
    readings = select(who, params, mask)
    return [p for p, r in zip(leaf_paths(params), readings, strict=True) if r]
