"""The paper's two algorithms, and other optimisers on its dissolving function h.

Hu, Xiao, Liu and Toh, "A Constraint Dissolving Approach for Nonsmooth Optimization over
the Stiefel Manifold".
"""

import jax
import optax

import cdopt_jax as cdx
from benchmarks.shared.methods.lookahead import lookahead
from benchmarks.shared.methods.signature import Method, Task, itself

MOMENTUM = 0.9


def _on_h(task: Task, rate: float, *optimiser, **settings) -> Method:
    """An optimiser on gradients of h, which knows nothing of the constraint."""
    return Method(
        transform=optax.chain(cdx.dissolve_gradients(task.beta, task.mask), *optimiser),
        point=task.dissolved,
        differentiates_regularizer=True,
        settings={"learning_rate": rate, "beta": task.beta, **settings},
    )


def algorithm_1(task: Task, rate: float) -> Method:
    """Stochastic subgradient steps on h."""
    return _on_h(task, rate, optax.sgd(task.schedule(rate)))


def algorithm_1_momentum(task: Task, rate: float) -> Method:
    """The same with momentum."""
    sgd = optax.sgd(task.schedule(rate), MOMENTUM)
    return _on_h(task, rate, sgd, momentum=MOMENTUM)


def yogi(task: Task, rate: float) -> Method:
    """Yogi on h."""
    return _on_h(task, rate, optax.yogi(task.schedule(rate)))


def ranger(task: Task, rate: float) -> Method:
    """Ranger on h: centralised gradients, rectified Adam and lookahead."""
    fast = optax.chain(centralize(), optax.radam(task.schedule(rate)))
    return _on_h(task, rate, lookahead(fast))


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


def algorithm_2(task: Task, rate: float) -> Method:
    """Stochastic proximal subgradient steps from A(X), as the paper writes them."""
    return _proximal(task, rate, tangential=False)


def algorithm_2_tangential(task: Task, rate: float) -> Method:
    """The same along J_A(X)[D] instead of D.

    Without the normal part of the direction the step leaves the manifold only to second
    order, which allows learning rates far above the paper's bound, and a stationary
    point is a fixed point.
    """
    return _proximal(task, rate, tangential=True)


def algorithm_2_momentum(task: Task, rate: float) -> Method:
    """The tangential one with momentum."""
    # A mean of gradients, not the sum `optax.trace` keeps: the prox is scaled by the
    # learning rate alone, so a sum would weigh φ 1/(1 − momentum) times too much
    # against r. Not debiased, so that the first steps are short.
    mean = optax.ema(MOMENTUM, debias=False)
    plain = algorithm_2_tangential(task, rate)
    settings = {**plain.settings, "momentum": MOMENTUM}
    chained = optax.chain(mean, plain.transform)
    return plain._replace(transform=chained, settings=settings)


def _proximal(task, rate, *, tangential):
    step = cdx.proximal_step(
        task.schedule(rate), task.regularizer, task.mask, tangential=tangential
    )
    return Method(
        transform=step,
        point=itself,
        differentiates_regularizer=False,
        settings={"learning_rate": rate},
    )
