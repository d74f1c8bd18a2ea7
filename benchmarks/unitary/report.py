"""The report: a table for each problem, who is first, and a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.figures import blank
from benchmarks.shared.runs import Runs
from benchmarks.shared.tables import number, table
from benchmarks.unitary.experiment import best_rate
from benchmarks.unitary.methods import METHODS, RATES
from benchmarks.unitary.problems import Kind

_FLOOR = 1e-17
"""Where a figure ends; a gap may be zero or, by rounding, less."""
_LINES = ("-", "--", "-.", ":")


def reached(record: Mapping[str, Any], level: float, axis: str) -> float:
    """Where on an axis a run is at that level for good; infinite if it never is."""
    gaps = np.asarray(record["gaps"])
    above = np.flatnonzero(~(gaps <= level))
    first = above[-1] + 1 if len(above) else 0
    return record[axis][first] if first < len(gaps) else np.inf


def median(records: Sequence[Mapping[str, Any]], level: float, axis: str) -> float:
    """The median over the seeds, infinite unless most of them came there."""
    return float(np.median([reached(r, level, axis) for r in records]))


def finals(runs: Runs, name: str, method: str) -> list[dict[str, Any]]:
    """The runs of a method at its rate."""
    rate = best_rate(runs, name, method)
    return runs.find(kind=name, method=method, stage="final", rate=rate)


def rows_of(runs: Runs, name: str, seeds: Sequence[int]) -> dict[str, list[Any]]:
    """The final runs of each method that has all of them."""
    rows = {}
    for method in METHODS:
        found = finals(runs, name, method)
        found = [r for r in found if r["seed"] in seeds]
        if len(found) == len(seeds):
            rows[method] = found
    return rows


def results_table(kind: Kind, rows: Mapping[str, list[Any]]) -> str:
    """Steps, seconds, where the runs end, and feasibility."""
    body = []
    for method, records in rows.items():
        rate = records[0]["rate"]
        edge = " (edge)" if rate in (RATES[0], RATES[-1]) else ""
        cells = [METHODS[method].label, "—" if rate is None else f"{rate:g}{edge}"]
        for level in kind.levels:
            cells.append(number(median(records, level, "steps"), ".0f"))
            cells.append(number(1000 * median(records, level, "seconds"), ".1f"))
        ends = [max(r["gaps"][-1], 0.0) for r in records]
        cells.append(f"{np.median(ends):.1e} ({max(ends):.1e})")
        cells.append(number(max(max(r["feasibility"]) for r in records), ".0e"))
        cells.append(number(max(r["feasibility"][-1] for r in records), ".0e"))
        body.append(cells)
    titles = ["method", "rate"]
    for level in kind.levels:
        titles += [f"steps to {level:g}", f"ms to {level:g}"]
    titles += ["difference at the end (worst)", "worst ‖UᴴU − I‖", "at the end"]
    return table(titles, body)


def first_of(kind: Kind, rows: Mapping[str, list[Any]]) -> str:
    """Who comes first to each level, by time, of ours and of the rivals."""
    said = []
    for level in kind.levels:
        sides = []
        for ours in (True, False):
            times = {
                METHODS[m].label: median(records, level, "seconds")
                for m, records in rows.items()
                if METHODS[m].ours == ours
            }
            label = min(times, key=lambda k: times[k])
            sides.append((label, times[label]))
        (own, mine), (rival, its) = sides
        if not np.isfinite(mine) and not np.isfinite(its):
            said.append(f"To {level:g} none comes with most seeds.")
        elif not np.isfinite(its):
            said.append(f"To {level:g} {own} comes, and no rival.")
        elif not np.isfinite(mine):
            said.append(f"To {level:g} {rival} comes, and none of ours.")
        else:
            word = "of the time of" if mine <= its else "times the time of"
            said.append(
                f"To {level:g} our quickest, {own}, takes {mine / its:.2f} {word} the "
                f"quickest rival, {rival}."
            )
    return " ".join(said)


def figure(path: Path, kinds: Mapping[str, Kind], runs: Runs) -> None:
    """Differences against steps and seconds, and feasibility, for the first seed."""
    drawn = blank(3.6 * len(kinds), 8.5)
    axes = drawn.subplots(3, len(kinds), squeeze=False)
    for column, (name, kind) in zip(axes.T, kinds.items(), strict=True):
        for i, (method, entry) in enumerate(METHODS.items()):
            found = finals(runs, name, method)
            if not found:
                continue
            record = found[0]
            style = {"color": f"C{i}", "ls": _LINES[i % 4], "label": entry.label}
            gaps = np.maximum(record["gaps"], _FLOOR)
            column[0].plot(np.add(record["steps"], 1), gaps, **style)
            column[1].plot(np.add(record["seconds"], 1e-4), gaps, **style)
            off = np.maximum(record["feasibility"], _FLOOR)
            column[2].plot(np.add(record["steps"], 1), off, **style)
        column[0].set(title=kind.title, xlabel="steps + 1")
        column[1].set(xlabel="seconds + 0.0001")
        column[2].set(xlabel="steps + 1")
        for axis in column:
            axis.set(xscale="log", yscale="log")
            axis.grid(alpha=0.3)
    for axis, label in zip(
        axes[:, 0], ("difference",) * 2 + ("‖UᴴU − I‖",), strict=True
    ):
        axis.set(ylabel=label)
    drawn.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=110)


def text_of(kinds: Mapping[str, Kind], runs: Runs, seeds: Sequence[int]) -> str:
    """The report."""
    rates = ", ".join(f"{rate:g}" for rate in RATES)
    paragraphs = [
        "Stacks of unitary matrices in complex128; all methods start at the same "
        f"points, with {len(seeds)} seeds for data and starts. Methods with a rate let "
        "it fall to zero along a cosine. Each rate was chosen by the difference at "
        f"the end with one seed, of {rates}; (edge) marks the least and the largest. "
        "Riemannian Adam is the one of QGOpt and qgoptax, written from their formulas: "
        "one step length for a whole matrix, and a decomposition as retraction. "
        "Pymanopt is the package itself. Its unitary group projects gradients by "
        "transposes without a conjugate, and the result is no tangent: as installed "
        "it stops early. Mended, with the conjugate, it is a fair rival. Its steps "
        "are accepted iterations, in which a line search or an inner solver looks "
        "several times; the time counts it all. Compilation is never counted. A level "
        "counts as reached where the run stays below it; steps and times are medians "
        "over the seeds.",
    ]
    for name, kind in kinds.items():
        rows = rows_of(runs, name, seeds)
        if rows:
            paragraphs += [f"## {kind.title}", kind.about, results_table(kind, rows)]
            paragraphs.append(first_of(kind, rows))
    paragraphs.append("![differences and feasibility](unitary.png)")
    return "\n\n".join(paragraphs)
