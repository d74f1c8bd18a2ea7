"""Tables and figures of the suite, and the runs gathered in one file."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.figures import blank
from benchmarks.shared.results import in_words, made, surroundings
from benchmarks.shared.tables import number, table

GAP = 1e-4
KEPT, ENVIRONMENT = "solvers.json", "environment.json"
Run = dict[str, Any]
COLUMNS = {
    "relative gap": ("gap", ".1e", 1),
    "‖XᵀBX − I‖, end": ("feasibility", ".1e", 1),
    "at worst": ("worst_feasibility", ".1e", 1),
    "projected": ("projected_feasibility", ".1e", 1),
    "stationarity": ("stationarity", ".1e", 1),
    "zeros, %": ("sparsity", ".0f", 100),
    "steps": ("steps", ".0f", 1),
    "s to 1e-4: steps": ("time", ".3g", 1),
    "second call": ("second", ".3g", 1),
    "first call": ("first", ".3g", 1),
    "error": ("error", ".1e", 1),
}
"""The title of each column, with its field, its format and its unit."""


def gather(folder: Path) -> dict[str, Any]:
    """The environment and the runs: those that are there, or those that were kept."""
    runs = folder / "runs"
    if not (runs / ENVIRONMENT).is_file():
        return json.loads((folder / KEPT).read_text("utf-8"))
    files = sorted(set(runs.glob("*.json")) - {runs / ENVIRONMENT})
    around = json.loads((runs / ENVIRONMENT).read_text("utf-8"))
    return around | {"runs": [json.loads(file.read_text()) for file in files]}


def judged(runs: Sequence[Run]) -> list[Run]:
    """The runs with the gap of each value to the best of any method."""
    found = []
    for run in runs:
        rivals = [r for r in runs if _key(r) == _key(run)]
        known = [r["projected_value"] for r in rivals if _feasible(r)]
        known += [run["best_known"]] if run["best_known"] is not None else []
        best = min(known)
        scale = max(abs(best), 1e-12)
        gap = (run["projected_value"] - best) / scale
        known_run = {**run, "best": best, "scale": scale, "gap": gap}
        time, second = _times_to(known_run, GAP)
        first = run["compile_seconds"] + second
        found.append({**known_run, "time": time, "second": second, "first": first})
    return found


def _key(run):
    return run["problem"], run["seed"]


def _feasible(run):
    return math.isfinite(run["projected_value"])


def _times_to(run, gap):
    """When the values stay below a gap, infinite if they never do.

    In seconds of steps, and in those since the call.
    """
    level = run["best"] + gap * run["scale"]
    later = math.inf, math.inf
    for _, seconds, value, wall in reversed(run["course"]):
        if not value <= level:
            break
        later = seconds, wall
    return later if run["gap"] <= gap else (math.inf, math.inf)


def mine(run: Run) -> bool:
    """Whether it is one of ours."""
    return run["method"].startswith("cdx:")


def _in_order(runs):
    """The names of the methods, ours first."""
    return sorted({r["method"] for r in runs}, key=lambda m: (m[:4] != "cdx:", m))


def results(runs: Sequence[Run]) -> str:
    """Of each problem and method, medians over seeds; the quickest in bold."""
    rows = []
    for problem in dict.fromkeys(run["problem"] for run in runs):
        here = [run for run in runs if run["problem"] == problem]
        methods = _in_order(here)
        times = {m: _median(here, m, "second") for m in methods}
        quickest = min(times.values())
        for method in methods:
            time = number(times[method], ".3g")
            bold = times[method] == quickest and math.isfinite(quickest)
            cells = {
                title: number(unit * _median(here, method, field), form)
                for title, (field, form, unit) in COLUMNS.items()
            }
            cells["second call"] = f"**{time}**" if bold else time
            rows.append([problem, method, *cells.values()])
    return table(["problem", "method", *COLUMNS], rows)


def _median(runs, method, field):
    values = [r[field] for r in runs if r["method"] == method]
    known = [math.nan if v is None else v for v in values]
    return float(np.median(known)) if known else math.nan


def verdicts(runs: Sequence[Run]) -> str:
    """What must hold, problem by problem and seed by seed."""
    rows, near, quick, default = [], 0, 0, 0
    for key in dict.fromkeys(map(_key, runs)):
        here = [run for run in runs if _key(run) == key]
        own = [run for run in here if mine(run)]
        smooth = all(r["smooth"] and not r["regular"] for r in here)
        gap = min(r["gap"] for r in own)
        lowest = min(here, key=lambda r: r["gap"])
        quickest = min(here, key=lambda r: r["second"])
        fastest = min(r["second"] for r in own)
        rival = min((r["second"] for r in here if not mine(r)), default=math.inf)
        near += gap <= (1e-6 if smooth else GAP)
        quick += fastest <= quickest["second"] < math.inf
        default += any(_is_default(r) and r["second"] <= rival < math.inf for r in own)
        ratio = fastest / quickest["second"] if quickest["second"] > 0 else 1.0
        names = lowest["method"], quickest["method"]
        rows.append([*key, f"{gap:.1e}", *names, number(ratio, ".2f")])
    worst = max((r["projected_feasibility"] for r in runs if mine(r)), default=0.0)
    rise = max(
        (r["projected_value"] - r["value"]) / r["scale"] for r in runs if mine(r)
    )
    heads = ("our best gap", "lowest", "quickest second call", "ours / it")
    return (
        f"{table(('problem', 'seed', *heads), rows)}\n\n"
        f"One of ours ends within 1e-4 of the best value any method found (1e-6 on the "
        f"smooth problems) in {near} of {len(rows)}; ours is the quickest to a gap of "
        f"1e-4 in {quick} of {len(rows)}, by the wall time of a second call. The "
        f"default method alone is ahead of every rival in {default}.\n\n"
        f"After projection, ‖XᵀBX − I‖ of ours is at most {worst:.1e}, and the "
        f"objective at most {rise:.1e} of its size above that before."
    )


def _is_default(run):
    """Whether a run is the one that ``method="auto"`` would have been."""
    if run["regular"]:
        return run["method"] == "cdx:continuation"
    return run["method"] == ("cdx:proximal" if run["smooth"] else "cdx:auto")


def profile(path: Path, runs: Sequence[Run]) -> None:
    """Draw, for each method, on which share of runs it is within a factor of the best.

    Of the runs that it is made for: most rivals are for one kind of problem.
    """
    figure = blank(10, 6)
    axes = figure.subplots()
    factors = np.geomspace(1, 100, 200)
    best = {
        key: min(r["second"] for r in runs if _key(r) == key) for key in map(_key, runs)
    }
    for method in _in_order(runs):
        own = [r for r in runs if r["method"] == method and best[_key(r)] < math.inf]
        ratios = np.array([r["second"] / max(best[_key(r)], 1e-9) for r in own])
        shares = [100 * np.mean(ratios <= f) if len(ratios) else 0 for f in factors]
        line = "-" if method.startswith("cdx:") else "--"
        axes.plot(factors, shares, line, label=f"{method} ({len(own)})", linewidth=1.8)
    axes.set(
        xscale="log",
        xlabel="second call to a relative gap of 1e-4, over that of the quickest",
        ylabel="share of the problems it is made for (%)",
        title="Performance profile; in brackets, on how many runs",
        ylim=(-2, 102),
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=100)


def convergence(path: Path, runs: Sequence[Run]) -> None:
    """Draw the gap against seconds, a panel for each problem, the first seed."""
    names = list(dict.fromkeys(run["problem"] for run in runs))
    columns = 3
    rows = math.ceil(len(names) / columns)
    figure = blank(14, 3.4 * rows)
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
                _, seconds, values, _ = np.array(run["course"], float).T
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
    figure.savefig(path, dpi=100)


def write(folder: Path) -> None:
    """Write the report, the figures and the runs behind them into the folder."""
    content = gather(folder)
    how, now = content.setdefault("made", made()), made()
    if how.get("command") == now.get("command", ""):
        # The environment was written down when the command began.
        how["seconds"] = now["seconds"]
    lines = ",\n".join(map(json.dumps, content["runs"]))
    head = {name: part for name, part in content.items() if name != "runs"}
    text = json.dumps(head).removesuffix("}")
    (folder / KEPT).write_text(f'{text}, "runs": [\n{lines}\n]}}\n', "utf-8")
    runs = judged(content["runs"])
    seeds = len({run["seed"] for run in runs})
    parts = [
        "# Solvers on nonsmooth, smooth and generalized problems",
        f"float64. {surroundings(content)} Medians over up to {seeds} seeds. Methods "
        "of `cdx.minimize` begin with `cdx:`. The gap is that of the objective, at the "
        "projected point, to the least value that any method found or theory gives, "
        "relative to it. Stationarity is the norm of the projected gradient; of the "
        "tangential proximal step, where there is a regularizer; of the least element "
        "in the hull of gradients sampled within 1e-6, where f has kinks. Zeros are "
        "entries below 1e-5. Seconds are those to a gap of 1e-4: of the steps alone; "
        "since a second call, with all that `cdx.minimize` does besides; since a first "
        "call, which compiles. For the rivals a second call is their steps "
        "alone, without the evaluation between them, and a first call has the "
        "compilation of what they call. Runs of at most 0.3 seconds are timed nine "
        "times, in turns, and times are medians; pymanopt and pystop run once. The "
        "geometric subgradient method of the literature has the best of twelve "
        "stepsizes. The error is the distance from what was planted.",
        verdicts(runs),
        results(runs),
        "![](profile.png)",
        "![](convergence.png)",
        in_words(how),
    ]
    (folder / "solvers.md").write_text("\n\n".join(parts) + "\n", "utf-8")
    profile(folder / "profile.png", runs)
    convergence(folder / "convergence.png", runs)
