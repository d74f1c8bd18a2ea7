"""Algorithm 2 of the paper, which is a whole step: the last, or only, of a chain."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax import stiefel
from cdopt_jax._checks import (
    check_flag,
    check_params,
    check_positive,
    check_regularizer,
    schedule_value,
)
from cdopt_jax._errors import naming, public
from cdopt_jax._leaves.hidden_layouts import first_view
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.paths import leaves_beside
from cdopt_jax._leaves.view import View
from cdopt_jax._math.products import widen
from cdopt_jax._transforms.proximal_map import check_proximal_map
from cdopt_jax._transforms.state import check_state_type, incremented, zero
from cdopt_jax.prox import Regularizer


class ProximalState(NamedTuple):
    """The state of `proximal_step`.

    Attributes:
        num_proximal_steps: How many steps were taken.
    """

    num_proximal_steps: Array


def proximal_step(
    learning_rate: optax.ScalarOrSchedule,
    regularizer: Regularizer,
    mask: Mask = None,
    *,
    tangential: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Step from A(x) along −u, then apply the proximal map of a regularizer.

    For f = φ + r, with r convex and its proximal map easy, and u ≈ ∇φ(x), the
    parameters become

        x⁺ = prox_{ηr}(A(x) − ηu),

    without a penalty parameter. Entries that the proximal map makes zero are exactly
    zero after `optax.apply_updates`; but a schedule that ends at zero ends with a
    threshold below rounding, and loses them: let it end above, say at 1e-3 of its
    start. Momentum in front must average (`optax.ema`), since the sum of `optax.trace`
    would weigh φ against r by 1/(1 − decay). Leaves that are not constrained take the
    ordinary proximal step, with x in place of A(x). The theory asks for a start with
    ‖xᵀx − I‖ ≤ 1/6 and η ≤ 1/(19(M̃ + M_r)), where M̃ bounds ‖u‖ and M_r is the
    Lipschitz constant of r.

    Args:
        learning_rate: The step size η > 0, or a schedule of it.
        regularizer: r, on the whole tree of parameters; see `prox`.
        mask: Which leaves are constrained; see `where`.
        tangential: Whether u first goes through the adjoint of A's derivative, which
            takes away what is normal to the manifold. It costs two products more, and
            allows much longer steps.

    Returns:
        A transformation whose ``update`` needs ``params``, with the raw direction u as
        its updates: it is not to be put behind a learning rate.

    Raises:
        ValueError: At once, on a learning rate that is not above zero or something
            that is no regularizer; from ``init``, on a mask that does not fit or a
            leaf that cannot be read as matrices; from ``update``, when ``params`` is
            missing.

    Examples:
        One sparse principal component:

        >>> import jax, jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> v = jnp.array([2.0, 2.0, 0.1, 0.0])
        >>> phi = lambda x: -jnp.sum((v @ x) ** 2)
        >>> tx = cdx.proximal_step(0.01, cdx.prox.l1(0.8), tangential=True)
        >>> x = cdx.stiefel.random(jax.random.key(0), (4, 1))
        >>> state = tx.init(x)
        >>> @jax.jit
        ... def step(x, state):
        ...     updates, state = tx.update(jax.grad(phi)(x), state, x)
        ...     return optax.apply_updates(x, updates), state
        >>> for _ in range(300):
        ...     x, state = step(x, state)
        >>> print(jnp.abs(x[:, 0]).round(2))
        [0.7 0.7 0.  0. ]

    References:
        Hu, Xiao, Liu and Toh, "A Constraint Dissolving Approach for Nonsmooth
        Optimization over the Stiefel Manifold", Algorithm 2.
    """
    with naming("proximal_step"):
        check_positive("learning_rate", learning_rate)
        check_regularizer(regularizer, Regularizer)
        check_flag("tangential", tangential)

    @public("proximal_step")
    def init(params):
        first_view(params, mask)
        check_proximal_map(regularizer, params)
        return ProximalState(num_proximal_steps=zero())

    @public("proximal_step")
    def update(updates, state, params=None, **extra_args):
        del extra_args
        check_params(params)
        check_state_type(state, ProximalState)
        view = View(params, mask)
        given = [jnp.asarray(u) for u in leaves_beside("updates", updates, params)]
        eta = schedule_value(learning_rate, state.num_proximal_steps)

        def forward(group, u):
            x, form = group.x, group.form.arguments
            direction = stiefel.vjp(x, u, **form) if tangential else u
            return stiefel.dissolve(x, **form) - jnp.asarray(eta, x.dtype) * direction

        def plain(u, x):
            wide = widen(jnp.promote_types(u.dtype, x.dtype))
            return x.astype(wide) - jnp.asarray(eta, wide) * u.astype(wide)

        def back(y, u, x):
            dtype = jnp.promote_types(u.dtype, x.dtype)
            return (y - x.astype(y.dtype)).astype(dtype)

        leaves, treedef = jax.tree.flatten(params)
        leaves = [jnp.asarray(x) for x in leaves]
        free = [plain(u, x) for u, x in zip(given, leaves, strict=True)]
        stepped = view.map(forward, view.select(updates, "updates"))
        ahead = view.merge(stepped, treedef.unflatten(free))
        ends = treedef.flatten_up_to(regularizer.prox(ahead, eta))
        rows = zip(ends, given, leaves, strict=True)
        moves = treedef.unflatten([back(y, u, x) for y, u, x in rows])
        count = incremented(state.num_proximal_steps)
        return moves, ProximalState(num_proximal_steps=count)

    return optax.GradientTransformationExtraArgs(init, update)
