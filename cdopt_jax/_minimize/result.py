"""What `minimize` returns."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

BUDGET, CERTIFIED, STALLED, DIVERGED, INTERRUPTED = range(5)
_ENDS = (
    "the budget of steps is used up",
    "the tolerance is met",
    "no step lowers the objective any further",
    "the objective became infinite or NaN; this is the last finite point",
    "interrupted; this is the point reached",
)


class History(NamedTuple):
    """The course of a run, a row for each look at it; looks become rarer.

    Attributes:
        step: After how many steps.
        value: The objective f + r.
        feasibility: The largest ‖xᵀBx − I‖_F.
        stationarity: The certificate.
        seconds: Spent on steps until then, without compilation; NaN inside a trace.
            Rows that a traced run did not come to have NaN everywhere.
    """

    step: Any
    value: Any
    feasibility: Any
    stationarity: Any
    seconds: Any


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "params",
        "projected",
        "value",
        "feasibility",
        "stationarity",
        "sparsity",
        "steps",
        "converged",
        "status",
        "history",
    ],
    meta_fields=["method", "certificate"],
)
@dataclass(frozen=True)
class Result:
    """The end of a run of `minimize`; a tree, so that it passes through ``vmap``.

    Attributes:
        params: The point reached.
        projected: Its projection to the manifold.
        value: The objective f + r at ``params``.
        feasibility: The largest ‖xᵀBx − I‖_F of ``params``.
        stationarity: The certificate there.
        sparsity: The share of the entries with an absolute value below 1e-5.
        steps: How many were taken.
        converged: Whether the certificate met the tolerance.
        status: Why it ended, as a number; ``message`` says it in words.
        history: The course.
        method: The method that ended the run.
        certificate: What ``stationarity`` is.
    """

    params: Any
    projected: Any
    value: Array
    feasibility: Array
    stationarity: Array
    sparsity: Array
    steps: Array
    converged: Array
    status: Array
    history: History
    method: str
    certificate: str

    @property
    def message(self) -> str:
        """Why the run ended, in a line; of many runs, how many ended for what."""
        codes = np.atleast_1d(np.asarray(self.status)).ravel()
        if codes.size > 1:
            found = [(int(np.sum(codes == i)), end) for i, end in enumerate(_ENDS)]
            return "; ".join(f"{count} × {end}" for count, end in found if count)
        return (
            f"{self.method}: {_ENDS[int(codes[0])]} after {int(self.steps)} steps; "
            f"{self.certificate} {float(self.stationarity):.1e}"
        )


def joined(first: History, then: History) -> History:
    """The course of two runs, the one from where the other ended."""
    rest = then._replace(seconds=first.seconds[-1] + then.seconds)
    pairs = zip(first, rest, strict=True)
    return History(*(jnp.concatenate([a, b[1:]]) for a, b in pairs))
