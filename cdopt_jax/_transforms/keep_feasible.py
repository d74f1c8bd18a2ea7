"""The guarded step, as the last transformation of a chain."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._algebra import each
from cdopt_jax._guard import guarded_step
from cdopt_jax._hyperparameters import at, check_fraction
from cdopt_jax._selection import Mask
from cdopt_jax._transforms._groups import each_group
from cdopt_jax._transforms._leaves import (
    begin,
    check_state,
    survey,
)
from cdopt_jax.prox import Regularizer


class GuardState(NamedTuple):
    """A report of the guarded steps; ``optax.tree.get`` finds each field by its name.

    All but ``step`` are vectors with an entry for each constrained leaf, in the order
    of ``jax.tree.leaves``, and for the worst matrix of a leaf that holds many.

    Attributes:
        step: How many updates were made.
        bound: What is guaranteed of ‖xᵀBx − I‖₂ after the last step.
        t: The share of the last proposed step that was taken.
        capped: How many steps were shortened so far, t < 1.
        formed: How many steps took the products that long ones take so far.
    """

    step: Array
    bound: Array
    t: Array
    capped: Array
    formed: Array


def keep_feasible(
    mask: Mask = None, *, radius: float = 0.5
) -> optax.GradientTransformationExtraArgs:
    """Take the proposed step without leaving the neighbourhood of the manifold.

    Put last in a chain. Whatever update u the optimiser proposes, the constrained leaf
    moves from x to A(x + v), where v = u − xΦ(xᵀBu) is the part of u that is tangential
    to the manifold; a long step is orthonormalised, and if need be shortened to t·u
    with t < 1. If ‖xᵀBx − I‖₂ ≤ radius before, then after too, for
    every finite update. A leaf that starts outside is brought to the manifold by the
    first update, which takes no step; an update that is not finite is not made. There
    is no penalty and no β.

    With a ``value_fn`` among the extra arguments, as a line search needs it, every
    step is orthonormalised: off the manifold it would find values that do not count.

    What the optimiser gets should have gone through the derivative of A before, or
    an elementwise one will stop where it should not: `constrain` sees to both.

    Args:
        mask: Which leaves are constrained; see `where`.
        radius: The bound of ‖xᵀBx − I‖₂, between 0 and 1.

    Returns:
        A transformation whose ``update`` needs ``params``, with a `GuardState` that
        reports what was done.

    Raises:
        ValueError: At once, on a radius that is not between 0 and 1; from ``init``, on
            a mask that does not fit or a leaf that cannot be read as matrices; from
            ``update``, when ``params`` is missing.

    Examples:
        A step of any length stays near:

        >>> import jax, jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> x = cdx.stiefel.random(jax.random.key(0), (6, 3))
        >>> tx = cdx.keep_feasible()
        >>> u = 1e6 * jax.random.normal(jax.random.key(1), x.shape)
        >>> updates, state = tx.update(u, tx.init(x), x)
        >>> bool(cdx.stiefel.feasibility(optax.apply_updates(x, updates)) < 1e-2)
        True
    """
    made = guarded("keep_feasible", mask, radius)
    return optax.GradientTransformationExtraArgs(made.init, made.update)


class Guarded(NamedTuple):
    """`keep_feasible`, and the proximal map of a regularizer behind it.

    Attributes:
        init: As in Optax.
        update: As in Optax.
        take: What ``update`` does once the leaves are read: from them, the leaves of
            the updates and the state to the new updates and state.
    """

    init: Callable[..., GuardState]
    update: Callable[..., tuple[Any, GuardState]]
    take: Callable[..., tuple[Any, GuardState]]


def guarded(
    who: str,
    mask: Mask,
    radius: float,
    regularizer: Regularizer | None = None,
    learning_rate: optax.ScalarOrSchedule | None = None,
    *,
    kind: str = "dissolved",
) -> Guarded:
    """Make it, for a public function of this name."""
    check_fraction(who, "radius", radius)
    # The proximal map may use the half of the radius that the step leaves it.
    share = radius if regularizer is None else radius / 2

    def init(params):
        leaves = len(begin(who, mask, params))
        return GuardState(
            step=jnp.zeros([], jnp.int32),
            bound=jnp.zeros(leaves) + jnp.inf,
            t=jnp.ones(leaves),
            capped=jnp.zeros(leaves, jnp.int32),
            formed=jnp.zeros(leaves, jnp.int32),
        )

    def update(updates, state, params=None, **extra_args):
        leaves = survey(who, mask, params)
        check_state(who, state, GuardState, lambda s: s.t, leaves.paths)
        given = leaves.beside(who, updates)
        searched = "value_fn" in extra_args
        return take(leaves, given, state, searched=searched)

    def take(leaves, updates, state, *, searched):
        how = "corrected" if searched and kind == "dissolved" else kind
        bounds: dict[int, Array] = {}

        def land(group, index, u):
            x = group.x
            after = next(reversed(bounds.values()), None)
            move, guard = guarded_step(x, u, share, group.form, kind=how, after=after)
            bounds[index] = guard.bound
            end = move if regularizer is None else x + move

            # The largest bound, the least t, and whether any took the long way.
            formed = group.largest(guard.formed.astype(jnp.int32))
            return end, group.largest(guard.bound), -group.largest(-guard.t), formed

        if regularizer is None:
            moves, vectors = leaves.update(land, updates, lands=True, scalars=3)
            return moves, _report(state, vectors)
        given = leaves.constrained(updates)
        stepped, vectors = each_group(leaves.groups, land, given, scalars=3)
        free = [x + u for u, x in zip(updates, leaves.leaves, strict=True)]
        eta = at(learning_rate, state.step)
        treedef = jax.tree.structure(leaves.params)
        shrunk = regularizer.prox(leaves.merge(stepped, free), eta)
        shrunk = treedef.flatten_up_to(shrunk)

        def pull(group, index, y, z):
            end, bound = _pulled(y, z, group.form, bounds[index], radius)
            return end, group.largest(bound)

        ends = leaves.constrained(shrunk)
        pulled, after = each_group(leaves.groups, pull, stepped, ends, scalars=1)
        landed = jax.tree.leaves(leaves.merge(pulled, shrunk))

        def move(y, u, x):
            dtype = jnp.promote_types(u.dtype, x.dtype)
            return (y - x.astype(y.dtype)).astype(dtype)

        rows = zip(landed, updates, leaves.leaves, strict=True)
        moves = treedef.unflatten([move(*row) for row in rows])
        return moves, _report(state, (*after, *vectors[1:]))

    return Guarded(init, update, take)


def _pulled(y, z, form, bound, radius):
    """As far from y to its proximal point z as the radius allows, and a bound there.

    ‖E(y + sΔ)‖ ≤ b + 2s√(1 + b)·δ + s²δ², where ‖E(y)‖ ≤ b and δ is the norm of Δ.
    """
    d = z - y
    delta = jnp.sqrt(form.length(d, form.apply(d)))
    along, room = jnp.sqrt(1 + bound) * delta, radius - bound
    s = room / (along + jnp.sqrt(along**2 + delta**2 * room))
    share = jnp.minimum(s, 1)
    reached = bound + 2 * share * along + (share * delta) ** 2
    return jnp.where(each(s >= 1), z, y + each(s) * d), reached


def _report(state, vectors):
    bound, t, formed = vectors
    return GuardState(
        jnp.asarray(optax.safe_increment(state.step)),
        bound.astype(state.bound.dtype),
        t.astype(state.t.dtype),
        state.capped + (t < 1),
        state.formed + formed.astype(state.formed.dtype),
    )
