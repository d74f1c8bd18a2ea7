"""The guarded step, as the last transformation of a chain."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._checks import (
    check_fraction,
    check_params,
    check_positive,
    check_regularizer,
    schedule_value,
)
from cdopt_jax._errors import error, naming, public
from cdopt_jax._leaves.hidden_layouts import first_view, warn_of_gathering
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.paths import leaves_beside
from cdopt_jax._leaves.view import View, compiled
from cdopt_jax._math.guarded_step import Guard, guarded_steps
from cdopt_jax._math.proximal_pull import pulled
from cdopt_jax._math.rounding import Stored
from cdopt_jax._transforms.proximal_map import check_proximal_map
from cdopt_jax._transforms.state import (
    Paths,
    check_state_size,
    check_state_type,
    constrained_paths,
    incremented,
    zero,
)
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
        num_outside: How often so far a leaf was not within the bound in which the step
            before had left it. Something behind this transformation then changes what
            it returns, or the parameters are changed elsewhere.
        guarded: The paths of the constrained leaves; see `report`.
    """

    num_updates: Array
    bound: Array
    step_fraction: Array
    num_shortened: Array
    num_long: Array
    num_outside: Array
    guarded: Paths


def keep_feasible(
    mask: Mask = None,
    *,
    radius: float = 0.5,
    regularizer: Regularizer | None = None,
    learning_rate: optax.ScalarOrSchedule | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Take the proposed step without leaving the neighbourhood of the manifold.

    Put last in a chain. Whatever update u the optimiser proposes, the constrained leaf
    moves to the point of the manifold nearest to x + u, up to a residual of 2e-6 and
    rounding. That takes two products of n×p×p. Where x + u is nearly singular, a
    fraction of u is taken. If ‖xᵀBx − I‖₂ ≤ radius before, then after too, for every
    finite update. An update that is not finite is not made. A leaf may start anywhere,
    even at zero: the first update brings it to the manifold, or, where rounding of a
    large x prevents that, the first few. There is no penalty and no β.

    Put `project_gradients` first in the chain, or an elementwise optimiser will stop at
    points that are not stationary. `constrain` puts the whole chain together.

    Args:
        mask: Which leaves are constrained; see `where`.
        radius: The bound of ‖xᵀBx − I‖₂, between 0 and 1.
        regularizer: A convex term of the objective to treat by its proximal map behind
            the step, for exact zeros; see `prox`. It acts on all leaves.
        learning_rate: The step size of that proximal map, a number or a schedule: the
            one of the optimiser in front.

    Returns:
        A transformation whose ``update`` needs ``params``, with a `GuardState` that
        reports what was done.

    Raises:
        ValueError: At once, on a radius that is not between 0 and 1, and on a
            regularizer without a learning rate or the reverse; from ``init``, on a mask
            that does not fit or a leaf that cannot be read as matrices; from
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
    with naming("keep_feasible"):
        check_fraction("radius", radius)
        if (regularizer is None) != (learning_rate is None):
            raise error(
                "regularizer and learning_rate go together; write "
                "regularizer=prox.l1(1e-4), learning_rate=lr, with the learning rate "
                "of the optimiser."
            )
        if regularizer is not None:
            check_positive("learning_rate", learning_rate)
            check_regularizer(regularizer, Regularizer)

    @public("keep_feasible")
    def init(params):
        view = first_view(params, mask)
        leaves = len(view.points)
        if regularizer is not None:
            check_proximal_map(regularizer, params)
        return GuardState(
            num_updates=zero(),
            bound=jnp.full(leaves, jnp.inf, float),
            step_fraction=jnp.ones(leaves),
            num_shortened=jnp.zeros(leaves, jnp.int32),
            num_long=jnp.zeros(leaves, jnp.int32),
            num_outside=jnp.zeros(leaves, jnp.int32),
            guarded=constrained_paths(view),
        )

    @public("keep_feasible")
    def update(updates, state, params=None, **extra_args):
        del extra_args
        check_params(params)
        check_state_type(state, GuardState)
        view = View(params, mask)
        check_state_size(state.bound.size, view)
        warn_of_gathering(view)
        given = view.select(updates, "updates")
        if regularizer is None:
            moves, guard = _step(view, given, radius)
            return view.merge(moves, updates), _reported(state, guard)
        points, bounds, guard = _land(view, given, radius)
        # The proximal map acts on the whole tree, at the points the step leads to.
        leaves, treedef = jax.tree.flatten(params)
        every = leaves_beside("updates", updates, params)
        leaves = [jnp.asarray(x) for x in leaves]
        every = [jnp.asarray(u) for u in every]
        ends = treedef.unflatten([x + u for x, u in zip(leaves, every, strict=True)])
        eta = schedule_value(learning_rate, state.num_updates)
        ends = regularizer.prox(view.merge(points, ends), eta)
        shrunk = view.select(ends, "the result of the proximal map")
        reached, bound = _pull(view, points, shrunk, bounds, given, radius)
        ends = treedef.flatten_up_to(view.merge(reached, ends))
        # From the leaves themselves, so that zeros are exact.
        moves = [
            (y - x.astype(y.dtype)).astype(jnp.promote_types(u.dtype, x.dtype))
            for y, u, x in zip(ends, every, leaves, strict=True)
        ]
        guard = guard._replace(bound=bound)
        return treedef.unflatten(moves), _reported(state, guard)

    return optax.GradientTransformationExtraArgs(init, update)


@compiled
def _step(view, updates, radius):
    """The moves, as leaves, and what was done to each leaf."""
    stored = [_stored(group, updates) for group in view.groups]
    moves, guards = _guarded(view, updates, radius, stored)
    moves = view.as_moves(view.leaves(moves), updates)
    return moves, _per_leaf(view, guards)


@compiled
def _land(view, updates, radius):
    """The points that the steps lead to, unrounded, and what was done to each leaf.

    The bounds are those of each matrix.
    """
    wide = [Stored(leaf=g.x.dtype, update=g.x.dtype) for g in view.groups]
    moves, guards = _guarded(view, updates, radius, wide)
    points = [group.x + m for group, m in zip(view.groups, moves, strict=True)]
    bounds = [guard.bound for guard in guards]
    return view.leaves(points), bounds, _per_leaf(view, guards)


@compiled
def _pull(view, points, shrunk, bounds, updates, radius):
    """The proximal points, or points on the way to them, and bounds there."""
    ends, found = [], []
    for group, bound in zip(view.groups, bounds, strict=True):
        end, bound = pulled(
            group.x,
            group.stack(points),
            group.stack(shrunk),
            group.form,
            bound,
            radius,
            _stored(group, updates),
        )
        ends.append(end)
        found.append(group.largest(bound))
    return view.leaves(ends), view.vector(found)


def _guarded(view, updates, radius, stored):
    xs, forms = [g.x for g in view.groups], [g.form for g in view.groups]
    us = [g.stack(updates) for g in view.groups]
    results = guarded_steps(xs, us, forms, radius, stored)
    return [move for move, _ in results], [guard for _, guard in results]


def _stored(group, updates):
    """The dtypes in which a group is stored; the coarsest, where updates differ."""
    dtypes = [jnp.promote_types(updates[i].dtype, group.dtype) for i in group.members]
    coarsest = min(dtypes, key=lambda d: jnp.finfo(d).bits)
    return Stored(leaf=group.dtype, update=coarsest, scale=group.scale)


def _per_leaf(view, guards):
    """What was done to each leaf, which is what was done to its worst matrix."""
    rows = []
    for group, g in zip(view.groups, guards, strict=True):
        # The least fraction is the worst.
        numbers = jnp.stack([g.bound, -g.fraction, g.long, g.distance], axis=-1)
        rows.append(group.largest(numbers, trailing=1))
    table = view.vector(rows) if rows else jnp.zeros((0, 4))
    return Guard(
        bound=table[:, 0],
        fraction=-table[:, 1],
        long=table[:, 2],
        distance=table[:, 3],
    )


def _reported(state, guard):
    shortened = (guard.fraction < 1).astype(state.num_shortened.dtype)
    # Of a matrix within the bound, the mean eigenvalue is within it too. Not finite
    # counts as outside.
    distance = guard.distance.astype(state.bound.dtype)
    outside = (~(distance <= state.bound)).astype(state.num_outside.dtype)
    return GuardState(
        num_updates=incremented(state.num_updates),
        bound=guard.bound.astype(state.bound.dtype),
        step_fraction=guard.fraction.astype(state.step_fraction.dtype),
        num_shortened=state.num_shortened + shortened,
        num_long=state.num_long + guard.long.astype(state.num_long.dtype),
        num_outside=state.num_outside + outside,
        guarded=state.guarded,
    )
