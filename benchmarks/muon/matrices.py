"""Steps of single matrices as Optax optimisers of trees of stacks of matrices."""

from collections.abc import Callable

import jax
import optax

from benchmarks.shared.methods.leaves import STACKS, descending

Step = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""From a point, a direction of ascent and a rate to the next point."""

MOMENTUM = 0.95
"""That of `optax.contrib.muon`, with Nesterov's look ahead, for every rival."""


def tall(step: Step) -> Step:
    """The same step for matrices of any shape; wide ones are transposed."""

    def either(x, g, rate):
        if x.shape[-2] >= x.shape[-1]:
            return step(x, g, rate)
        return step(x.mT, g.mT, rate).mT

    return either


def with_momentum(
    step: Step, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """The step along Muon's momentum."""
    momentum = optax.trace(MOMENTUM, nesterov=True)
    return optax.chain(momentum, descending(tall(step), schedule, STACKS))
