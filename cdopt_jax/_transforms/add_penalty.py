"""The penalty alone, for gradients that already went through the dissolving map."""

import optax

from cdopt_jax import stiefel
from cdopt_jax._hyperparameters import at, check_positive
from cdopt_jax._selection import Mask

from ._leaves import begin, first_step, next_step, survey


def add_penalty(
    beta: optax.ScalarOrSchedule, mask: Mask = None
) -> optax.GradientTransformationExtraArgs:
    """Add the gradient of (β/4)‖xᵀBx − I‖² to the gradients.

    For a loss that is itself written with `dissolve`, so that automatic
    differentiation has applied the derivative of A; `dissolve_gradients` is for a loss
    written without it.

    Args:
        beta: The weight β > 0, or a schedule of it.
        mask: Which leaves are constrained; see `where`.

    Returns:
        A transformation whose ``update`` needs ``params``.

    Raises:
        ValueError: As `dissolve_gradients` does.

    Examples:
        >>> import jax, jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> m = jnp.diag(jnp.array([1.0, 4.0, 2.0, 3.0]))
        >>> def loss(x):
        ...     y = cdx.dissolve(x)
        ...     return -jnp.trace(y.T @ m @ y)
        >>> tx = optax.chain(cdx.add_penalty(5.0), optax.sgd(0.05))
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
    who = "add_penalty"
    if isinstance(beta, str) and beta == "auto":
        raise ValueError(
            f'{who}: beta must be a number or a schedule; "auto" needs the gradient of '
            'f itself, so write dissolve_gradients("auto").'
        )
    check_positive(who, "beta", beta)

    def init(params):
        begin(who, mask, params)
        return first_step()

    def update(updates, state, params=None, **extra_args):
        del extra_args
        leaves = survey(who, mask, params)
        weight = at(beta, state.step)

        def penalised(group, u):
            return (u + weight * stiefel.penalty_grad(group.x, **group.form.arguments),)

        updates, _ = leaves.update(penalised, leaves.beside(who, updates))
        return updates, next_step(state)

    return optax.GradientTransformationExtraArgs(init, update)
