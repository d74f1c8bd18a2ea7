"""Any Optax optimiser, through `constrain`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._leaves.masks import Mask
from cdopt_jax._minimize.common import Method
from cdopt_jax._minimize.landscape import Point, length
from cdopt_jax._transforms.constrain import constrain
from cdopt_jax._transforms.dissolve_gradients import dissolve_gradients
from cdopt_jax._transforms.keep_feasible import keep_feasible


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point.
        gradient: That of the objective there.
        optimizer: The state of the constrained optimiser.
    """

    x: Point
    gradient: Point
    optimizer: Any


def transformed(
    optimizer: optax.GradientTransformation,
    mask: Mask,
    beta: float | str,
    *,
    sampled: bool,
) -> Method:
    """Steps of an Optax optimiser.

    Args:
        optimizer: The optimiser.
        mask: Which leaves are constrained.
        beta: The weight of the penalty, for Algorithm 1; with ``"auto"`` there is none,
            and the guarded step keeps the point on the manifold.
        sampled: Whether each step has an objective of its own. The gradient at hand is
            then no certificate, and that of the whole is asked for at the end.
    """
    tx = constrain(optimizer, mask)
    if beta != "auto":
        guard = keep_feasible(mask)
        tx = optax.chain(dissolve_gradients(beta, mask), optimizer, guard)

    def init(land, x, key):
        del key
        return State(x, jax.grad(land.value)(x), tx.init(land.write(x)))

    def step(land, state):
        params = land.write(state.x)
        updates, inner = tx.update(land.write(state.gradient), state.optimizer, params)
        x = land.read(optax.apply_updates(params, updates))
        return State(x, jax.grad(land.value)(x), inner)

    def residual(land, state):
        if sampled:
            return land.stationarity(state.x)
        return length(land.adjoint(state.x, state.gradient))

    def stalled(state):
        del state
        return jnp.zeros((), bool)

    return Method(
        init,
        step,
        lambda _, state: state.x,
        residual,
        stalled,
        "optimiser",
        "norm of the projected gradient",
        each_step=not sampled,
    )


def stochastic(steps: int) -> optax.GradientTransformation:
    """What is taken for objectives that are known by batches alone."""
    return optax.adam(optax.cosine_decay_schedule(0.03, steps))


def mean_over(batches: Any, f: Any) -> Any:
    """The objective averaged over batches that are drawn once."""

    def value(params: Any) -> Array:
        return jnp.mean(jax.lax.map(lambda data: f(params, data), batches))

    return value
