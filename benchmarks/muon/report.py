"""The report of a task: one table, one figure, and who wins."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.muon.experiment import best_rate
from benchmarks.muon.task import Column, Task
from benchmarks.shared.figures import blank
from benchmarks.shared.runs import Runs
from benchmarks.shared.tables import number, table

_LINES = ("-", "--", "-.", ":")
_LOSS = Column("training loss", 1, ".4f", -1)
ON_THE_MANIFOLD = 1e-3
"""What ‖XᵀX − I‖ may be for a method to count as constrained."""


class Row(NamedTuple):
    """The runs of a contender at its best rate.

    Attributes:
        label: Its name.
        rate: The rate.
        at_edge: Whether that is the least or the largest of the grid.
        records: One for each seed.
        seconds: Of a step.
    """

    label: str
    rate: float
    at_edge: bool
    records: list[dict[str, Any]]
    seconds: float

    def all(self, field: str) -> np.ndarray:
        """The values of a field; NaN where there is none."""
        return np.array([r[field] for r in self.records], np.float64)


def rows_of(
    task: Task, runs: Runs, seeds: Sequence[int], timed: Mapping[str, float] | None
) -> dict[str, Row]:
    """A row for each contender whose grid is done.

    Args:
        task: The task.
        runs: The records.
        seeds: The seeds; rates are chosen with the first.
        timed: The seconds of steps if they were timed apart; those of the runs if not.
    """
    rows = {}
    for name, contender in task.contenders.items():
        first = runs.find(method=name, seed=seeds[0])
        if {r["rate"] for r in first} != set(task.rates):
            continue
        rate = best_rate(first, seeds[0])
        records = [r for r in runs.find(method=name, rate=rate) if r["seed"] in seeds]
        spent = [r["run_seconds"] / r["steps"] for r in records]
        rows[name] = Row(
            label=contender.label,
            rate=rate,
            at_edge=rate in (min(task.rates), max(task.rates)),
            records=records,
            seconds=float(np.min(spent)) if timed is None else timed[name],
        )
    return rows


def _spread(values, factor, form):
    """The mean, and the standard deviation if there are several."""
    mean = number(factor * values.mean(), form)
    if len(values) == 1:
        return mean
    return f"{mean} ± {number(factor * values.std(ddof=1), form)}"


def results_table(task: Task, rows: Mapping[str, Row]) -> str:
    """Quality and time in one table."""
    columns = {"loss": _LOSS, **task.columns}
    titles = [column.title for column in columns.values()]
    body = []
    for row in rows.values():
        cells = [_spread(row.all(k), c.factor, c.form) for k, c in columns.items()]
        off = number(row.all("feasibility").max(), ".1e")
        rate = f"{row.rate:g}{' (edge)' if row.at_edge else ''}"
        step = f"{1000 * row.seconds:.1f}"
        body.append([row.label, rate, *cells, off, step, len(row.records)])
    last = ["worst ‖XᵀX − I‖", "ms a step", "seeds"]
    return table(["method", "rate", *titles, *last], body)


def _sides(own, other, sign):
    """Which is better; within two standard errors it is noise."""
    gap = sign * (other.mean() - own.mean())
    if not np.isfinite(gap):
        return "diverged"
    if min(len(own), len(other)) < 2:
        return ("worse" if gap < 0 else "better") + ", one seed"
    error = np.hypot(*(x.std(ddof=1) / len(x) ** 0.5 for x in (own, other)))
    return "within noise" if abs(gap) <= 2 * error else "worse" if gap < 0 else "better"


def verdicts(task: Task, rows: Mapping[str, Row], ours: str) -> str:
    """Each contender against one of ours, measure by measure, and its time."""
    if ours not in rows:
        return ""
    own = rows[ours]
    columns = {"loss": _LOSS, **task.columns}
    body = []
    for name, row in rows.items():
        if name != ours:
            sides = [_sides(own.all(k), row.all(k), c.sign) for k, c in columns.items()]
            body.append([row.label, *sides, f"{row.seconds / own.seconds:.2f}"])
    titles = [column.title.partition(",")[0] for column in columns.values()]
    return table([f"against {own.label}", *titles, "time of a step"], body)


def exactness(task: Task, rows: Mapping[str, Row]) -> str:
    """Whether the exact steepest descent is better than `constrain(muon)`, in words."""
    if not {"constrain-muon", "manifold-muon"} <= rows.keys():
        return ""
    own, exact = rows["constrain-muon"], rows["manifold-muon"]
    said = []
    for field, column in {"loss": _LOSS, **task.columns}.items():
        ours, its = own.all(field), exact.all(field)
        title = column.title.partition(",")[0]
        ratio = its.mean() / ours.mean()
        said.append(f"{title} × {ratio:.3f} ({_sides(ours, its, column.sign)})")
    return (
        "Is an exact steepest descent in the spectral norm better than "
        "`constrain(muon)`? Manifold Muon against it, after the same number of steps: "
        f"{', '.join(said)}, and a step takes {exact.seconds / own.seconds:.2f} of "
        "the time."
    )


def winners(task: Task, rows: Mapping[str, Row]) -> str:
    """Who is best in the mean over the seeds, of all and of those that are feasible."""
    feasible = [
        r for r in rows.values() if r.all("feasibility").max() < ON_THE_MANIFOLD
    ]

    def best(field, column, among):
        def height(row):
            # A run that diverged makes its method the last.
            return np.nan_to_num(column.sign * row.all(field).mean(), nan=-np.inf)

        return max(among, key=height).label

    said = []
    for field, column in {"loss": _LOSS, **task.columns}.items():
        words = [column.title.partition(",")[0], best(field, column, rows.values())]
        if feasible:
            words.append(f"(of the constrained: {best(field, column, feasible)})")
        said.append(" ".join(words))
    return f"Best in the mean: {'; '.join(said)}."


def figure(path: Path, task: Task, rows: Mapping[str, Row]) -> None:
    """The training loss against steps and against seconds."""
    drawn = blank(10, 4)
    axes = drawn.subplots(1, 2, sharey=True)
    for i, row in enumerate(rows.values()):
        curve = np.mean([r["curve"] for r in row.records], axis=0)
        # Each point is the mean of a part of the steps, and stands in its middle.
        steps = (np.arange(len(curve)) + 0.5) * task.steps / len(curve)
        for axis, x in zip(axes, (steps, steps * row.seconds), strict=True):
            line = _LINES[i % len(_LINES)]
            axis.plot(x, curve, line, label=row.label, color=f"C{i}")
    axes[0].set(xlabel="steps", ylabel="training loss", yscale="log")
    axes[1].set(xlabel="seconds of training steps")
    for axis in axes:
        axis.grid(alpha=0.3, which="both")
    axes[1].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=120)


def spent(task: Task, rows: Mapping[str, Row], seeds: Sequence[int]) -> str:
    """What all runs take, in words."""
    grid, more = len(task.rates), len(seeds) - 1
    each = (grid + more) * task.steps
    minutes = each * sum(row.seconds for row in rows.values()) / 60
    return (
        f"{len(rows)} methods × ({grid} rates + {more} more seeds) are "
        f"{len(rows) * (grid + more)} runs of {task.steps} steps: at the times in the "
        f"table {minutes:.0f} minutes."
    )


def text_of(
    task: Task,
    rows: Mapping[str, Row],
    ours: str,
    *,
    cost: str,
    timed_apart: bool,
    image: str,
) -> str:
    """The report."""
    grid = ", ".join(f"{rate:g}" for rate in task.rates)
    clock = (
        "Steps were timed apart, whole training steps of all methods taking turns."
        if timed_apart
        else "Steps were timed in the runs, on a busy machine; `--time` does it alone."
    )
    paragraphs = [
        f"{task.about} The learning rate falls linearly to zero in {task.steps} steps. "
        f"Each rate was chosen of {grid} by the training loss of one seed at the end; "
        "(edge) marks the least and the largest of them. Training loss is the mean "
        f"over the last part of the run. {cost} {clock}",
        results_table(task, rows),
        winners(task, rows),
        "A difference of up to two standard errors is noise. The time is that of a "
        "step, relative to ours.",
        verdicts(task, rows, ours),
        exactness(task, rows),
        f"![training loss]({image})",
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
