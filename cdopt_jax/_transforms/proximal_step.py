"""Algorithm 2 of the paper, which is a whole step: the last, or only, of a chain."""

import jax
import jax.numpy as jnp
import optax

from cdopt_jax import stiefel
from cdopt_jax._algebra import widen
from cdopt_jax._hyperparameters import at, check_positive
from cdopt_jax._selection import Mask
from cdopt_jax.prox import Regularizer

from ._groups import each_group
from ._leaves import begin, first_step, next_step, survey


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
    who = "proximal_step"
    check_positive(who, "learning_rate", learning_rate)
    if not isinstance(regularizer, Regularizer):
        raise ValueError(
            f"{who}: regularizer must be a Regularizer(value, prox), such as "
            f"prox.l1(1e-4) or prox.none(); it is {regularizer!r}."
        )

    def init(params):
        begin(who, mask, params)
        jax.eval_shape(regularizer.prox, params, 1.0)  # so that misfits are found now
        return first_step()

    def update(updates, state, params=None, **extra_args):
        del extra_args
        leaves = survey(who, mask, params)
        given = leaves.beside(who, updates)
        eta = at(learning_rate, state.step)

        def forward(group, u):
            x, form = group.x, group.form.arguments
            along = stiefel.vjp(x, u, **form) if tangential else u
            return (stiefel.dissolve(x, **form) - jnp.asarray(eta, x.dtype) * along,)

        def plain(u, x):
            wide = widen(jnp.promote_types(u.dtype, x.dtype))
            return x.astype(wide) - jnp.asarray(eta, wide) * u.astype(wide)

        rows = list(zip(given, leaves.leaves, strict=True))
        stepped, _ = each_group(leaves.groups, forward, leaves.constrained(given))
        landed = leaves.merge(stepped, [plain(*row) for row in rows])
        treedef = jax.tree.structure(params)
        landed = treedef.flatten_up_to(regularizer.prox(landed, eta))

        def back(y, u, x):
            dtype = jnp.promote_types(u.dtype, x.dtype)
            return (y - x.astype(y.dtype)).astype(dtype)

        moves = [back(y, *row) for y, row in zip(landed, rows, strict=True)]
        return treedef.unflatten(moves), next_step(state)

    return optax.GradientTransformationExtraArgs(init, update)
