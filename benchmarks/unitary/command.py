"""Unitary matrices, ours and the rivals': ``python -m benchmarks unitary``.

Procrustes, diagonalisation, a gate of three qubits as a circuit, and the ground state
of a chain of spins. The least value of each is known from SciPy. ``--tune`` tries the
grid of rates and times nothing; then the command itself runs every method at its rate,
for all seeds. Records are lines of JSON in the folder of ``--runs``, so that a stopped
command goes on with ``--resume``.
"""

from collections.abc import Sequence
from pathlib import Path

import jax
from tqdm import tqdm

from benchmarks.shared.results import (
    RESULTS,
    environment,
    make_parser,
    surroundings,
    write,
)
from benchmarks.shared.runs import Runs
from benchmarks.unitary.experiment import run_finals, tune
from benchmarks.unitary.problems import KINDS, SMALL
from benchmarks.unitary.report import figure, text_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and write the report."""
    parser = make_parser("unitary", __doc__, RESULTS / "unitary")
    add = parser.add_argument
    add("--only", nargs="+", choices=KINDS, default=list(KINDS), help="problems")
    add("--runs", type=Path, default=Path("runs/unitary"), help="folder of the records")
    add("--resume", action="store_true", help="keep the runs that are there")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--tune", action="store_true", help="try the rates, and no more")
    options = parser.parse_args(arguments)
    kinds, folder = KINDS, options.runs
    if options.quick:
        options.seeds, kinds, folder = options.seeds[:1], SMALL, folder / "quick"
        if options.out == RESULTS / "unitary":
            options.out = folder
    runs = Runs(folder / "unitary.jsonl")
    if runs.records and not options.resume:
        parser.exit(2, f"{parser.prog}: {runs.path} holds runs: add --resume\n")
    around = environment()
    # The runs of a report may come from several calls, each with a load of its own.
    del around["load"]
    with jax.enable_x64(new_val=True):
        for name in tqdm(options.only, disable=None):
            tune(runs, name, kinds[name], options.seeds[0])
            if not options.tune:
                run_finals(runs, name, kinds[name], options.seeds)
    if options.tune:
        return
    figure(options.out / "unitary.png", kinds, runs)
    result = {**around, "records": runs.records}
    body = f"{text_of(kinds, runs, options.seeds)}\n\n{surroundings(around)}"
    write(options.out, "unitary", result, body)
