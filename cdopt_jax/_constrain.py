"""Any Optax optimiser, made to stay on the manifold."""

from typing import Any, NamedTuple

import jax
import optax

from ._hyperparameters import check_beta, check_positive
from ._selection import Mask, resolve
from ._tangent import tangential_gradient
from ._transforms._groups import each_group
from ._transforms._leaves import check_state, compiled, survey
from ._transforms.dissolve_gradients import DissolveState, dissolved, no_betas
from ._transforms.keep_feasible import guarded
from ._trees import dissolve, penalty
from .prox import Regularizer


class ConstrainState(NamedTuple):
    """The state of `constrain`.

    Attributes:
        beta: The weight of each constrained leaf at the last update; None without β.
        optimizer: The state of the optimiser it was given.
        guard: The report of the guarded steps.
    """

    beta: Any
    optimizer: Any
    guard: Any


def constrain(
    optimizer: optax.GradientTransformation,
    mask: Mask = None,
    *,
    beta: Any = None,
    regularizer: Regularizer | None = None,
    learning_rate: optax.ScalarOrSchedule | None = None,
    radius: float = 0.5,
) -> optax.GradientTransformationExtraArgs:
    """Make any Optax optimiser keep the constrained leaves orthonormal.

    The gradient is projected to the tangent space, the optimiser proposes a step, and
    `keep_feasible` takes it. The training loop stays as it was, with gradients taken at
    the parameters themselves: there is no β, any learning rate is safe, the start need
    not be on the manifold, and nothing remains to be projected at the end. Where the
    gradient is normal to the manifold, what the optimiser sees is zero, so stationary
    points are fixed points of every optimiser, elementwise ones included. The other
    leaves are the optimiser's own.

    Args:
        optimizer: The optimiser, such as ``optax.adam(1e-2)``.
        mask: Which leaves are constrained; see `where`.
        beta: If given, Algorithm 1 of the paper instead: `dissolve_gradients` with this
            β, a number, a schedule or ``"auto"``, in front of the optimiser, and the
            step as it was proposed wherever it stays inside the radius.
        regularizer: A convex term of the objective to treat by its proximal map, for
            exact zeros; see `prox`. It acts on all leaves. An optimiser that scales its
            gradients, as Adam does, does not scale this term with them: give it a
            weight against entries of size one.
        learning_rate: The step size of that proximal map, a number or a schedule: the
            optimiser's own, which cannot be read from it.
        radius: The bound of ‖xᵀBx − I‖₂ that no step may pass.

    Returns:
        A transformation whose ``update`` needs ``params``. Extra arguments are passed
        on; for optimisers with a line search, ``grad`` is projected as well, and
        ``value_fn`` is evaluated where the guarded step would lead.

    Raises:
        ValueError: At once, on an optimiser that is none, on a radius that is not
            between 0 and 1, on a regularizer without a learning rate or the reverse,
            and on a β together with either.

    Examples:
        >>> import jax, jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> m = jnp.diag(jnp.array([1.0, 4.0, 2.0, 3.0]))
        >>> loss = lambda x: -jnp.trace(x.T @ m @ x)
        >>> tx = cdx.constrain(optax.adam(optax.cosine_decay_schedule(0.1, 100)))
        >>> x = jax.random.normal(jax.random.key(0), (4, 2))  # not orthonormal
        >>> state = tx.init(x)
        >>> @jax.jit
        ... def step(x, state):
        ...     updates, state = tx.update(jax.grad(loss)(x), state, x)
        ...     return optax.apply_updates(x, updates), state
        >>> for _ in range(100):
        ...     x, state = step(x, state)
        >>> print(f"{loss(x):.3f}", bool(cdx.stiefel.feasibility(x) < 1e-5))
        -7.000 True
    """
    who = "constrain"
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(
            f"{who}: optimizer must be an Optax optimiser, such as optax.adam(1e-2); "
            f"it is {optimizer!r}."
        )
    if (regularizer is None) != (learning_rate is None):
        raise ValueError(
            f"{who}: regularizer and learning_rate go together; write "
            "constrain(optax.sgd(lr), mask, regularizer=prox.l1(1e-4), "
            "learning_rate=lr)."
        )
    inner = optax.with_extra_args_support(optimizer)
    if beta is not None:
        check_beta(who, beta)
        if regularizer is not None:
            raise ValueError(
                f"{who}: beta asks for Algorithm 1 and regularizer for Algorithm 2; "
                "give one of them."
            )
    if regularizer is not None:
        check_positive(who, "learning_rate", learning_rate)
        if not isinstance(regularizer, Regularizer):
            raise ValueError(
                f"{who}: regularizer must be a Regularizer(value, prox), such as "
                f"prox.l1(1e-4); it is {regularizer!r}."
            )
    both = for_both(who, mask)
    free = beta is not None
    guard = guarded(who, both, radius, regularizer, learning_rate, free=free)

    @compiled
    def project(groups, grads):
        """The gradients of the constrained leaves, without their normal parts."""

        def one(group, g):
            return (tangential_gradient(group.x, g, group.form),)

        found, _ = each_group(groups, one, grads)
        return [v.astype(g.dtype) for v, g in zip(found, grads, strict=True)]

    def in_front(grads, state, leaves):
        """What the optimiser is given for the gradients, and the weights, if any."""
        grads = leaves.beside(who, grads)
        if beta is not None:
            before = DissolveState(state.guard.num_updates, state.beta)
            return dissolved(beta, leaves, grads, before)
        projected = project(leaves, leaves.constrained(grads))
        return leaves.merge(projected, grads), None

    def along(value_fn, state, params, betas):
        """The function where the step will lead, for a line search to see."""

        def value(proposed, *args, **kwargs):
            u = jax.tree.map(lambda a, b: a - b, proposed, params)
            u, _ = guard.update(u, state, params)
            landed: Any = optax.apply_updates(params, u)
            if beta is None:
                return value_fn(landed, *args, **kwargs)
            there = value_fn(dissolve(landed, both), *args, **kwargs)
            return there + penalty(who, _fast(landed), mask, betas)

        return value

    def init(params):
        betas = None if beta is None else no_betas(who, mask, _fast(params))
        return ConstrainState(betas, inner.init(params), guard.init(params))

    def update(updates, state, params=None, **extra_args):
        # Read once, for the gradients and for the step.
        leaves = survey(who, both, params)
        check_state(who, state, ConstrainState, lambda s: s.guard.bound, leaves.paths)
        front = leaves
        if isinstance(params, optax.LookaheadParams):
            front = survey(who, mask, params.fast)
        updates, betas = in_front(updates, state, front)
        if "grad" in extra_args:
            extra_args["grad"], _ = in_front(extra_args["grad"], state, front)
        if "value_fn" in extra_args:
            seen = along(extra_args["value_fn"], state.guard, params, betas)
            extra_args["value_fn"] = seen
            if beta is not None and "value" in extra_args:
                extra_args["value"] = seen(params)
        updates, inner_state = inner.update(
            updates, state.optimizer, params, **extra_args
        )
        given = leaves.beside(who, updates)
        updates, guard_state = guard.take(leaves, given, state.guard)
        return updates, ConstrainState(betas, inner_state, guard_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _fast(params):
    """The parameters at which gradients are taken."""
    return params.fast if isinstance(params, optax.LookaheadParams) else params


def for_both(who: str, mask: Mask) -> Mask:
    """The mask, and for `optax.lookahead`, whose parameters are a pair, for both."""

    def of(params):
        if isinstance(params, optax.LookaheadParams):
            return optax.LookaheadParams(*(resolve(who, mask, p) for p in params))
        return resolve(who, mask, params)

    return None if mask is None else of
