"""The penalty alone, for gradients that already went through the dissolving map."""

from typing import NamedTuple

import optax
from jax import Array

from cdopt_jax import stiefel
from cdopt_jax._checks import check_params, check_positive, schedule_value
from cdopt_jax._errors import error, naming, public
from cdopt_jax._leaves.hidden_layouts import first_view
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.view import View
from cdopt_jax._transforms.state import check_state_type, incremented, zero


class PenaltyState(NamedTuple):
    """The state of `add_penalty`.

    Attributes:
        num_penalties: How many updates were made.
    """

    num_penalties: Array


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
    with naming("add_penalty"):
        if isinstance(beta, str) and beta == "auto":
            raise error(
                'beta must be a number or a schedule; "auto" needs the gradient of f '
                'itself, so write dissolve_gradients("auto").'
            )
        check_positive("beta", beta)

    @public("add_penalty")
    def init(params):
        first_view(params, mask)
        return PenaltyState(num_penalties=zero())

    @public("add_penalty")
    def update(updates, state, params=None, **extra_args):
        del extra_args
        check_params(params)
        check_state_type(state, PenaltyState)
        view = View(params, mask)
        given = view.select(updates, "updates")
        weight = schedule_value(beta, state.num_penalties)

        def penalised(group, u):
            slope = stiefel.penalty_grad(group.x, **group.form.arguments)
            return u + weight / group.scale**2 * slope

        new = view.map(penalised, given)
        new = [y.astype(u.dtype) for y, u in zip(new, given, strict=True)]
        count = incremented(state.num_penalties)
        return view.merge(new, updates), PenaltyState(num_penalties=count)

    return optax.GradientTransformationExtraArgs(init, update)
