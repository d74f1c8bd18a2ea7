"""A step from A(x) instead of x, as the last transformation of a chain."""

import optax

from cdopt_jax import stiefel
from cdopt_jax._selection import Mask

from ._leaves import begin, survey


def restore_feasibility(mask: Mask = None) -> optax.GradientTransformationExtraArgs:
    """Start every step from A(x): the update u becomes u + A(x) − x.

    Put last in a chain. A cubes the distance to the manifold, so short steps stay
    close to it without a penalty: with ‖u‖ small against one, ‖xᵀx − I‖ settles near
    2‖Φ(xᵀu)‖. Nothing bounds a long step.

    Args:
        mask: Which leaves are constrained; see `where`.

    Returns:
        A transformation whose ``update`` needs ``params``.

    Raises:
        ValueError: From ``init``, on a mask that does not fit or a leaf that cannot be
            read as matrices; from ``update``, when ``params`` is missing.

    Examples:
        >>> import jax, jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> m = jnp.diag(jnp.array([1.0, 4.0, 2.0, 3.0]))
        >>> loss = lambda x: -jnp.trace(x.T @ m @ x)
        >>> tangent = optax.stateless(
        ...     lambda g, x: jax.tree.map(cdx.stiefel.tangent, x, g)
        ... )
        >>> tx = optax.chain(tangent, optax.sgd(0.05), cdx.restore_feasibility())
        >>> x = cdx.stiefel.random(jax.random.key(0), (4, 2))
        >>> state = tx.init(x)
        >>> @jax.jit
        ... def step(x, state):
        ...     updates, state = tx.update(jax.grad(loss)(x), state, x)
        ...     return optax.apply_updates(x, updates), state
        >>> for _ in range(200):
        ...     x, state = step(x, state)
        >>> print(loss(x).round(4))
        -7.0
    """
    who = "restore_feasibility"

    def init(params):
        begin(who, mask, params)
        return optax.EmptyState()

    def update(updates, state, params=None, **extra_args):
        del extra_args
        leaves = survey(who, mask, params)

        def from_a(group, u):
            x = group.x
            return (u + (stiefel.dissolve(x, **group.form.arguments) - x),)

        given = leaves.beside(who, updates)
        updates, _ = leaves.update(from_a, given, lands=True)
        return updates, state

    return optax.GradientTransformationExtraArgs(init, update)
