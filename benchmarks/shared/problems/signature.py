"""What a problem is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from cdopt_jax.prox import Regularizer


class Problem(NamedTuple):
    """f(x) + r(x) over unknowns of which some are orthonormal.

    Numbers are in JAX's default precision: float64 if that is enabled, else float32.

    Attributes:
        f: From the unknown to a scalar; everything but the regularizer.
        start: Where methods start, on the manifold: an array, or a tree of them.
        mask: Which leaves are constrained, and how they are read; None for XᵀX = I.
        regularizer: A convex term with a proximal map, or None.
        smooth: Whether ``f`` is differentiable.
        best: The least value of f + r, where theory gives it.
        error: From the unknown to its distance from what was planted, or None.
        sampled: From the unknown and a key to an unbiased estimate of f, or None.
        sampled_metric: From a key to an unbiased estimate of B as an array, or None.
        starts: From how many starts a method should be run, since local minima differ.
    """

    f: Callable[[Any], jax.Array]
    start: Any
    mask: Any = None
    regularizer: Regularizer | None = None
    smooth: bool = True
    best: float | None = None
    error: Callable[[jax.Array], jax.Array] | None = None
    sampled: Callable[[Any, jax.Array], jax.Array] | None = None
    sampled_metric: Callable[[jax.Array], jax.Array] | None = None
    starts: int = 1

    def value(self, x: Any) -> jax.Array:
        """The objective f + r."""
        return self.f(x) + self._regularizer(x)

    def loss(self, x: Any, key: jax.Array) -> jax.Array:
        """The objective by a sample of f, where there is one."""
        if self.sampled is None:
            return self.value(x)
        return self.sampled(x, key) + self._regularizer(x)

    def _regularizer(self, x):
        return 0 if self.regularizer is None else self.regularizer.value(x)
