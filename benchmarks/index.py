"""The commands, by the question that they answer, and the runs whose results are kept.

`QUESTIONS` is what ``python -m benchmarks`` lists. `JOBS` is what ``--all`` runs, in
that order: what is timed comes first, since it wants the machine for itself.
"""

from typing import NamedTuple


class Command(NamedTuple):
    """A command.

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


QUESTIONS: dict[str, dict[str, Command]] = {
    "does it stay feasible": {
        "sweep": Command(
            module="feasibility.sweep",
            answers="no step leaves the radius: optimisers, rates, noise, metrics",
            duration="20 minutes",
            result="results/feasibility/sweep.md",
        ),
        "precision": Command(
            module="feasibility.precision",
            answers="bf16 and f16 leaves and gradients, with and without copies",
            duration="3 minutes",
            result="results/feasibility/precision.md",
        ),
    },
    "does it converge as well": {
        "rivals": Command(
            module="rivals.command",
            answers="the rivals' own benchmarks: gap and feasibility against seconds",
            duration="25 minutes",
            result="results/rivals/rivals.md",
        ),
        "convergence": Command(
            module="convergence.command",
            answers="steps beside the step before; every optimiser; rates too large",
            duration="15 minutes",
            result="results/convergence/convergence.md",
        ),
    },
    "what does it cost": {
        "step": Command(
            module="cost.step",
            answers="one step, ours and the rivals'",
            duration="10 minutes",
            result="results/cost/step.md",
        ),
        "models": Command(
            module="cost.models",
            answers="a training step of five models, with and without the constraint",
            duration="8 minutes",
            result="results/cost/models.md",
        ),
    },
    "does it scale": {
        "growth": Command(
            module="scaling.growth",
            answers="growth with n, p, leaves and devices",
            duration="4 minutes",
            result="results/scaling/growth.md",
        ),
        "large-model": Command(
            module="scaling.large_model",
            answers="what a tensor-parallel model of 70B parameters would pay",
            duration="3 minutes",
            result="results/scaling/large_model.md",
        ),
    },
    "the paper's experiment": {
        "paper": Command(
            module="ocnn.paper",
            answers="nine methods on CIFAR: search, runs, times, figures and claims",
            duration="half an hour a data set",
            result="results/ocnn/*/report.md",
        ),
        "ocnn": Command(
            module="ocnn.train",
            answers="accuracy, sparsity, feasibility and time of every method",
            duration="a minute; hours on CIFAR",
            result="runs/ocnn/report.md",
        ),
        "search": Command(
            module="ocnn.search",
            answers="its initial learning rates",
            duration="hours",
            result="runs/search/rates.json",
        ),
        "report": Command(
            module="ocnn.report",
            answers="tables, figures and claims of a folder of runs",
            duration="seconds",
            result="report.md, report.json and figures in that folder",
        ),
    },
    "other tasks": {
        "solvers": Command(
            module="solvers.suite",
            answers="cdx.minimize against other solvers, problem by problem",
            duration="12 minutes with one seed",
            result="results/solvers/solvers.md",
        ),
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
    },
    "many processes": {
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
    },
}

COMMANDS = {
    name: command for group in QUESTIONS.values() for name, command in group.items()
}
"""All of them, by name."""


class Job(NamedTuple):
    """A run of a command whose result is kept.

    Attributes:
        command: A key of `COMMANDS`.
        result: The file of its records, inside of the results.
        arguments: What the command is given.
        quick: What it is given beside ``--quick``; None if it is left out then.
        part: What it depends on: a key of `fingerprint.PARTS` or, for what is trained
            and not timed, "moves".
        resumes: Whether it goes on after a kill, by ``--resume``.
        data: How the name of what it needs in the folder of data begins, if anything.
    """

    command: str
    result: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = ()
    part: str = "step"
    resumes: bool = False
    data: str | None = None

    @property
    def name(self) -> str:
        """How ``--only`` calls it."""
        return self.result.removesuffix(".json")


JOBS = (
    Job(command="step", result="cost/step.json"),
    Job(command="models", result="cost/models.json", resumes=True),
    Job(command="growth", result="scaling/growth.json", resumes=True),
    Job(command="rivals", result="rivals/rivals.json", resumes=True),
    Job(
        command="solvers",
        result="solvers/solvers.json",
        arguments=("--seeds", "0", "--seconds", "4"),
        part="solver",
        resumes=True,
    ),
    Job(command="large-model", result="scaling/large_model.json"),
    Job(command="precision", result="feasibility/precision.json", part="moves"),
    Job(
        command="convergence",
        result="convergence/convergence.json",
        part="moves",
        resumes=True,
    ),
    Job(command="sweep", result="feasibility/sweep.json", resumes=True),
    *(
        Job(
            command="paper",
            part="moves",
            result=f"ocnn/{name}/report.json",
            arguments=("--dataset", name, *more),
            quick=() if name == "digits" else None,
            resumes=True,
            data=data,
        )
        for name, data, more in (
            ("digits", None, ("--epochs", "30")),
            ("cifar10", "cifar-10-", ()),
            ("cifar100", "cifar-100", ("--epochs", "2")),
        )
    ),
    Job(
        command="muon",
        part="moves",
        result="muon/modular.json",
        arguments=("--task", "modular"),
        quick=None,
        resumes=True,
        data="cifar-10-",
    ),
    Job(
        command="muon",
        part="moves",
        result="muon/text.json",
        arguments=("--task", "text"),
        quick=("--task", "text", "--resume"),
        resumes=True,
    ),
    Job(
        command="muon",
        part="moves",
        result="muon/copying.json",
        arguments=("--task", "copying"),
        quick=("--task", "copying", "--resume"),
        resumes=True,
    ),
    Job(command="unitary", result="unitary/unitary.json", part="moves", resumes=True),
)
"""What is kept, in the order in which it is made."""
