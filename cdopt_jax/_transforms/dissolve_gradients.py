"""Algorithm 1 of the paper, as the first transformation of a chain."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax import _auto
from cdopt_jax._algebra import each, pull_back
from cdopt_jax._hyperparameters import at, check_beta
from cdopt_jax._selection import Mask
from cdopt_jax._transforms._leaves import (
    Leaves,
    begin,
    check_state,
    survey,
)


class DissolveState(NamedTuple):
    """The state of `dissolve_gradients`; ``optax.tree.get`` finds its fields.

    Attributes:
        step: How many updates were made.
        beta: The weight of each constrained leaf at the last of them, in the order of
            ``jax.tree.leaves``.
    """

    step: Any
    beta: Array


def dissolve_gradients(
    beta: optax.ScalarOrSchedule | str, mask: Mask = None
) -> optax.GradientTransformationExtraArgs:
    """Turn gradients of f into gradients of its constraint dissolving function.

    Put first in a chain, it lets the optimiser behind it, which knows nothing of the
    constraint, minimise f over matrices with orthonormal columns. For g = ∇f(A(x)) what
    comes out is the gradient of

        h(x) = f(A(x)) + (β/4)‖xᵀBx − I‖²,

    with A the map of `stiefel.dissolve`. The theory asks for a start with
    ‖xᵀx − I‖ ≤ 1/6, for β ≥ 60 times the largest gradient and for steps of at most
    1/(2β). Far smaller β do in practice, but nothing keeps a step that is too long
    from leaving the neighbourhood of the manifold, where h has no lower bound.

    Args:
        beta: The weight β > 0, or a schedule of it. The factor is β/4 here: where an
            author writes β/2, pass twice that author's value. With ``"auto"``, each
            leaf has its own β, a small multiple of the largest gradients seen of late,
            and the gradient of f fades out where ‖xᵀBx − I‖_F approaches 1/2.
        mask: Which leaves are constrained; see `where`.

    Returns:
        A transformation whose ``update`` needs ``params``. Gradients taken at
        ``dissolve(params)`` make it exact; gradients at ``params`` are the paper's
        approximation, exact in the limit.

    Raises:
        ValueError: At once, on a β that is not above zero; from ``init``, on a mask
            that does not fit or a leaf that cannot be read as matrices; from
            ``update``, when ``params`` is missing.

    Examples:
        The two leading eigenvectors of a matrix, by plain gradient descent:

        >>> import jax, jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> m = jnp.diag(jnp.array([1.0, 4.0, 2.0, 3.0]))
        >>> loss = lambda x: -jnp.trace(x.T @ m @ x)
        >>> tx = optax.chain(cdx.dissolve_gradients(5.0), optax.sgd(0.05))
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

    References:
        Hu, Xiao, Liu and Toh, "A Constraint Dissolving Approach for Nonsmooth
        Optimization over the Stiefel Manifold", Algorithm 1.
    """
    who = "dissolve_gradients"
    check_beta(who, beta)

    def init(params):
        return DissolveState(jnp.zeros([], jnp.int32), no_betas(who, mask, params))

    def update(updates, state, params=None, **extra_args):
        del extra_args
        leaves = survey(who, mask, params)
        check_state(who, state, DissolveState, lambda s: s.beta, leaves.paths)
        given = leaves.beside(who, updates)
        updates, betas = dissolved(beta, leaves, given, state)
        return updates, DissolveState(optax.safe_increment(state.step), betas)

    return optax.GradientTransformationExtraArgs(init, update)


def no_betas(who: str, mask: Mask, params: Any) -> Array:
    """The weights before the first update."""
    return jnp.zeros(len(begin(who, mask, params)))


def dissolved(
    beta: Any, leaves: Leaves, grads: Sequence[Any], state: DissolveState
) -> tuple[Any, Array]:
    """Gradients of h for those of f, and the weights they were made with."""

    def gradient(group, g):
        x, form = group.x, group.form
        if isinstance(beta, str):
            before = state.beta[jnp.asarray(group.members)]
            betas = _auto.follow(before, group.largest(_auto.weight(g, form)))
        else:
            betas = jnp.full(len(group.members), at(beta, state.step), state.beta.dtype)

        def share(e):
            return each(_auto.damping(e)) if isinstance(beta, str) else 1

        weights = betas.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        return pull_back(x, g, form, weights, share), betas

    updates, (betas,) = leaves.update(gradient, grads, scalars=1)
    return updates, betas
