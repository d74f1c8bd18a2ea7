"""The two algorithms of the paper.

Hu, Xiao, Liu and Toh, "A Constraint Dissolving Approach for Nonsmooth Optimization over
the Stiefel Manifold".
"""

import optax

import cdopt_jax as cdx
from benchmarks.methods.signature import Method, Task


def algorithm_1(
    task: Task,
    *,
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    beta: float = 3.0,
) -> Method:
    """Subgradient steps on the dissolving function h, with momentum.

    The paper's β is 0.1. At this learning rate that lets ‖XᵀX − I‖ pass 1 in the first
    epochs, outside the region in which h is known to be faithful to f.
    """
    return Method(
        transform=optax.chain(
            cdx.dissolve_gradients(beta, task.mask),
            optax.sgd(task.schedule(learning_rate), momentum),
        ),
        point=lambda params: cdx.dissolve(params, task.mask),
        differentiates_regularizer=True,
        minimises="φ + γ‖w‖₁ on Stiefel, subgradient",
        settings={
            "learning_rate": learning_rate,
            "momentum": momentum,
            "beta": beta,
        },
    )


def algorithm_2(
    task: Task, *, learning_rate: float = 1.0, momentum: float = 0.9
) -> Method:
    """Proximal steps from the dissolved point, with momentum."""
    return Method(
        transform=optax.chain(
            # A mean of gradients, not the sum `optax.trace` keeps: the prox is scaled
            # by the learning rate alone, so a sum would weigh φ 1/(1 − momentum) times
            # too much against r. Not debiased, so that the first steps are short.
            optax.ema(momentum, debias=False),
            cdx.proximal_step(
                task.schedule(learning_rate),
                task.regularizer,
                task.mask,
                # Without the normal part of the direction the step leaves the manifold
                # only to second order, which allows learning rates far above the
                # paper's bound.
                tangential=True,
            ),
        ),
        point=lambda params: params,
        differentiates_regularizer=False,
        minimises="φ + γ‖w‖₁ on Stiefel, prox",
        settings={"learning_rate": learning_rate, "momentum": momentum},
    )
