"""The tables, the sentences and the figure of `benchmarks.rivals`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals import sparse
from benchmarks.rivals.problems import PROTOCOLS
from benchmarks.rivals.running import diverged, met
from benchmarks.shared.figures import blank
from benchmarks.shared.results import surroundings
from benchmarks.shared.tables import by, number, table

LADDER = (1e-2, 1e-4, 1e-6)
# Told apart in print and by the colour-blind (Okabe and Ito, and two more).
COLOURS = (
    *("#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#E69F00"),
    *("#000000", "#999999", "#8C564B"),
)
Run = dict[str, Any]


def target(title: str) -> float:
    """The relative gap that a problem asks for."""
    return PROTOCOLS[title].gap if title in PROTOCOLS else sparse.GAP


def with_gaps(runs: Sequence[Run]) -> list[Run]:
    """The runs on one problem; where looks have values, with gaps to the least."""
    if runs[0]["problem"] in PROTOCOLS:
        return list(runs)
    best = min(look[2] for run in runs for look in run["looks"] if look[2] is not None)

    def judged(look):
        step, seconds, value, off = look
        gap = None if value is None else (value - best) / abs(best)
        return [step, seconds, gap, off]

    return [run | {"looks": [judged(look) for look in run["looks"]]} for run in runs]


def arrival(run: Run, gap: float) -> tuple[float, float]:
    """The seconds and the steps to a gap; infinite if it is not met.

    Between two looks the logarithm of the gap is taken to fall evenly.
    """
    before = None
    for look in run["looks"]:
        step, seconds, here, _ = look
        if here is None:
            continue
        if met(look, gap):
            if before is None or here <= 0:
                return seconds, step
            (k, s, there) = before
            share = math.log(there / gap) / math.log(there / here)
            return s + share * (seconds - s), k + share * (step - k)
        before = (step, seconds, here) if here > gap else None
    return math.inf, math.inf


def verdict(runs: Sequence[Run], gap: float) -> str:
    """Whether one of ours is first at a feasibility no worse, or by how much not."""
    ours = _first([run for run in runs if run["ours"]], gap)
    rival = _first([run for run in runs if not run["ours"]], gap)
    if ours is None or rival is None:
        return "There is nothing to compare."
    mine, theirs = arrival(ours, gap), arrival(rival, gap)
    off = min(run["looks"][-1][3] for run in runs if not run["ours"])
    own = ours["looks"][-1][3]
    near = (
        f"It ends at a distance of {own:.1e} from the manifold, and the rival that is "
        f"nearest to it at {off:.1e}."
    )
    if not math.isfinite(min(mine[0], theirs[0])):
        gaps = [run["looks"][-1][2] for run in (ours, rival)]
        word = "lower" if gaps[0] <= gaps[1] else "higher"
        return (
            f"No method arrives in its time; {ours['method']} ends at a gap of "
            f"{gaps[0]:.1e}, {word} than {rival['method']}’s {gaps[1]:.1e}. {near}"
        )
    if mine[0] <= theirs[0]:
        rest = "no rival arrives in its time"
        if math.isfinite(theirs[0]):
            rest = (
                f"{rival['method']} is the first rival, after {theirs[0]:.3g} s, "
                f"{theirs[0] / mine[0]:.2f} times as long"
            )
        return f"{ours['method']} is first, after {mine[0]:.3g} s; {rest}. {near}"
    if not math.isfinite(mine[0]):
        return (
            f"None of ours arrives in its time; {rival['method']} does, after "
            f"{theirs[0]:.3g} s. {near}"
        )
    steps = mine[1] / theirs[1]
    return (
        f"{rival['method']} is first, after {theirs[0]:.3g} s; {ours['method']}, the "
        f"first of ours, takes {mine[0]:.3g} s, {mine[0] / theirs[0]:.2f} times as "
        f"long: {steps:.2f} times the steps, and {mine[0] / theirs[0] / steps:.2f} "
        f"times the time of a step. {near}"
    )


def _first(runs: Sequence[Run], gap: float) -> Run | None:
    """The run that arrives first; if none does, the one that ends lowest."""
    sound = [run for run in runs if _gap(run) is not None]
    if not sound:
        return None
    return min(sound, key=lambda run: (arrival(run, gap)[0], _gap(run)))


def _gap(run: Run) -> float | None:
    """The last gap of a run; None if it diverged."""
    _, _, gap, off = run["looks"][-1]
    first = run["looks"][0][2]
    if gap is None or first is None or diverged(gap, off, first):
        return None
    return gap


def leaders(runs: Sequence[Run], gap: float, number: int = 2) -> list[str]:
    """The first of ours and the first rivals to arrive, so many of each."""
    sound = [run for run in runs if _gap(run) is not None]
    sound.sort(key=lambda run: (arrival(run, gap)[0], _gap(run)))
    sides = ([run for run in sound if run["ours"] is ours] for ours in (True, False))
    return [run["method"] for side in sides for run in side[:number]]


def rows(runs: Sequence[Run]) -> list[list[str]]:
    """The runs on one problem, the first to arrive first."""

    def order(run):
        times = [arrival(run, gap)[0] for gap in reversed(LADDER)]
        return (*times, _gap(run) is None)

    return [
        [
            f"**{run['method']}**" if run["ours"] else run["method"],
            _setting(run["setting"]),
            *(number(arrival(run, gap)[0], ".3g") for gap in LADDER),
            number(_gap(run), ".1e") if _gap(run) is not None else "diverged",
            f"{run['looks'][-1][3]:.1e}",
            str(run["looks"][-1][0]),
            f"{1e3 * run['looks'][-1][1] / max(1, run['looks'][-1][0]):.3g}",
            f"{run['compile']:.1f}",
        ]
        for run in sorted(runs, key=order)
    ]


def _setting(setting: Any) -> str:
    if not isinstance(setting, list | tuple):
        return "—"
    rate, momentum = setting
    return f"{rate:g}, {momentum:g}" if momentum else f"{rate:g}"


def _by_problem(records: Sequence[Run]) -> dict[str, list[Run]]:
    titles = dict.fromkeys(run["problem"] for run in records)
    return {
        title: with_gaps([run for run in records if run["problem"] == title])
        for title in titles
    }


def report(result: dict[str, Any]) -> str:
    """The whole report in Markdown."""
    found = _by_problem(result["records"])
    header = ("method", "rate, momentum", *(f"s to {gap:g}" for gap in LADDER))
    header += ("gap at the end", "‖XᵀBX − I‖", "steps", "ms a step", "compile, s")
    parts = [
        "# The rivals’ own benchmarks",
        "float32 but where it is said. Seconds are those of steps, without compilation "
        "and without the looks at the point, between which the logarithm of the gap is "
        "taken to fall evenly. The gap is relative, at the point after one "
        "Newton–Schulz step towards the manifold. Rate and momentum are the best of "
        "one grid on a small problem of the same kind: the fewest steps to the gap, or "
        "the least gap after 200; where a run with them is lost, the next best. "
        "Packages for PyTorch have those of the same method in JAX, and programs of "
        "JAX one thread of LAPACK, at full size two, by which they are quicker. "
        f"Ours are bold. {surroundings(result)}",
        table(
            ("problem", "to a gap of", "who is first"),
            [
                (t, f"{target(t):g}", verdict(runs, target(t)))
                for t, runs in found.items()
            ],
        ),
        "![](rivals.png)",
        f"Of each problem, ours are solid and the first rivals dashed, "
        f"{len(COLOURS)} methods at most; the tables have all.",
        ARITHMETIC,
    ]
    for title, runs in found.items():
        where = PROTOCOLS[title].source if title in PROTOCOLS else sparse.SOURCE
        size = f" Size {by(PROTOCOLS[title].size)}." if title in PROTOCOLS else ""
        limit = f"Each method had {max(run['seconds'] for run in runs):g} s."
        parts += [f"## {title}", f"{where}.{size} {limit}", table(header, rows(runs))]
    return "\n\n".join(parts)


ARITHMETIC = (
    "At 2000×1500 a gradient is 12 GFLOP and four products of n×p×p are 36, at "
    "2000×2000 16 and 64, and a gap of 1e-6 takes hundreds of steps: all methods to "
    "the end would take hours. Therefore these problems are there twice: "
    "at a smaller size with every method, and at full size, for a limited time, with "
    "the two of ours and the two rivals that were first at the smaller one. The "
    "scripts of POGO and RSDM form QDQ where they mean QDQᵀ; that is run at the "
    "smaller size too."
)


def figure(path: Path, records: Sequence[Run]) -> None:
    """Draw the gap and the distance from the manifold of each problem."""
    found = _by_problem(records)
    drawn = blank(11, 3.6 * len(found))
    grid = np.atleast_2d(drawn.subplots(len(found), 2))
    for row, (title, runs) in zip(grid, found.items(), strict=True):
        shown = leaders(runs, target(title), len(COLOURS))
        by_name = {run["method"]: run for run in runs}
        for name, colour in zip(shown, COLOURS, strict=False):
            run = by_name[name]
            looks = np.array(run["looks"], float)
            style = {"color": colour, "label": run["method"], "lw": 1.6}
            line = "-" if run["ours"] else "--"
            later = looks[:, 1] > 0
            for axes, column in zip(row, (2, 3), strict=True):
                values = np.where(looks[:, column] > 0, looks[:, column], np.nan)
                axes.plot(looks[later, 1], values[later], line, **style)
        for axes, label in zip(row, ("relative gap", "‖XᵀBX − I‖"), strict=True):
            axes.set(xscale="log", yscale="log", xlabel="seconds", ylabel=label)
            axes.set_title(title)
            axes.grid(alpha=0.3)
        row[0].axhline(target(title), color="black", lw=0.8, ls=":")
        row[0].set_ylim(bottom=target(title) / 10, top=2)
        row[1].legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=90)
