"""The guarded step, as the last transformation of a chain."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._guard import guarded_steps
from cdopt_jax._hyperparameters import at, check_fraction
from cdopt_jax._pull import pulled
from cdopt_jax._rounding import Stored
from cdopt_jax._selection import Mask
from cdopt_jax._transforms._groups import per_leaf, scattered
from cdopt_jax._transforms._leaves import begin, check_state, compiled, survey
from cdopt_jax.prox import Regularizer


class GuardState(NamedTuple):
    """A report of the guarded steps; ``optax.tree.get`` finds each field by its name.

    All but ``num_updates`` are vectors with an entry for each constrained leaf, in the
    order of ``jax.tree.leaves``, and for the worst matrix of a leaf that holds many.

    Attributes:
        num_updates: How many updates were made.
        bound: A bound of ‖xᵀBx − I‖₂ after the last step.
        step_fraction: The fraction of the last proposed step that was taken.
        num_shortened: How many steps so far were shortened, to a fraction below 1.
        num_long: How many steps so far were long, and took more products of p×p×p.
    """

    num_updates: Array
    bound: Array
    step_fraction: Array
    num_shortened: Array
    num_long: Array


def keep_feasible(
    mask: Mask = None, *, radius: float = 0.5
) -> optax.GradientTransformationExtraArgs:
    """Take the proposed step without leaving the neighbourhood of the manifold.

    Put last in a chain. Whatever update u the optimiser proposes, the constrained leaf
    moves to the point of the manifold nearest to x + u, up to a residual of 2e-6 and
    rounding. That takes two products of n×p×p. Where x + u is nearly singular, a
    fraction of u is taken. If ‖xᵀBx − I‖₂ ≤ radius before, then after too, for every
    finite update. An update that is not finite is not made. A leaf may start anywhere,
    even at zero: the first update brings it to the manifold, or, where rounding of a
    large x prevents that, the first few. There is no penalty and no β.

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
        >>> bool(cdx.stiefel.feasibility(optax.apply_updates(x, updates)) < 1e-5)
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
    free: bool = False,
) -> Guarded:
    """Build the transformation; ``who`` is the public function to name in errors.

    ``free`` is that of `guarded_steps`.
    """
    check_fraction(who, "radius", radius)

    def init(params):
        leaves = len(begin(who, mask, params))
        return GuardState(
            num_updates=jnp.zeros([], jnp.int32),
            bound=jnp.full(leaves, jnp.inf, float),
            step_fraction=jnp.ones(leaves),
            num_shortened=jnp.zeros(leaves, jnp.int32),
            num_long=jnp.zeros(leaves, jnp.int32),
        )

    def update(updates, state, params=None, **extra_args):
        del extra_args
        leaves = survey(who, mask, params)
        check_state(who, state, GuardState, lambda s: s.bound, leaves.paths)
        return take(leaves, leaves.beside(who, updates), state)

    @compiled
    def step(groups, updates, radius):
        """The moves, as leaves, and what was done."""
        stored = [_stored(group, updates) for group in groups]
        moves, guards = _guard(groups, updates, radius, stored)
        return _leaves_of(groups, moves, updates), _done(groups, guards)

    @compiled
    def land(groups, updates, radius):
        """The points that the steps lead to, unrounded, and what was done."""
        wide = [Stored(group.x.dtype, group.x.dtype) for group in groups]
        moves, guards = _guard(groups, updates, radius, wide)
        points = [group.x + m for group, m in zip(groups, moves, strict=True)]
        bounds = [guard.bound for guard in guards]
        return scattered(groups, points), bounds, _done(groups, guards)

    @compiled
    def pull(groups, points, shrunk, bounds, updates, radius):
        """The moves to the proximal points, or towards them, and bounds there."""
        results = [
            pulled(
                group.x,
                group.gather(points),
                group.gather(shrunk),
                group.form,
                bound,
                radius,
                _stored(group, updates),
            )
            for group, bound in zip(groups, bounds, strict=True)
        ]
        moves = _leaves_of(groups, [move for move, _ in results], updates)
        pairs = zip(groups, results, strict=True)
        found = [group.largest(bound) for group, (_, bound) in pairs]
        return moves, per_leaf(groups, found)

    def _guard(groups, updates, radius, stored):
        xs, forms = [g.x for g in groups], [g.form for g in groups]
        us = [g.gather(updates) for g in groups]
        results = guarded_steps(xs, us, forms, radius, stored, free=free)
        return [move for move, _ in results], [guard for _, guard in results]

    def take(leaves, updates, state):
        given = leaves.constrained(updates)
        if regularizer is None:
            moves, done = step(leaves, given, radius)
            return leaves.merge(moves, updates), _report(state, *done)
        points, bounds, done = land(leaves, given, radius)
        ends = [x + u for u, x in zip(updates, leaves.leaves, strict=True)]
        eta = at(learning_rate, state.num_updates)
        ends = regularizer.prox(leaves.merge(points, ends), eta)
        ends = jax.tree.structure(leaves.params).flatten_up_to(ends)
        shrunk = leaves.constrained(ends)
        moves, bound = pull(leaves, points, shrunk, bounds, given, radius)
        others = [
            (y - x.astype(y.dtype)).astype(jnp.promote_types(u.dtype, x.dtype))
            for y, u, x in zip(ends, updates, leaves.leaves, strict=True)
        ]
        return leaves.merge(moves, others), _report(state, bound, *done[1:])

    return Guarded(init=init, update=update, take=take)


def _stored(group, updates):
    """The dtypes in which a group is stored; the coarsest, where updates differ."""
    dtypes = [jnp.promote_types(updates[i].dtype, group.dtype) for i in group.members]
    return Stored(group.dtype, min(dtypes, key=lambda d: jnp.finfo(d).bits))


def _leaves_of(groups, moves, updates):
    """The moves as leaves, with the precision to reach what they lead to."""
    dtypes = {i: group.dtype for group in groups for i in group.members}
    rows = enumerate(zip(scattered(groups, moves), updates, strict=True))
    return [m.astype(jnp.promote_types(u.dtype, dtypes[i])) for i, (m, u) in rows]


def _done(groups, guards):
    """Of each leaf the largest bound, the least fraction, and whether any was long."""
    rows = list(zip(groups, guards, strict=True))
    return (
        per_leaf(groups, [g.largest(guard.bound) for g, guard in rows]),
        per_leaf(groups, [-g.largest(-guard.fraction) for g, guard in rows]),
        per_leaf(groups, [g.largest(guard.long.astype(int)) for g, guard in rows]),
    )


def _report(state, bound, fraction, long):
    return GuardState(
        num_updates=jnp.asarray(optax.safe_increment(state.num_updates)),
        bound=bound.astype(state.bound.dtype),
        step_fraction=fraction.astype(state.step_fraction.dtype),
        num_shortened=state.num_shortened + (fraction < 1),
        num_long=state.num_long + long.astype(state.num_long.dtype),
    )
