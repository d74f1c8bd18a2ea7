"""The index: ``python -m benchmarks`` lists the commands, ``… NAME`` runs one."""

import importlib
import sys
from typing import NamedTuple

from benchmarks.shared.tables import table


class Command(NamedTuple):
    """A command of the index.

    Attributes:
        module: The module whose ``main`` it is, inside of `benchmarks`.
        answers: What it answers.
        duration: About how long it runs on two cores; with ``--quick``, which those
            that take minutes or more have, it is two minutes at most.
        result: What it writes.
    """

    module: str
    answers: str
    duration: str
    result: str


COMMANDS = {
    "muon": Command(
        module="muon.command",
        answers="Muon and its kind on constrained matrices, ours and the rivals’",
        duration="20 minutes a task",
        result="results/muon/modular.md",
    ),
    "unitary": Command(
        module="unitary.command",
        answers="unitary matrices: circuits, Procrustes, eigenvectors; the rivals'",
        duration="10 minutes",
        result="results/unitary/unitary.md",
    ),
    "ocnn": Command(
        module="ocnn.train",
        answers="the paper's experiment: every method, accuracy and sparsity",
        duration="a minute; hours on CIFAR",
        result="runs/ocnn/report.md; kept: results/ocnn/*/report.md",
    ),
    "search": Command(
        module="ocnn.search",
        answers="initial learning rates of the paper's experiment",
        duration="hours",
        result="runs/search/rates.json; kept: results/ocnn/*/search.md",
    ),
    "report": Command(
        module="ocnn.report",
        answers="tables, figures and claims of a folder of runs",
        duration="seconds",
        result="report.md, runs.json and figures in that folder",
    ),
    "sweep": Command(
        module="feasibility.sweep",
        answers="does it stay feasible: optimisers, rates, noise, dtypes, metrics",
        duration="an hour",
        result="results/feasibility/sweep.md",
    ),
    "precision": Command(
        module="feasibility.precision",
        answers="does it stay feasible in bf16 and f16, with and without copies",
        duration="minutes",
        result="results/feasibility/precision.md",
    ),
    "convergence": Command(
        module="convergence.command",
        answers="does it converge as well: five questions",
        duration="hours",
        result="results/convergence/convergence.md",
    ),
    "step": Command(
        module="cost.step",
        answers="what one step costs, ours and the rivals'",
        duration="minutes",
        result="results/cost/step.md",
    ),
    "products": Command(
        module="cost.products",
        answers="what a step costs over its bare matrix products",
        duration="minutes",
        result="results/cost/products.md",
    ),
    "training": Command(
        module="cost.training",
        answers="what a training step of VGG-19 costs, every method",
        duration="minutes",
        result="results/cost/training.md",
    ),
    "growth": Command(
        module="scaling.growth",
        answers="does it scale: with n, p, batch and leaves",
        duration="minutes",
        result="results/scaling/growth.md",
    ),
    "large-model": Command(
        module="scaling.large_model",
        answers="what a tensor-parallel model of 70B parameters would pay",
        duration="minutes",
        result="results/scaling/large_model.md",
    ),
    "distributed": Command(
        module="scaling.distributed",
        answers="one network trained in one process or in many",
        duration="seconds",
        result="runs/distributed/final.npz",
    ),
    "launch": Command(
        module="scaling.launch",
        answers="start a command as several JAX processes",
        duration="as the command",
        result="",
    ),
    "solvers": Command(
        module="solvers.suite",
        answers="cdx.minimize against other solvers, problem by problem",
        duration="hours",
        result="results/solvers/solvers.md",
    ),
}


def main() -> int | None:
    """Run the command that is named first, or list them all."""
    name, *arguments = sys.argv[1:] or ["--list"]
    if name in COMMANDS:
        module = importlib.import_module(f"benchmarks.{COMMANDS[name].module}")
        return module.main(arguments)
    if name not in ("--list", "--help", "-h"):
        print(f"python -m benchmarks: there is no {name}", file=sys.stderr)
        return 2
    rows = [(name, c.answers, c.duration, c.result) for name, c in COMMANDS.items()]
    print(table(("python -m benchmarks …", "answers", "duration", "result"), rows))
    return None


if __name__ == "__main__":
    sys.exit(main())
