"""The guarded step, as the last transformation of a chain."""

from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._algebra import apply_metric, each
from cdopt_jax._guard import guarded_step
from cdopt_jax._hyperparameters import at, check_fraction
from cdopt_jax._selection import Mask
from cdopt_jax._transforms._leaves import (
    check_state,
    constrained_paths,
    pair,
    stack,
)
from cdopt_jax.prox import Regularizer


class GuardState(NamedTuple):
    """A report of the guarded steps; ``optax.tree.get`` finds each field by its name.

    All but ``step`` are vectors with an entry for each constrained leaf, in the order
    of ``jax.tree.leaves``, and for the worst matrix of a leaf that holds many.

    Attributes:
        step: How many updates were made.
        feasibility: ‖xᵀBx − I‖_F before the last step.
        bound: What is guaranteed of ‖xᵀBx − I‖₂ after it.
        t: The share of the last proposed step that was taken.
        capped: How many steps were shortened so far, t < 1.
        formed: How many steps formed the fifth product so far.
    """

    step: Array
    feasibility: Array
    bound: Array
    t: Array
    capped: Array
    formed: Array


def keep_feasible(
    mask: Mask = None, *, radius: float = 0.5
) -> optax.GradientTransformationExtraArgs:
    """Take the proposed step without leaving the neighbourhood of the manifold.

    Put last in a chain. Whatever update u the optimiser proposes, the constrained leaf
    moves from x to A(x) + t·J_A(x)[u], with t = 1 in all ordinary cases; where that
    would lead too far away, it is orthonormalised in the same two products, and if
    need be shortened to t < 1. If ‖xᵀBx − I‖₂ ≤ radius before, then after too, for
    every finite update. A leaf that starts outside is brought to the manifold by the
    first update, which takes no step; an update that is not finite is not made. There
    is no penalty and no β.

    With a ``value_fn`` among the extra arguments, as a line search needs it, short
    steps are orthonormalised too: off the manifold it would find values that do not
    count.

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
    return guarded("keep_feasible", mask, radius)


def guarded(
    who: str,
    mask: Mask,
    radius: float,
    regularizer: Regularizer | None = None,
    learning_rate: optax.ScalarOrSchedule | None = None,
    *,
    kind: str = "dissolved",
) -> optax.GradientTransformationExtraArgs:
    """`keep_feasible`, and the proximal map of a regularizer behind it."""
    check_fraction(who, "radius", radius)

    def init(params):
        leaves = len(constrained_paths(who, mask, params))
        return GuardState(
            step=jnp.zeros([], jnp.int32),
            feasibility=jnp.zeros(leaves),
            bound=jnp.zeros(leaves),
            t=jnp.ones(leaves),
            capped=jnp.zeros(leaves, jnp.int32),
            formed=jnp.zeros(leaves, jnp.int32),
        )

    def update(updates, state, params=None, **extra_args):
        searched = kind == "dissolved" and "value_fn" in extra_args
        treedef, rows = pair(who, mask, updates, params)
        paths = constrained_paths(who, mask, params)
        check_state(who, state, GuardState, lambda s: s.t, paths)
        # The proximal map may use the half of the radius that the step leaves it.
        share = radius if regularizer is None else radius / 2
        guards = []

        def land(u, x, r):
            if r is None:
                return u if regularizer is None else x + u
            point = r.read(x)
            step = r.read(u).astype(point.dtype)
            y, guard = guarded_step(
                point, step, share, r.B, kind="corrected" if searched else kind
            )
            guards.append(guard)
            return r.write(y, y.dtype)

        landed = [land(*row) for row in rows]
        if regularizer is not None:
            eta = at(learning_rate, state.step)
            shrunk = regularizer.prox(treedef.unflatten(landed), eta)
            pulls = zip(landed, treedef.flatten_up_to(shrunk), rows, strict=True)
            bounds = iter(guards)

            def pull(y, z, row):
                r = row[2]
                if r is None:
                    return z
                bound = next(bounds).bound
                return _pulled(y, z, r, bound, radius)

            landed = [pull(*item) for item in pulls]

        def move(y, u, x, r):
            if r is None and regularizer is None:
                return u
            dtype = jnp.promote_types(u.dtype, x.dtype)
            return (y - x.astype(y.dtype)).astype(dtype)

        moves = [move(y, *row) for y, row in zip(landed, rows, strict=True)]
        return treedef.unflatten(moves), _report(state, guards)

    return optax.GradientTransformationExtraArgs(init, update)


def _pulled(y, z, r, bound, radius):
    """As far from y to its proximal point z as the radius allows.

    ‖E(y + sΔ)‖ ≤ b + 2s√(1 + b)·δ + s²δ², where ‖E(y)‖ ≤ b and δ is the norm of Δ.
    """
    a, b = r.read(y), r.read(z)
    d = b - a
    delta = jnp.sqrt(jnp.sum(d * apply_metric(r.B, d), axis=(-2, -1)))
    along, room = jnp.sqrt(1 + bound) * delta, radius - bound
    s = room / (along + jnp.sqrt(along**2 + delta**2 * room))
    return r.write(jnp.where(each(s >= 1), b, a + each(s) * d), y.dtype)


def _report(state, guards):
    def worst(pick, name):
        values = [pick(getattr(guard, name)) for guard in guards]
        return stack(values, getattr(state, name).dtype)

    t = worst(jnp.min, "t")
    formed = stack([jnp.any(guard.formed) for guard in guards], jnp.int32)
    return GuardState(
        jnp.asarray(optax.safe_increment(state.step)),
        worst(jnp.max, "feasibility"),
        worst(jnp.max, "bound"),
        t,
        state.capped + (t < 1),
        state.formed + formed,
    )
