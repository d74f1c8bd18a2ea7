"""A step from A(x) instead of x, as the last transformation of a chain."""

import optax

from cdopt_jax import stiefel
from cdopt_jax._errors import public
from cdopt_jax._leaves.hidden_layouts import first_view
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.view import View


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
        >>> parts = cdx.project_gradients(), optax.sgd(0.05), cdx.restore_feasibility()
        >>> tx = optax.chain(*parts)
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

    @public("restore_feasibility")
    def init(params):
        first_view(params, mask)
        return optax.EmptyState()

    @public("restore_feasibility")
    def update(updates, state, params=None, **extra_args):
        del extra_args
        view = View(params, mask)
        given = view.select(updates, "updates")

        def from_dissolved(group, u):
            x = group.x
            return u + (stiefel.dissolve(x, **group.form.arguments) - x)

        moves = view.map(from_dissolved, given)
        return view.merge(view.as_moves(moves, given), updates), state

    return optax.GradientTransformationExtraArgs(init, update)
