"""Ways to hold any Optax optimiser to the manifold, ours and others', by name."""

from collections.abc import Callable, Mapping
from typing import Any

import optax

import cdopt_jax as cdx
from benchmarks.shared.methods.retraction import retracted

Wrapper = Callable[[Any, Any], optax.GradientTransformationExtraArgs]


def algorithm_1(beta: Any, *, guarded: bool) -> Wrapper:
    """The optimiser on gradients of h, its steps guarded or not."""

    def wrap(optimiser, mask):
        guard = [cdx.keep_feasible(mask)] if guarded else []
        return optax.chain(cdx.dissolve_gradients(beta, mask), optimiser, *guard)

    return wrap


WRAPPERS: Mapping[str, Wrapper] = {
    "constrain": cdx.constrain,
    "QR retraction": retracted,
    "Algorithm 1, β = 0.1": algorithm_1(0.1, guarded=False),
    "Algorithm 1, β = auto": algorithm_1("auto", guarded=False),
    "Algorithm 1, β = auto, guarded": algorithm_1("auto", guarded=True),
    "Algorithm 1, β = 5, guarded": algorithm_1(5.0, guarded=True),
    "keep_feasible": lambda optimiser, mask: optax.chain(
        optimiser, cdx.keep_feasible(mask)
    ),
    "restore_feasibility": lambda optimiser, mask: optax.chain(
        optimiser, cdx.restore_feasibility(mask)
    ),
    "unconstrained": lambda optimiser, _: optax.with_extra_args_support(optimiser),
}
"""From an optimiser and a mask to a transformation."""
