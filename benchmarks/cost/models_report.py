"""The tables, the sentences and the figure of `benchmarks.cost.models`."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.figures import blank
from benchmarks.shared.results import surroundings
from benchmarks.shared.tables import table

PLAIN = {"constrain(adam)": "Adam"}
"""What a method is compared with; the others are compared with SGD."""

POLAR = "R-sgd, polar"


def ms(seconds: float) -> str:
    """Milliseconds with three digits, and never a power of ten."""
    taken = 1e3 * seconds
    return f"{taken:.0f}" if taken >= 100 else f"{taken:.3g}"


def added(record: dict[str, Any], name: str) -> float:
    """The seconds that a method adds to the update of its optimiser."""
    updates = record["updates"]
    return updates[name]["seconds"] - updates[PLAIN.get(name, "SGD")]["seconds"]


def _methods(record):
    return [name for name in record["updates"] if name not in ("Adam", "SGD")]


def _whole(records) -> str:
    rows = []
    for name, record in records.items():
        plain, ours = (record["whole"][k] for k in ("Adam", "constrain(adam)"))
        long, steps = ours["long"]
        rows.append(
            [
                *(name, f"{record['parameters'] / 1e6:.1f}", record["constrained"]),
                *(ms(r["seconds"]) for r in (plain, ours)),
                f"{ours['seconds'] / plain['seconds']:.2f}",
                *(f"{r['compile']:.3g}" for r in (plain, ours)),
                *(f"{r['peak'] / 1e6:.4g}" for r in (plain, ours)),
                f"{long} of {steps}",
            ]
        )
    pairs = [
        f"{what}, {kind}"
        for what in ("ms a step", "s to compile", "peak MB")
        for kind in ("Adam", "constrain(adam)")
    ]
    header = ("model", "million parameters", "kernels", *pairs[:2], "ratio", *pairs[2:])
    return table((*header, "long steps"), rows)


def _added(records) -> str:
    names = _methods(next(iter(records.values())))
    rows = [
        [name, *(ms(added(record, method)) for method in names)]
        for name, record in records.items()
    ]
    return table(("ms added to the update", *names), rows)


def _details(records) -> str:
    rows = [
        [
            *(model, name, ms(row["seconds"]), f"{row['compile']:.2f}"),
            *(f"{row[key] / 1e6:.4g}" for key in ("state", "temporary")),
            f"{record['feasibility'][name]:.1e}",
            "" if row["long"] is None else "{} of {}".format(*row["long"]),
        ]
        for model, record in records.items()
        for name, row in record["updates"].items()
    ]
    heads = (
        "ms",
        "s to compile",
        "state MB",
        "temporary MB",
        "‖XᵀX − I‖",
        "long steps",
    )
    return table(("model", "update", *heads), rows)


def against_polar(records: dict[str, Any]) -> str:
    """What `constrain(adam)` adds to VGG-19, against a polar retraction."""
    if "VGG-19" not in records:
        return ""
    record = records["VGG-19"]
    ours, polar = (added(record, name) for name in ("constrain(adam)", POLAR))
    long, steps = record["updates"]["constrain(adam)"]["long"]
    holds = "no more" if ours <= polar / 2 else "more"
    return (
        f"On VGG-19 `constrain(adam)` adds {ms(ours)} ms to an update, {POLAR} "
        f"{ms(polar)} ms: {ours / polar:.1%}, {holds} than half. Of the steps of "
        f"its kernels {long} of {steps} were long ones."
    )


def _paper(records) -> list[str]:
    """The methods of the paper's experiment, where they were timed."""
    parts = []
    for model, record in records.items():
        if "paper" in record:
            rows = [
                [name, ms(row["seconds"]), f"{row['compile']:.2f}"]
                for name, row in record["paper"].items()
            ]
            parts += [
                f"The methods of the paper's experiment on the {model} at its full "
                "width: a step without the gradient, that is where the gradient is "
                "taken and what is done with it, at the rate 0.01, or 0.001 for those "
                "that scale every entry.",
                table(("method", "ms", "s to compile"), rows),
            ]
    return parts


def report(result: dict[str, Any]) -> str:
    """The whole report in Markdown."""
    records = result["records"]
    about = [[name, record["about"]] for name, record in records.items()]
    parts = [
        "A training step of five models in float32 on random data, buffers donated, "
        "from the start of a training without a warm-up. Peak memory is what XLA "
        "planned: arguments, temporaries and outputs, less the outputs that reuse "
        "arguments. A long step is one that takes the rarer, more costly branch, each "
        f"kernel counted. Medians of up to {result['repeats']} turns. "
        f"{surroundings(result)}",
        table(("model", ""), about),
        "Whole steps, with and without the constraint:",
        _whole(records),
        "What each method adds to the update of the optimiser that it holds to the "
        "manifold, Adam for `constrain(adam)` and SGD for the others. The model's own "
        "part is the same for all.",
        _added(records),
        against_polar(records),
        *_paper(records),
        "![](models.png)",
        "Updates alone, on the gradients of three batches in turn; the state is the "
        "optimiser's, the temporaries those of the update. The distance from the "
        "manifold is the largest of any kernel, where the steps have led:",
        _details(records),
    ]
    return "\n\n".join(part for part in parts if part)


def figure(path: Path, records: dict[str, Any]) -> None:
    """Draw what each method adds to the update of each model."""
    names = _methods(next(iter(records.values())))
    drawn = blank(9, 4.5)
    axes = drawn.subplots()
    places = np.arange(len(records))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        taken = [max(1e3 * added(record, name), 1e-3) for record in records.values()]
        ours = name.startswith("constrain")
        axes.bar(
            places + (i - (len(names) - 1) / 2) * width,
            taken,
            width,
            label=name,
            hatch=None if ours else "//",
            alpha=1.0 if ours else 0.6,
        )
    axes.set(yscale="log", ylabel="added to an update (ms)")
    axes.set_xticks(places, list(records))
    axes.grid(alpha=0.3, axis="y")
    axes.legend(ncols=3, fontsize="small")
    drawn.savefig(path, dpi=100)
