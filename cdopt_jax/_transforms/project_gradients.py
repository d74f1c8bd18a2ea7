"""Gradients without their normal part, as the first transformation of a chain."""

import optax

from cdopt_jax._errors import public
from cdopt_jax._leaves.hidden_layouts import first_view
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.view import View, compiled
from cdopt_jax._math.tangent_gradient import tangential_gradient


def project_gradients(mask: Mask = None) -> optax.GradientTransformationExtraArgs:
    """Take the part that is normal to the manifold out of the gradients.

    Put first in a chain that ends with `keep_feasible`. A gradient g at x becomes
    g − BxΦ(xᵀg), or g − BxΦ(xᵀg)/c² for a leaf with a scale c. Where f is stationary
    on the manifold, g is normal to it, and the optimiser is shown zero: so stationary
    points are fixed points of every optimiser, elementwise ones included. Entries that
    are no larger than rounding become zero. That takes two products of n×p×p.

    Args:
        mask: Which leaves are constrained; see `where`.

    Returns:
        A transformation without a state, whose ``update`` needs ``params``.

    Raises:
        ValueError: From ``init``, on a mask that does not fit or a leaf that cannot be
            read as matrices; from ``update``, when ``params`` is missing.

    Examples:
        The parts of `constrain`, put together by hand:

        >>> import jax, jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> m = jnp.diag(jnp.array([1.0, 4.0, 2.0, 3.0]))
        >>> loss = lambda x: -jnp.trace(x.T @ m @ x)
        >>> parts = cdx.project_gradients(), optax.sgd(0.05), cdx.keep_feasible()
        >>> tx = optax.chain(*parts)
        >>> x = cdx.stiefel.random(jax.random.key(0), (4, 2))
        >>> state, update = tx.init(x), jax.jit(tx.update)
        >>> for _ in range(100):
        ...     updates, state = update(jax.grad(loss)(x), state, x)
        ...     x = optax.apply_updates(x, updates)
        >>> print(loss(x).round(4))
        -7.0
    """

    @compiled
    def project(view, grads):
        new = view.map(lambda g, u: tangential_gradient(g.x, u, g.form), grads)
        return [v.astype(g.dtype) for v, g in zip(new, grads, strict=True)]

    @public("project_gradients")
    def init(params):
        first_view(params, mask)
        return optax.EmptyState()

    @public("project_gradients")
    def update(updates, state, params=None, **extra_args):
        del extra_args
        # `optax.lookahead` has two sets of weights and takes gradients at one of them.
        if isinstance(params, optax.LookaheadParams):
            params = params.fast
        view = View(params, mask)
        new = project(view, view.select(updates, "updates"))
        return view.merge(new, updates), state

    return optax.GradientTransformationExtraArgs(init, update)
