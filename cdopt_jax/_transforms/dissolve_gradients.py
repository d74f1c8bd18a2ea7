"""Algorithm 1 of the paper, as the first transformation of a chain."""

from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._checks import check_beta, check_params, schedule_value
from cdopt_jax._errors import naming, public
from cdopt_jax._leaves.hidden_layouts import first_view
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.view import View, automatic_weight
from cdopt_jax._math import automatic_beta
from cdopt_jax._math.products import dissolved_gradient, per_matrix, real_dtype
from cdopt_jax._transforms.state import (
    Paths,
    check_state_size,
    check_state_type,
    constrained_paths,
    incremented,
    zero,
)


class DissolveState(NamedTuple):
    """The state of `dissolve_gradients`; ``optax.tree.get`` finds its fields.

    Attributes:
        num_gradients: How many gradients were dissolved.
        beta: The weight β of each constrained leaf at the last of them, in
            the order of ``jax.tree.leaves``.
        dissolved: The paths of the constrained leaves; see `report`.
    """

    num_gradients: Array
    beta: Array
    dissolved: Paths


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
    with naming("dissolve_gradients"):
        auto = check_beta(beta)

    @public("dissolve_gradients")
    def init(params):
        view = first_view(params, mask)
        return DissolveState(
            num_gradients=zero(),
            beta=jnp.zeros(len(view.points)),
            dissolved=constrained_paths(view),
        )

    @public("dissolve_gradients")
    def update(updates, state, params=None, **extra_args):
        del extra_args
        check_params(params)
        check_state_type(state, DissolveState)
        view = View(params, mask)
        check_state_size(state.beta.size, view)
        given = view.select(updates, "updates")
        weights = state.beta
        if auto:
            asked = view.largest(automatic_weight, given)
            weights = automatic_beta.follow(weights, asked)
        else:
            value = schedule_value(beta, state.num_gradients)
            weights = jnp.full_like(weights, value)

        def damping(e):
            return per_matrix(automatic_beta.damping(e)) if auto else 1

        def gradient(group, g):
            betas = weights[jnp.asarray(group.members)] / group.scale**2
            betas = betas.astype(real_dtype(group.x.dtype))
            betas = betas.reshape(-1, *[1] * (group.x.ndim - 1))
            return dissolved_gradient(group.x, g, group.form, betas, damping)

        new = view.map(gradient, given)
        new = [y.astype(g.dtype) for y, g in zip(new, given, strict=True)]
        state = DissolveState(
            num_gradients=incremented(state.num_gradients),
            beta=weights,
            dissolved=state.dissolved,
        )
        return view.merge(new, updates), state

    return optax.GradientTransformationExtraArgs(init, update)
