"""The paper's two algorithms, and other optimisers on its dissolving function h.

Hu, Xiao, Liu and Toh, "A Constraint Dissolving Approach for Nonsmooth Optimization over
the Stiefel Manifold".
"""

from collections.abc import Callable
from typing import Any

import jax
import optax

import cdopt_jax as cdx
from benchmarks.shared.methods.lookahead import lookahead
from benchmarks.shared.methods.signature import Method, Task, itself


def on_h(optimiser: Callable[[Any], Any]) -> Callable[[Task, float], Method]:
    """An optimiser on gradients of h; with SGD that is Algorithm 1."""

    def make(task: Task, rate: float) -> Method:
        front = cdx.dissolve_gradients(task.beta, task.mask)
        return Method(
            transform=optax.chain(front, optimiser(task.schedule(rate))),
            point=task.dissolved,
            differentiates_regularizer=True,
            settings={"learning_rate": rate, "beta": task.beta},
        )

    return make


def ranger(rate: Any) -> optax.GradientTransformation:
    """Ranger: centralised gradients, rectified Adam and lookahead."""
    return lookahead(optax.chain(centralize(), optax.radam(rate)))


def centralize() -> optax.GradientTransformation:
    """Take from the gradient of each kernel its mean over the inputs of an output.

    `optax.centralize` does so for kernels whose first axis is the outputs; Flax's last
    one is.

    References:
        Yong et al., "Gradient centralization: a new optimization technique for deep
        neural networks", ECCV 2020.
    """

    def centred(g: jax.Array) -> jax.Array:
        inputs = tuple(range(g.ndim - 1))
        return g - g.mean(axis=inputs, keepdims=True) if inputs else g

    return optax.stateless(lambda updates, _: jax.tree.map(centred, updates))


def algorithm_2(
    *, tangential: bool, momentum: float | None = None
) -> Callable[[Task, float], Method]:
    """Stochastic proximal subgradient steps from A(X).

    Args:
        tangential: Whether to step along J_A(X)[D] instead of D. Without the normal
            part of the direction the step leaves the manifold only to second order,
            which allows learning rates far above the paper's bound, and a stationary
            point is a fixed point.
        momentum: The decay of a mean of the gradients, or None for the last alone.
    """
    # A mean of gradients, not the sum `optax.trace` keeps: the prox is scaled by the
    # learning rate alone, so a sum would weigh φ 1/(1 − momentum) times too much
    # against r. Not debiased, so that the first steps are short.
    front = [] if momentum is None else [optax.ema(momentum, debias=False)]

    def make(task: Task, rate: float) -> Method:
        step = cdx.proximal_step(
            task.schedule(rate), task.regularizer, task.mask, tangential=tangential
        )
        return Method(
            transform=optax.chain(*front, step) if front else step,
            point=itself,
            differentiates_regularizer=False,
            settings={"learning_rate": rate},
        )

    return make
