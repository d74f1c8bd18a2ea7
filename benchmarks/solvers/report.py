"""Tables and figures of the suite: ``python -m benchmarks.suite_report DIR``."""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

GAP = 1e-4
Run = dict[str, Any]


def load(folder: Path) -> list[Run]:
    """The runs of a folder, with the gap of each value to the best of any method."""
    runs = [json.loads(file.read_text()) for file in sorted(folder.glob("runs/*.json"))]
    for run in runs:
        rivals = [r for r in runs if _key(r) == _key(run)]
        known = [r["projected_value"] for r in rivals if _feasible(r)]
        known += [run["best_known"]] if run["best_known"] is not None else []
        run["best"] = min(known)
        run["scale"] = max(abs(run["best"]), 1e-12)
        run["gap"] = (run["projected_value"] - run["best"]) / run["scale"]
        run["time"] = _time_to(run, GAP)
    return runs


def _key(run):
    return run["problem"], run["seed"]


def _feasible(run):
    return math.isfinite(run["projected_value"])


def _time_to(run, gap):
    """When the values stay below a gap, infinite if they never do."""
    level = run["best"] + gap * run["scale"]
    later = math.inf
    for _, seconds, value in reversed(run["course"]):
        if not value <= level:
            break
        later = seconds
    return later if run["gap"] <= gap else math.inf


def mine(run: Run) -> bool:
    """Whether it is one of ours."""
    return run["method"].startswith("cdx:")


def _in_order(runs):
    """The names of the methods, ours first."""
    return sorted({r["method"] for r in runs}, key=lambda m: (m[:4] != "cdx:", m))


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Of each problem and method, medians over seeds; the quickest in bold."""
    yield (
        "| problem | method | relative gap | ‖XᵀBX − I‖, end | at worst | projected | "
        "stationarity | zeros, % | steps | s to 1e-4 | compile, s | error |"
    )
    yield "|---" * 12 + "|"
    for problem in dict.fromkeys(run["problem"] for run in runs):
        here = [run for run in runs if run["problem"] == problem]
        methods = _in_order(here)
        times = {m: _median(here, m, "time") for m in methods}
        quickest = min(times.values())
        for method in methods:
            look = {
                field: _median(here, method, field)
                for field in (
                    "gap",
                    "feasibility",
                    "worst_feasibility",
                    "projected_feasibility",
                    "stationarity",
                    "sparsity",
                    "steps",
                    "compile_seconds",
                )
            }
            time = _number(times[method], ".3g")
            bold = times[method] == quickest and math.isfinite(quickest)
            cells = [
                problem,
                method,
                _number(look["gap"], ".1e"),
                _number(look["feasibility"], ".1e"),
                _number(look["worst_feasibility"], ".1e"),
                _number(look["projected_feasibility"], ".1e"),
                _number(look["stationarity"], ".1e"),
                f"{100 * look['sparsity']:.0f}",
                f"{look['steps']:.0f}",
                f"**{time}**" if bold else time,
                f"{look['compile_seconds']:.1f}",
                _number(_median(here, method, "error"), ".1e"),
            ]
            yield "| " + " | ".join(cells) + " |"


def _median(runs, method, field):
    values = [r[field] for r in runs if r["method"] == method]
    known = [math.nan if v is None else v for v in values]
    return float(np.median(known)) if known else math.nan


def _number(value, form):
    return f"{value:{form}}" if math.isfinite(value) else "—"


def verdicts(runs: Sequence[Run]) -> Iterator[str]:
    """What must hold, problem by problem and seed by seed."""
    yield "| problem | seed | our best gap | lowest | quickest to 1e-4 | ours / it |"
    yield "|---|---|---|---|---|---|"
    near = quick = total = 0
    for key in dict.fromkeys(map(_key, runs)):
        here = [run for run in runs if _key(run) == key]
        own = [run for run in here if mine(run)]
        smooth = all(r["smooth"] and not r["regular"] for r in here)
        gap = min(r["gap"] for r in own)
        lowest = min(here, key=lambda r: r["gap"])
        first = min(here, key=lambda r: r["time"])
        fastest = min(r["time"] for r in own)
        total += 1
        near += gap <= (1e-6 if smooth else GAP)
        quick += fastest <= first["time"] < math.inf
        ratio = fastest / first["time"] if first["time"] > 0 else 1.0
        yield (
            f"| {key[0]} | {key[1]} | {gap:.1e} | {lowest['method']} | "
            f"{first['method']} | {_number(ratio, '.2f')} |"
        )
    yield ""
    yield (
        f"One of ours ends within 1e-4 of the best value any method found (1e-6 on the "
        f"smooth problems) in {near} of {total}; ours is the quickest to a gap of 1e-4 "
        f"in {quick} of {total}."
    )
    worst = max((r["projected_feasibility"] for r in runs if mine(r)), default=0.0)
    rise = max(
        (r["projected_value"] - r["value"]) / r["scale"] for r in runs if mine(r)
    )
    yield ""
    yield (
        f"After projection, ‖XᵀBX − I‖ of ours is at most {worst:.1e}, and the "
        f"objective at most {rise:.1e} of its size above that before."
    )


def profile(path: Path, runs: Sequence[Run]) -> None:
    """Draw, for each method, on which share of runs it is within a factor of the best.

    Of the runs that it is made for: most rivals are for one kind of problem.
    """
    figure = Figure(figsize=(10, 6), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    factors = np.geomspace(1, 100, 200)
    best = {
        key: min(r["time"] for r in runs if _key(r) == key) for key in map(_key, runs)
    }
    for method in sorted(
        {r["method"] for r in runs}, key=lambda m: (m[:4] != "cdx:", m)
    ):
        own = [r for r in runs if r["method"] == method and best[_key(r)] < math.inf]
        ratios = np.array([r["time"] / max(best[_key(r)], 1e-9) for r in own])
        shares = [100 * np.mean(ratios <= f) if len(ratios) else 0 for f in factors]
        line = "-" if method.startswith("cdx:") else "--"
        axes.plot(factors, shares, line, label=f"{method} ({len(own)})", linewidth=1.8)
    axes.set(
        xscale="log",
        xlabel="time to a relative gap of 1e-4, over that of the quickest method",
        ylabel="share of the problems it is made for (%)",
        title="Performance profile; in brackets, on how many runs",
        ylim=(-2, 102),
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    canvas.print_png(path)


def convergence(path: Path, runs: Sequence[Run]) -> None:
    """Draw the gap against seconds, a panel for each problem, the first seed."""
    names = list(dict.fromkeys(run["problem"] for run in runs))
    columns = 3
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(14, 3.4 * rows), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    methods = _in_order(runs)
    seed = min(run["seed"] for run in runs)
    for axes, name in zip(grid, names, strict=False):
        for index, method in enumerate(methods):
            found = [
                r
                for r in runs
                if (r["problem"], r["method"], r["seed"]) == (name, method, seed)
            ]
            for run in found:
                _, seconds, values = np.array(run["course"], float).T
                gaps = (values - run["best"]) / run["scale"]
                # Lower than the best is what is off the manifold, or diverged.
                gaps = np.where(gaps < -1e-9, np.nan, np.maximum(gaps, 1e-12))
                line = "-" if mine(run) else "--"
                axes.plot(np.maximum(seconds, 1e-4), gaps, line, color=f"C{index % 10}")
        axes.set(title=name, xscale="log", yscale="log", ylim=(1e-12, 10))
        axes.axhline(GAP, color="black", linewidth=0.5)
        axes.grid(alpha=0.3)
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    for index, method in enumerate(methods):
        line = "-" if method.startswith("cdx:") else "--"
        grid[0].plot([], [], line, color=f"C{index % 10}", label=method)
    figure.legend(loc="outside lower center", ncols=4)
    figure.suptitle(
        "Relative gap to the best value found, against seconds without compilation"
    )
    canvas.print_png(path)


def write(folder: Path) -> None:
    """Write the report and the figures into the folder."""
    runs = load(folder)
    around = json.loads((folder / "environment.json").read_text())
    versions = ", ".join(f"{k} {v}" for k, v in around["versions"].items())
    seeds = len({run["seed"] for run in runs})
    lines = [
        "# Solvers on nonsmooth, smooth and generalized problems",
        "",
        f"float64 on {around['device']} with {around['cpus']} processors; {versions}. "
        f"Medians over up to {seeds} seeds. Methods of `cdx.minimize` begin with "
        "`cdx:`. The gap is that of the objective, at the projected point, to the "
        "least value that any method found or theory gives, relative to it. "
        "Stationarity is "
        "the norm of the projected gradient; of the tangential proximal step, where "
        "there is a regularizer; of the least element in the hull of gradients sampled "
        "within 1e-6, where f has kinks. Zeros are entries below 1e-5. Times are those "
        "of steps: compilation is apart, and so is the evaluation between them. The "
        "geometric subgradient method of the literature has the best of twelve "
        "stepsizes. The error is the distance from what was planted.",
        "",
        *verdicts(runs),
        "",
        *table(runs),
        "",
        "![](profile.png)",
        "",
        "![](convergence.png)",
    ]
    (folder / "suite.md").write_text("\n".join(lines) + "\n")
    profile(folder / "profile.png", runs)
    convergence(folder / "convergence.png", runs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the report of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
