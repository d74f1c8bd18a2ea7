"""What a problem is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from cdopt_jax.prox import Regularizer


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


class Instance(NamedTuple):
    """A problem of the suite: f(x) + r(x) over one orthonormal unknown, in float64.

    Attributes:
        f: From the unknown to a scalar; everything but the regularizer.
        start: Where methods start, on the manifold.
        mask: How the unknown is read as matrices, and their metric; None for XᵀX = I.
        regularizer: A convex term with a proximal map, or None.
        smooth: Whether ``f`` is differentiable.
        best: The least value of f + r, where theory gives it.
        error: From the unknown to its distance from what was planted, or None.
        sampled: From the unknown and a key to an unbiased estimate of f, or None.
        sampled_metric: From a key to an unbiased estimate of B as an array, or None.
        starts: From how many starts a method should be run, since local minima differ.
    """

    f: Callable[[jax.Array], jax.Array]
    start: jax.Array
    mask: Any = None
    regularizer: Regularizer | None = None
    smooth: bool = True
    best: float | None = None
    error: Callable[[jax.Array], jax.Array] | None = None
    sampled: Callable[[jax.Array, jax.Array], jax.Array] | None = None
    sampled_metric: Callable[[jax.Array], jax.Array] | None = None
    starts: int = 1

    def value(self, x: jax.Array) -> jax.Array:
        """The objective f + r."""
        return self.f(x) + (
            0 if self.regularizer is None else self.regularizer.value(x)
        )
