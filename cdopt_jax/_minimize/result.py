"""What `minimize` returns."""

import importlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

(
    BUDGET,
    CERTIFIED,
    STALLED,
    DIVERGED,
    INTERRUPTED,
    STOPPED,
    UNSETTLED,
    INFEASIBLE,
) = range(8)
_ENDS = (
    "the budget of steps is used up",
    "the tolerance is met",
    "no step lowers the objective any further",
    "the objective or its gradient became infinite or NaN; this is the last good point",
    "interrupted; this is the point reached",
    "stopped by the callback; this is the point reached",
    "the rows of nonnegative columns did not settle; this is a feasible point",
    "the tolerance is met, but B is too ill-conditioned for the precision of x0",
)


class Info(NamedTuple):
    """Where a run stands, for ``callback``.

    Attributes:
        step: After how many steps.
        value: The objective f + r.
        feasibility: The largest ‖xᵀBx − I‖_F.
        stationarity: The certificate.
        seconds: Spent on steps until then, without compilation.
    """

    step: int
    value: float
    feasibility: float
    stationarity: float
    seconds: float


Column = Array | np.ndarray
"""A number for each look at a run."""


class History(NamedTuple):
    """The course of a run, a row for each look at it; looks become rarer.

    Inside a trace the number of rows is fixed: those after the end repeat the last one.

    Attributes:
        step: After how many steps.
        value: The objective f + r.
        feasibility: The largest ‖xᵀBx − I‖_F.
        stationarity: The certificate; NaN where it is only computed at the end.
        seconds: Spent on steps until then, without compilation; NaN inside a trace.
    """

    step: Column
    value: Column
    feasibility: Column
    stationarity: Column
    seconds: Column


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Result:
    """The end of a run of `minimize`; a tree, so that it passes through ``vmap``.

    Attributes:
        params: The point reached.
        projected: Its projection to the manifold.
        proximal: The last proximal point, of which the zeros are exact; ``params``
            where the method has no proximal map. It is as far from ``params`` as
            ``stationarity`` times the last stepsize.
        value: The objective f + r at ``params``.
        feasibility: The largest ‖xᵀBx − I‖_F of ``params``.
        stationarity: The certificate there.
        tolerance: What the certificate had to fall below.
        sparsity: The share of the entries of ``proximal`` that are exactly zero.
        steps: How many were taken.
        converged: Whether the certificate met the tolerance, at a point on the
            manifold: ``feasibility`` is at most the square root of the precision.
        status: Why it ended, as a number; ``message`` says it in words.
        history: The course.
        values: The objective at the end of each of the ``starts``; None for one start.
        beta: By path, the weight β of each constrained leaf, for the methods on h; None
            for the others.
        method: The method that ended the run.
        certificate: What ``stationarity`` is.
        compile_seconds: Spent on compilation; zero if nothing was compiled.
    """

    params: Any
    projected: Any
    proximal: Any
    value: Array
    feasibility: Array
    stationarity: Array
    tolerance: Array
    sparsity: Array
    steps: Array
    converged: Array
    status: Array
    history: History
    values: Array | None
    beta: dict[str, Array] | None
    method: str = field(metadata={"static": True})
    certificate: str = field(metadata={"static": True})
    compile_seconds: float = field(default=0.0, metadata={"static": True})

    @property
    def message(self) -> str:
        """Why the run ended, in a line; of many runs, how many ended for what."""
        codes = np.atleast_1d(np.asarray(self.status)).ravel()
        if codes.size > 1:
            found = [(int(np.sum(codes == i)), end) for i, end in enumerate(_ENDS)]
            return "; ".join(f"{number} × {end}" for number, end in found if number)
        return (
            f"{self.method}: {_ENDS[int(codes[0])]} after {int(self.steps)} steps; "
            f"{self.certificate} {float(self.stationarity):.1e}, tolerance "
            f"{float(self.tolerance):.1e}"
        )

    def __str__(self) -> str:
        """A short summary."""
        if np.ndim(self.value):
            least = float(np.min(np.asarray(self.value)))
            runs = f"{np.size(self.value)} runs of minimize, least value {least:.6g}"
            return f"{runs}\n{self.message}"
        seconds = np.asarray(self.history.seconds)[-1]
        lines = {
            "value": f"{float(self.value):.8g}",
            "converged": f"{bool(self.converged)} ({self.message})",
            "feasibility": f"{float(self.feasibility):.1e}",
            "exact zeros": f"{float(self.sparsity):.1%}",
            "seconds": f"{seconds:.3g}, and {self.compile_seconds:.3g} for compilation",
        }
        if self.values is not None:
            lines["starts"] = f"{np.size(self.values)}, values " + ", ".join(
                f"{v:.6g}" for v in np.sort(np.asarray(self.values))
            )
        return "\n".join(f"{label + ':':13}{text}" for label, text in lines.items())

    def plot(self) -> Any:
        """Value, stationarity and feasibility against steps and seconds.

        Returns:
            The Matplotlib figure.

        Raises:
            ValueError: If Matplotlib is not installed, or for many runs at once.
        """
        if np.ndim(self.value):
            raise ValueError("Result.plot: draws one run; index the result first.")
        try:
            plt = importlib.import_module("matplotlib.pyplot")
        except ImportError:
            raise ValueError("Result.plot: needs Matplotlib; install it.") from None
        h = History(*(np.asarray(column, float) for column in self.history))
        figure, axes = plt.subplots(
            3, 2, sharex="col", figsize=(8, 6), layout="constrained"
        )
        rows = {
            "f + r − least": h.value - np.min(h.value),
            self.certificate: h.stationarity,
            "feasibility": h.feasibility,
        }
        for row, (label, column) in zip(axes, rows.items(), strict=True):
            for panel, across in zip(row, (h.step, h.seconds), strict=True):
                shown = column > 0
                panel.plot(across[shown], column[shown], marker=".")
                panel.set_yscale("log")
                panel.grid(alpha=0.3)
            row[0].set_ylabel(label, wrap=True)
        axes[-1, 0].set_xlabel("steps")
        axes[-1, 1].set_xlabel("seconds of steps")
        return figure
