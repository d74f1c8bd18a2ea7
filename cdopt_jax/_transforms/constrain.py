"""Any Optax optimiser, made to stay on the manifold."""

from typing import Any, NamedTuple

import optax

from cdopt_jax._checks import check_optimizer, check_params
from cdopt_jax._errors import error, naming, public, user_code
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.view import View
from cdopt_jax._transforms.keep_feasible import keep_feasible
from cdopt_jax._transforms.project_gradients import project_gradients
from cdopt_jax._transforms.state import check_state_size, check_state_type
from cdopt_jax.prox import Regularizer


class ConstrainState(NamedTuple):
    """The state of `constrain`.

    Attributes:
        optimizer: The state of the optimiser.
        guard: The report of the guarded steps.
    """

    optimizer: optax.OptState
    guard: Any


def constrain(
    optimizer: optax.GradientTransformation,
    mask: Mask = None,
    *,
    regularizer: Regularizer | None = None,
    learning_rate: optax.ScalarOrSchedule | None = None,
    radius: float = 0.5,
) -> optax.GradientTransformationExtraArgs:
    """Make any Optax optimiser keep the constrained leaves orthonormal.

    It is ``optax.chain(project_gradients(mask), optimizer, keep_feasible(mask))``: the
    gradient is projected to the tangent space, the optimiser proposes a step, and the
    guarded step takes it. The training loop stays as it was, with gradients taken at
    the parameters themselves: there is no β, any learning rate is safe, the start need
    not be on the manifold, and nothing remains to be projected at the end. Where the
    gradient is normal to the manifold, what the optimiser sees is zero, so stationary
    points are fixed points of every optimiser, elementwise ones included. The other
    leaves are the optimiser's own.

    Complex parameters need ``jnp.conj(jax.grad(f)(params))`` for their gradients, the
    direction of steepest ascent, which Optax's optimisers subtract; ``jax.grad``
    returns its conjugate, with which no run converges.

    Args:
        optimizer: The optimiser, such as ``optax.adam(1e-2)``.
        mask: Which leaves are constrained; see `where`.
        regularizer: A convex term of the objective to treat by its proximal map, for
            exact zeros; see `prox`. It acts on all leaves. An optimiser that scales its
            gradients, as Adam does, does not scale this term with them: choose its
            weight against entries of size one.
        learning_rate: The step size of that proximal map, a number or a schedule: the
            optimiser's own, which cannot be read from it.
        radius: The bound of ‖xᵀBx − I‖₂ that no step may pass.

    Returns:
        A transformation whose ``update`` needs ``params``, with a `ConstrainState`.
        Extra arguments are passed on to the optimiser. For optimisers with a line
        search, ``grad`` is projected as well, and ``value_fn`` is evaluated where the
        guarded step would lead; for `optax.contrib.sam`, what ``grad_fn`` returns is
        projected.

    Raises:
        ValueError: At once, on an object without ``init`` and ``update``, on a radius
            that is not between 0 and 1, and on a regularizer without a learning rate or
            the reverse; from ``init`` and ``update``, as `keep_feasible` does.

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
    with naming("constrain"):
        check_optimizer(optimizer)
        project = project_gradients(mask)
        guard = keep_feasible(
            mask, radius=radius, regularizer=regularizer, learning_rate=learning_rate
        )
    inner = optax.with_extra_args_support(optimizer)

    @public("constrain")
    def init(params):
        guard_state = guard.init(params)
        return ConstrainState(optimizer=inner.init(params), guard=guard_state)

    @public("constrain")
    def update(updates, state, params=None, **extra_args):
        check_params(params)
        check_state_type(state, ConstrainState)
        check_state_size(state.guard.bound.size, View(params, mask))
        updates, _ = project.update(updates, optax.EmptyState(), params)
        extra_args = _on_the_manifold(extra_args, project, guard, state.guard, params)
        with user_code():
            updates, inner_state = inner.update(
                updates, state.optimizer, params, **extra_args
            )
        updates, guard_state = guard.update(updates, state.guard, params)
        return updates, ConstrainState(optimizer=inner_state, guard=guard_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _on_the_manifold(extra_args, project, guard, state, params):
    """The extra arguments as an optimiser inside `constrain` should see them.

    A line search compares values of f along the updates it proposes. The guarded step
    leads somewhere else, so f is evaluated there. Gradients that an optimiser takes
    itself are projected as those that it is given.
    """

    def projected(grads):
        return project.update(grads, optax.EmptyState(), params)[0]

    def value_fn(proposed, *args, **kwargs):
        u = optax.tree.sub(proposed, params)
        u, _ = guard.update(u, state, params)
        return given["value_fn"](optax.apply_updates(params, u), *args, **kwargs)

    def grad_fn(*args, **kwargs):
        return projected(given["grad_fn"](*args, **kwargs))

    given = dict(extra_args)
    for name in ("value_fn", "grad_fn"):
        if not callable(given.get(name, projected)):
            raise error(f"{name} must be a function; it is {given[name]!r}.")
    if "grad" in given:
        extra_args = {**extra_args, "grad": projected(given["grad"])}
    if "value_fn" in given:
        extra_args = {**extra_args, "value_fn": value_fn}
    if "grad_fn" in given:
        extra_args = {**extra_args, "grad_fn": grad_fn}
    return extra_args
