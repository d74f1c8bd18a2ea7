"""What a problem is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Problem(NamedTuple):
    """An objective over parameters of which some are orthonormal.

    Attributes:
        loss: From the parameters and a random key, for problems that draw a batch, to
            the objective.
        value: From the parameters to the objective that counts, without sampling.
        start: The initial parameters, on the manifold.
        mask: Which of them are constrained.
        best: The least value, where theory gives it.
    """

    loss: Callable[[Any, jax.Array], jax.Array]
    value: Callable[[Any], jax.Array]
    start: Any
    mask: Any = None
    best: float | None = None


def deterministic(
    value: Callable[[Any], jax.Array], start: Any, **more: Any
) -> Problem:
    """A problem that does not sample."""
    return Problem(lambda params, _: value(params), value, start, **more)
