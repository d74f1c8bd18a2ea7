"""Programs that tests of several files run, compiled once in each process."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from cdopt_jax import stiefel
from tests.oracles import metric_of


@functools.cache
def array_functions(metric: str, n: int, dtype: str) -> Callable[..., dict[str, Any]]:
    """The functions of `stiefel` at a point x, with directions d and w.

    All of them in one program: one by one, each is a dozen programs when it is run as
    it is, and the files that use this one took three times as long.
    """
    B, _ = metric_of(metric, n, dtype)

    @jax.jit
    def everything(x, d, w):
        return {
            "dissolve": stiefel.dissolve(x, B=B),
            "residual": stiefel.residual(x, B=B),
            "feasibility": stiefel.feasibility(x, B=B),
            "penalty": stiefel.penalty(x, B=B),
            "penalty_grad": stiefel.penalty_grad(x, B=B),
            "jvp of d": stiefel.jvp(x, d, B=B),
            "jvp of w": stiefel.jvp(x, w, B=B),
            "vjp of w": stiefel.vjp(x, w, B=B),
            "tangent of d": stiefel.tangent(x, d, B=B),
        }

    return everything
