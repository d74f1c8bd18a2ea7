"""Solvers against each other: ``python -m benchmarks solvers``.

Every problem of `SUITE`, every method that is made for it, several seeds: ours through
`cdx.minimize`, the rivals through a driver that times them in the same way, and the
packages pymanopt and pystop where they are installed. All start from the same point and
are given the same seconds. A run is a file in the folder, so that a stopped suite goes
on with ``--resume``; `report` makes tables and figures of them, and gathers them in one
file.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.shared.data import DataError
from benchmarks.shared.problems import REAL, SUITE, Problem
from benchmarks.shared.results import RESULTS, environment, make_parser
from benchmarks.shared.timing import alone
from benchmarks.solvers import report
from benchmarks.solvers.driving import Record, Trace, in_turns, run
from benchmarks.solvers.rivals import PACKAGES, RIVALS
from benchmarks.solvers.rivals.riemannian_subgradient import riemannian_subgradient
from benchmarks.solvers.starts import after, from_lowest
from benchmarks.solvers.stationarity import stationarity

STEPS = 50_000
ZERO = 1e-5
# How many steps a rival takes between two looks: as many as `cdx.minimize` at least.
EVERY = 10
# The stepsizes between which the subgradient method of the literature may choose.
SIZES, DECAYS = (0.03, 0.1, 0.3), (0.9, 0.97, 0.99, 0.997)

Runner = Callable[[Problem, float], Trace]


def ours(problem: Problem) -> Iterator[str]:
    """The methods of `cdx.minimize` that are made for a problem."""
    if problem.regularizer is not None:
        yield from ("proximal", "continuation")
        return
    kinks = ("auto", "geometric", "lbfgs")
    smooth = ("proximal", "tangential", "lbfgs", "newton")
    yield from smooth if problem.smooth else kinks


@alone
def minimized(method: str, problem: Problem, seconds: float) -> Trace:
    """A run of `cdx.minimize` as a trace: its second call, compiled by the first."""

    def f(x):
        # Another function for each method, so that each is compiled by itself.
        return problem.f(x)

    def solve(start, look=lambda _: None):
        def callback(info):
            look(info)
            return info.seconds > seconds

        return cdx.minimize(
            f,
            start,
            problem.mask,
            method=method,
            regularizer=problem.regularizer,
            tol=1e-9,
            max_steps=STEPS,
            callback=callback,
        )

    compile_seconds = solve(problem.start).compile_seconds
    if problem.starts > 1:
        problem = from_lowest(lambda x: solve(x).params, problem)

    def call():
        began, looks = time.perf_counter(), {}

        def look(info):
            looks[info.step] = time.perf_counter() - began - info.seconds

        result = solve(problem.start, look)
        return result, _times(result.history, looks)

    result, times = call()
    history = result.history
    spent, walls = map(list, zip(*times, strict=True))
    columns = (history.step, spent, history.value, history.feasibility)
    records = [
        Record(
            step=int(step),
            seconds=seconds,
            value=float(value),
            projected_value=math.nan,
            feasibility=float(off),
        )
        for step, seconds, value, off in zip(*columns, strict=True)
    ]
    projected = float(problem.value(result.projected))
    records[-1] = records[-1]._replace(projected_value=projected)
    return Trace(
        x=result.params,
        projected=result.projected,
        records=records,
        compile_seconds=compile_seconds,
        walls=walls,
        again=lambda: call()[1],
    )


def _times(history, looks):
    """The seconds of each record, of its steps and since the call.

    Args:
        history: The history of the run.
        looks: By step, how much later than the seconds of steps a look was.
    """
    later, times = max(looks.values(), default=0.0), []
    rows = zip(history.step[::-1], history.seconds[::-1], strict=True)
    for step, seconds in rows:
        later = looks.get(int(step), later)
        times.append((float(seconds), float(seconds) + later))
    return times[::-1]


def driven(solver: Any, every: int, problem: Problem, seconds: float) -> Trace:
    """A run of a rival, until it no longer changes."""
    if problem.starts > 1:
        problem = from_lowest(after(solver, problem), problem)
    last: list[float] = []

    def settled(record: Record) -> bool:
        last.append(record.value)
        recent = last[-20:]
        return len(recent) == 20 and np.ptp(recent) <= 1e-13 * abs(recent[-1])

    return run(solver, problem, steps=STEPS, every=every, seconds=seconds, stop=settled)


def runners(problem: Problem, most: float) -> Iterator[tuple[str, Runner]]:
    """Each method that is made for a problem, by name; ours begin with ``cdx:``."""
    for name in ours(problem):
        yield f"cdx:{name}", partial(minimized, name)
    for name, solver in RIVALS.items():
        if not solver.applies(problem) or not _fits(name, problem):
            continue
        if name == "riemannian-subgradient-geometric":
            yield name, partial(_tuned, most)
        else:
            yield name, partial(driven, solver, EVERY)
    for name, package in PACKAGES.items():
        if package.installed() and package.applies(problem):

            def run_package(problem, seconds, package=package):
                return package.run(problem, steps=STEPS, every=1, seconds=seconds)

            yield name, run_package


def _fits(name, problem):
    """Subgradients are for what has no better structure, and the reverse."""
    kinks = problem.regularizer is None and not problem.smooth
    return ("subgradient" in name) == kinks or problem.regularizer is not None


def _tuned(most, problem, seconds):
    """The subgradient method with the stepsizes that lead lowest, of a grid."""
    found = []
    # As many runs as others have starts.
    alone = problem._replace(starts=1)
    for size in SIZES:
        for decay in DECAYS:
            solver = riemannian_subgradient(size, decay=decay)
            found.append(driven(solver, EVERY, alone, min(seconds, most)))
    sound = [trace for trace in found if not trace.diverged] or found
    return min(sound, key=lambda trace: trace.records[-1].projected_value)


def measured(problem: Problem, trace: Trace) -> dict[str, Any]:
    """What is kept of a run."""
    entries = np.abs(np.asarray(trace.projected))
    last = trace.records[-1]
    error = None
    if problem.error is not None and not trace.diverged:
        error = float(problem.error(trace.projected))
    return {
        "value": last.value,
        "projected_value": last.projected_value,
        "feasibility": last.feasibility,
        "projected_feasibility": _off(problem, trace.projected),
        "worst_feasibility": max(r.feasibility for r in trace.records),
        "stationarity": (
            math.nan if trace.diverged else stationarity(problem, trace.projected)
        ),
        "sparsity": float(np.mean(entries < ZERO)),
        "steps": last.step,
        "compile_seconds": trace.compile_seconds,
        "best_known": problem.best,
        "error": error,
        "regular": problem.regularizer is not None,
        "smooth": problem.smooth,
        "course": _course(trace),
    }


def _off(problem, x):
    (found,) = cdx.feasibility(x, problem.mask).values()
    return float(found)


def _course(trace, most=200):
    """Of some records the step, the seconds of steps, the value and the wall time."""
    walls = trace.walls or [record.seconds for record in trace.records]
    kept = np.unique(np.geomspace(1, len(walls), most).astype(int) - 1)
    rows = [(trace.records[i], walls[i]) for i in kept]
    return [[r.step, r.seconds, r.value, wall] for r, wall in rows]


def problems(
    data: Path | None, names: Sequence[str] | None
) -> dict[str, Callable[[int], Problem]]:
    """Those asked for, or all; those of real data only where there is a folder."""
    known: dict[str, Callable[[int], Problem]] = dict(SUITE)
    if data is not None:
        known |= {name: partial(make, data) for name, make in REAL.items()}
    return known if names is None else {name: known[name] for name in names}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and write the report."""
    parser = make_parser("solvers", __doc__, RESULTS / "solvers")
    add = parser.add_argument
    add("--problem", nargs="+", choices=[*SUITE, *REAL], metavar="NAME")
    add("--data", type=Path, help="folder of the real data; without, they are left out")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--seconds", type=float, default=10.0, help="for each run of a rival (10)")
    add("--resume", action="store_true", help="keep the runs that are there")
    options = parser.parse_args(arguments)
    if options.quick:
        quick = {"problem": ["compressed modes"], "seeds": [0], "seconds": 0.5}
        vars(options).update(quick)
    if options.problem and set(options.problem) & set(REAL) and options.data is None:
        parser.exit(2, f"{parser.prog}: --data is needed for {', '.join(REAL)}\n")
    folder = options.out / "runs"
    if any(folder.glob("*.json")) and not options.resume:
        parser.exit(2, f"{parser.prog}: {folder} holds runs: add --resume\n")
    chosen = problems(options.data, options.problem)
    with jax.enable_x64(new_val=True):
        try:
            # What is missing should be missed now, not in an hour.
            for name in set(chosen) & set(REAL):
                chosen[name](options.seeds[0])
        except DataError as error:
            parser.exit(2, f"{parser.prog}: {error}\n")
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(environment(), indent=1) + "\n"
        (folder / report.ENVIRONMENT).write_text(text)
        _run_all(options, chosen, folder)
    report.write(options.out)


def _run_all(options, chosen, folder):
    for seed in options.seeds:
        for title, make in (bar := tqdm(chosen.items(), disable=None)):
            bar.set_description(f"{title}, seed {seed}")
            problem = make(seed)
            chosen_runners = dict(runners(problem, options.seconds / 4))
            files = {
                name: folder / f"{title}@{name.replace(':', '-')}@{seed}.json"
                for name in chosen_runners
            }
            # All methods of a problem are timed in turns, so they are run together.
            if all(file.exists() for file in files.values()):
                continue
            traces = {
                name: runner(problem, options.seconds)
                for name, runner in chosen_runners.items()
            }
            for name, trace in in_turns(traces).items():
                content = {"problem": title, "method": name, "seed": seed}
                content |= measured(problem, trace)
                part = files[name].with_suffix(".part")
                part.write_text(json.dumps(content) + "\n")
                part.replace(files[name])
