"""Try to drive the guarded step off the manifold: ``python -m benchmarks sweep``.

`constrain` runs with many optimisers at learning rates and noises no one would choose,
and beside it, on the small shapes, run the wrappers that promise less. The results have
the counts, ``runs/sweep.jsonl`` has every setting.
"""

import json
import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks.feasibility.odd import ODD
from benchmarks.feasibility.simulation import RADIUS, Case, allowance, simulate
from benchmarks.shared.fingerprint import of_part
from benchmarks.shared.haste import make_haste
from benchmarks.shared.methods import OPTIMISERS
from benchmarks.shared.results import (
    QUICK,
    RESULTS,
    environment,
    make_parser,
    surroundings,
    write,
)
from benchmarks.shared.tables import table

RATES = tuple(10.0**k for k in range(-4, 3))
NOISES = (0.0, 0.1, 10.0)
DTYPES = ("bfloat16", "float32", "float64")
METRICS = ("stiefel", "generalized")
SEED = 0
RIVALS = (
    "Algorithm 1, β = 0.1",
    "Algorithm 1, β = auto, guarded",
    "Algorithm 1, β = auto",
    "restore_feasibility",
)
COMPARED = ("constrain", *RIVALS, "unconstrained")

Rows = list[dict[str, Any]]


class Plan(NamedTuple):
    """How much is done with a shape: less where a step takes long."""

    steps: int
    rates: tuple[float, ...] = RATES
    noises: tuple[float, ...] = NOISES
    dtypes: tuple[str, ...] = DTYPES


SHAPES = {
    (8, 8): Plan(steps=40),
    (64, 16): Plan(steps=40),
    (100, 16, 8): Plan(steps=15),
    (4096, 64): Plan(steps=3, noises=NOISES[::2], dtypes=DTYPES[:2]),
    (512, 512): Plan(
        steps=2, rates=RATES[::3], noises=NOISES[::2], dtypes=("float32",)
    ),
}
SMALL = ((8, 8), (64, 16), (100, 16, 8))
ALONE = ("lbfgs", "lookahead")
GROUPS = (
    tuple(n for n in OPTIMISERS if n not in ALONE),
    *((n,) for n in ALONE),
    tuple(ODD),
)


def cases(*, quick: bool = False) -> list[tuple[Case, Plan]]:
    """All programs, the dear ones last; with ``quick``, a few of one small shape."""
    shapes = SMALL[:1] if quick else tuple(SHAPES)
    dtypes = ("float32",) if quick else DTYPES
    groups = (("momentum", "adam"), tuple(ODD)) if quick else GROUPS
    kinds = [
        Case(wrapper=wrapper, optimisers=group, dtype=dtype, shape=shape, metric=metric)
        for shape in shapes
        for wrapper in COMPARED
        for dtype in dtypes
        if dtype in SHAPES[shape].dtypes
        for metric in METRICS
        for group in groups
        if wrapper == "constrain"
        or (
            shape in SMALL
            and (dtype, metric) == ("float32", "stiefel")
            and group != tuple(ODD)
        )
    ]
    return [(c, Plan(steps=10) if quick else SHAPES[c.shape]) for c in kinds]


def run(case: Case, plan: Plan) -> Rows:
    """Run one program, and return a row for each of its settings."""
    seen = simulate(case, plan.steps, plan.rates, plan.noises, SEED)
    return [
        {
            **case._asdict(),
            "optimisers": optimiser,
            "rate": rate,
            "noise": noise,
            "steps": plan.steps,
            "allowance": allowance(case),
            # JSON knows neither NaN nor infinity.
            **{
                name: float(f"{v[i, j, k]:.6g}") if math.isfinite(v[i, j, k]) else None
                for name, v in seen.items()
            },
        }
        for i, optimiser in enumerate(case.optimisers)
        for j, rate in enumerate(plan.rates)
        for k, noise in enumerate(plan.noises)
    ]


def violated(row: dict[str, Any]) -> bool:
    """Whether the guarded step passed its radius by more than rounding."""
    return not row["finite"] or row["spectral"] > RADIUS + row["allowance"]


def escaped(row: dict[str, Any]) -> bool:
    """Whether a run left Ω₁: ‖xᵀx − I‖_F > 1, or entries that are not finite."""
    return not row["finite"] or row["frobenius"] is None or row["frobenius"] > 1


def survivors(rows: Rows, *, first: bool) -> set[tuple[Any, ...]]:
    """The settings whose learning rate the unconstrained optimiser survives.

    It is run without the constraint, on the same loss, from the same start and with the
    same noise, and survives if its loss is never above the start's, but for rounding.
    With ``first``, its first step alone, along the projected gradient, must also end in
    Ω_{1/2}: the start is on the manifold, so β multiplies zero in that step, and no β
    can change it.
    """
    return {
        _setting(row)
        for row in rows
        if row["wrapper"] == "unconstrained"
        and not row["rose"]
        and not (first and (row["first"] is None or row["first"] > 0.5))
    }


def _setting(row):
    return (row["optimisers"], tuple(row["shape"]), row["rate"], row["noise"])


def summary(rows: Rows) -> dict[str, Any]:
    """Count everything that the tables show."""
    guarded = [row for row in rows if row["wrapper"] == "constrain"]
    return {
        **environment(),
        "seed": SEED,
        "radius": RADIUS,
        "plans": {str(shape): plan._asdict() for shape, plan in SHAPES.items()},
        "settings": len(guarded),
        "steps": sum(row["steps"] for row in guarded),
        "violations": [row for row in guarded if violated(row)],
        "above the radius, rounding included": sum(
            row["spectral"] is None or row["spectral"] > RADIUS for row in guarded
        ),
        "settings with a leaf that is not finite": sum(
            not row["finite"] for row in guarded
        ),
        "updates dropped as not finite": sum(row["dropped"] for row in guarded),
        "worst": [
            _worst([r for r in guarded if (r["dtype"], r["metric"]) == (dtype, metric)])
            | {"dtype": dtype, "metric": metric}
            for dtype in DTYPES
            for metric in METRICS
        ],
        "shortened": {
            name: _shares([r for r in guarded if r["optimisers"] == name])
            for name in dict.fromkeys(row["optimisers"] for row in guarded)
        },
        "escapes": [_escapes(rows, name) for name in ("constrain", *RIVALS)],
    }


def _worst(rows):
    return {
        "settings": len(rows),
        "steps": sum(row["steps"] for row in rows),
        "residual": max((row["spectral"] for row in rows), default=0.0),
        "allowance": max((row["allowance"] for row in rows), default=0.0),
        "violations": sum(map(violated, rows)),
    }


def _shares(rows):
    def share(name, some):
        steps = sum(row["steps"] for row in some)
        return sum(row[name] for row in some) / steps if steps else 0.0

    by_rate = {f"{r:g}": [row for row in rows if row["rate"] == r] for r in RATES}
    shortened = {rate: share("shortened", some) for rate, some in by_rate.items()}
    return shortened | {
        "all": share("shortened", rows),
        "long steps": share("long", rows),
    }


def _escapes(rows, wrapper):
    """Over the shapes, dtype and metric that all wrappers were run with."""
    mine = [
        row
        for row in rows
        if row["wrapper"] == wrapper
        and tuple(row["shape"]) in SMALL
        and (row["dtype"], row["metric"]) == ("float32", "stiefel")
        and row["optimisers"] not in ODD
    ]

    def count(chosen=None):
        some = [row for row in mine if chosen is None or _setting(row) in chosen]
        return {"settings": len(some), "escapes": sum(map(escaped, some))}

    loss, both = survivors(rows, first=False), survivors(rows, first=True)
    return {
        "wrapper": wrapper,
        "all": count(),
        "loss survives": count(loss),
        "loss and first step survive": count(both),
        "which": [
            list(_setting(row))
            for row in mine
            if _setting(row) in both and escaped(row)
        ],
    }


_TEXT = """\
# The hostile sweep

`constrain` at radius {radius}, over optimisers, learning rates, noises, dtypes, shapes
and metrics; and over updates that no optimiser proposes: −x and −2x, what is normal to
the manifold, and what is of low rank, which are times the learning rate too.

{totals}

The worst ‖XᵀBX − I‖₂ of any iterate, and what rounding may add to the radius:

{worst}

The share of steps of which a fraction was taken, by learning rate; and that of long
steps:

{shortened}

How often each wrapper leaves Ω₁, in float32 on the small shapes: of all settings; of
those where the unconstrained optimiser's loss never rises above the start's; and of
those where, besides, its first step along the projected gradient ends in Ω_(1/2). The
start is on the manifold, so no β could change that step: with `dissolve_gradients`
alone, other settings are lost whatever it is. Guarded means `keep_feasible` behind the
optimiser.

{escapes}

{around}
"""


def tables(counts: dict[str, Any]) -> str:
    """Lay the counts out in Markdown."""
    totals = [
        ("settings", counts["settings"]),
        ("steps", counts["steps"]),
        ("violations of the radius", len(counts["violations"])),
        *((name, f"{v:g}") for name, v in counts.items() if " " in name),
    ]
    columns = ("dtype", "metric", "settings", "steps", "violations")
    sizes = ("residual", "allowance")
    worst = [
        [*(w[c] for c in columns), *(f"{w[c]:.2g}" for c in sizes)]
        for w in counts["worst"]
        if w["settings"]
    ]
    shares = (*(f"{rate:g}" for rate in RATES), "all", "long steps")
    shortened = [
        [name, *(f"{row[key]:.0%}" for key in shares)]
        for name, row in counts["shortened"].items()
    ]
    escapes = [
        [e["wrapper"], *(_of(v) for v in e.values() if isinstance(v, dict))]
        for e in counts["escapes"]
    ]
    groups = [k for k, v in counts["escapes"][0].items() if isinstance(v, dict)]
    return _TEXT.format(
        radius=RADIUS,
        totals=table(("", "count"), totals),
        worst=table((*columns, *sizes), worst),
        shortened=table(("optimiser", *shares), shortened),
        escapes=table(("wrapper", *groups), escapes),
        around=surroundings(counts),
    )


def _of(count):
    n, k = count["settings"], count["escapes"]
    return f"{k} of {n} ({k / n:.1%})" if n else "none"


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is not yet done, and write the tables.

    Args:
        argv: The command line after the program's name; the process's own if None.
    """
    parser = make_parser("sweep", __doc__, RESULTS / "feasibility")
    add = parser.add_argument
    add("--records", type=Path, help="every setting (runs/sweep.jsonl)")
    add("--resume", action="store_true", help="skip what was recorded with this step")
    add("--jobs", type=int, default=2, help="programs at a time")
    options = parser.parse_args(argv)
    # Nothing is timed, and most of the time is compilation.
    make_haste()
    usual = QUICK if options.quick else Path("runs")
    records: Path = options.records or usual / "sweep.jsonl"
    records.parent.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        records.unlink(missing_ok=True)
    records.touch()
    step = of_part("step")
    lines = [json.loads(line) for line in records.read_text("utf-8").splitlines()]
    done = [entry for entry in lines if entry.get("step") == step]
    keys = {json.dumps(entry["program"]) for entry in done}
    rows = [row for entry in done for row in entry["rows"]]
    items = [i for i in cases(quick=options.quick) if json.dumps(i) not in keys]

    # Compiling keeps one core busy, so two programs at a time; JAX must not be forked.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn) as pool:
        jobs = {pool.submit(run, *item): item for item in items}
        try:
            bar = tqdm(as_completed(jobs), total=len(items), unit="program")
            for job in bar:
                entry = {"step": step, "program": jobs[job], "rows": job.result()}
                rows += entry["rows"]
                with records.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
        finally:
            # After an error, or the pool would run the rest and no one take it.
            pool.shutdown(cancel_futures=True)
    counts = summary(rows)
    write(options.out, "sweep", counts, tables(counts))
