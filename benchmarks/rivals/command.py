"""The rivals' own benchmarks: ``python -m benchmarks rivals``.

PCA and Procrustes as POGO and RSDM have them, the online PCA of landing, generalized
eigenvalues, and the sparse PCA of ManPG: the gap and the distance from the manifold
against seconds, for our methods and each rival, from the same start. Each method has
the best rate and momentum of one grid, chosen by one rule on a small problem of the
same kind, or the next best where a run with it is lost. A run is a file under
``--runs``, so that a stopped command goes on with ``--resume``.
"""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from benchmarks.rivals import packages, sparse
from benchmarks.rivals.methods import CONTENDERS
from benchmarks.rivals.problems import PROTOCOLS, Instance, Protocol
from benchmarks.rivals.report import figure, leaders, report
from benchmarks.rivals.running import lost, run, tune
from benchmarks.shared.fingerprint import of_part
from benchmarks.shared.results import (
    QUICK,
    RESULTS,
    environment,
    make_parser,
    write,
)

SOLVERS = ("proximal", "tangential")
"""The methods of `cdx.minimize` that are run."""

# From a name to a function that runs the method, and whether the method is ours.
Jobs = Iterator[tuple[str, Callable[[], dict[str, Any]], bool]]


TRIES = 3
"""How many settings of a method are tried before it counts as lost."""

SHOWN = ("constrain(sgd)", "POGO", "minimize, tangential", "pogo-torch")
"""The methods that are run where all is small."""


@functools.cache
def _small(make: Any, size: tuple[int, ...]) -> Instance:
    return make(*size)


_CHOSEN: dict[tuple[Any, ...], dict[str, Any]] = {}
"""The settings that were found, by method and small problem."""


def _chosen(name: str, protocol: Protocol, *, quick: bool) -> dict[str, Any]:
    """The setting of a method, found once for all sizes of a problem."""
    key = name, protocol.make, protocol.small, quick
    if key not in _CHOSEN:
        contender = CONTENDERS[name]
        if quick:
            middle = len(contender.settings) // 2
            contender = contender._replace(settings=contender.settings[middle:][:1])
        small = _small(protocol.make, protocol.small)
        _CHOSEN[key] = tune(contender, protocol, small)
    return _CHOSEN[key]


def jobs(
    protocol: Protocol, seconds: float, taken: dict[str, Any], *, quick: bool
) -> Jobs:
    """The runs on a problem; those in PyTorch have the setting of their twins.

    ``taken`` are the settings with which methods were run on it so far.
    """
    small = _small(protocol.make, protocol.small)
    instance = small if quick else protocol.make(*protocol.size)
    chosen = functools.partial(_chosen, protocol=protocol, quick=quick)

    def tuned(name):
        found, done = chosen(name), {}
        for attempt in found["tried"][:TRIES]:
            setting = attempt["setting"]
            done = run(CONTENDERS[name], instance, protocol, setting, seconds)
            if not lost(done["looks"]):
                break
        return {**done, "tried": found["tried"]}

    def again(name):
        twin = packages.TWINS[name]
        setting = taken[twin] if twin in taken else chosen(twin)["setting"]
        return packages.in_torch(name, instance, protocol, setting, seconds)

    for name, contender in CONTENDERS.items():
        if contender.fits(instance):
            yield name, functools.partial(tuned, name), contender.ours
    if instance.batch is None:
        for method in SOLVERS:
            solve = functools.partial(
                packages.minimized, method, instance, protocol, seconds
            )
            yield f"minimize, {method}", solve, True
    for name in packages.TWINS:
        if packages.fits(name, instance):
            yield name, functools.partial(again, name), False


def _file(folder: Path, title: str, name: str) -> Path:
    plain = "".join(c if c.isalnum() else "-" for c in f"{title}@{name}")
    return folder / f"{plain}.json"


def _kept(file: Path, settings: dict[str, Any], *, ours: bool) -> dict[str, Any] | None:
    """A run that is there, if it has these settings, and one of ours this code."""
    if not file.exists():
        return None
    found = json.loads(file.read_text("utf-8"))
    same = {**settings} if ours else {k: v for k, v in settings.items() if k != "code"}
    return found if same.items() <= found.items() else None


def _run_all(options, folder: Path) -> list[dict[str, Any]]:
    records = []
    folder.mkdir(parents=True, exist_ok=True)
    for title in (bar := tqdm(options.problem, disable=None)):
        protocol, taken = PROTOCOLS.get(title), {}
        double = protocol is None or protocol.double
        seconds = options.seconds * (1 if protocol is None else protocol.patience)
        with jax.enable_x64(new_val=double):
            if protocol is None:
                runs = sparse.runs(min(seconds, 10.0), quick=options.quick)
                found = ((name, job, name.startswith("cdx:")) for name, job in runs)
            else:
                found = jobs(protocol, seconds, taken, quick=options.quick)
            leading = _leading(protocol, records)
            for name, job, ours in found:
                if leading is not None and name not in leading:
                    continue
                if options.quick and protocol is not None and name not in SHOWN:
                    continue
                bar.set_description(f"{title}, {name}")
                settings = {"problem": title, "method": name, "ours": ours}
                solver = name.startswith(("minimize", "cdx:"))
                part = of_part("solver" if solver else "step")
                settings |= {"seconds": seconds, "code": part}
                file = _file(folder, title, name)
                record = _kept(file, settings, ours=ours) if options.resume else None
                if record is None:
                    record = {**settings, **job()}
                    unfinished = file.with_suffix(".part")
                    unfinished.write_text(json.dumps(record) + "\n", "utf-8")
                    unfinished.replace(file)
                records.append(record)
                taken[name] = record["setting"]
    return records


def _leading(protocol: Protocol | None, records: list[Any]) -> list[str] | None:
    """The methods to run where a smaller problem was run before; None for all."""
    if protocol is None or protocol.after is None:
        return None
    before = [record for record in records if record["problem"] == protocol.after]
    return leaders(before, protocol.gap) if before else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and write the report."""
    parser = make_parser("rivals", __doc__, RESULTS / "rivals")
    add = parser.add_argument
    titles = [*PROTOCOLS, sparse.TITLE]
    add("--problem", nargs="+", choices=titles, default=titles, metavar="NAME")
    add(
        "--seconds",
        type=float,
        default=12.0,
        help="for each method; five times if large",
    )
    add("--runs", type=Path, default=Path("runs/rivals"), help="folder of the runs")
    add("--resume", action="store_true", help="keep the runs that are there")
    options = parser.parse_args(arguments)
    folder = options.runs
    if options.quick:
        options.seconds, folder = 1.0, QUICK / "rivals" / "runs"
        options.problem = options.problem[:1] + options.problem[-1:]
    around = environment()
    result = {**around, "records": _run_all(options, folder), "quick": options.quick}
    figure(options.out / "rivals.png", result["records"])
    write(options.out, "rivals", result, report(result))
