"""Tables and figures of a folder of runs: ``python -m benchmarks.ocnn.report DIR``."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import figures
from benchmarks.ocnn.claims import verdicts
from benchmarks.ocnn.groups import Group, find_groups
from benchmarks.ocnn.measuring import SAMPLE, ZERO
from benchmarks.shared.methods import METHODS
from benchmarks.ocnn.runs import FolderError, read_configuration

LEGEND = f"""\
φ is the mean cross-entropy over the training examples, {SAMPLE} of them at most.
Accuracy and φ are those of the network at the point where the method takes its
gradients: A(X) for those on h. Sparsity is the share of trainable entries with
|w| < {ZERO:.0e}, and exact zeros are the share with w = 0: a subgradient step leaves
entries hovering round zero, at a distance that falls with the learning rate.
Feasibility is the largest ‖XᵀX − I‖_F of the kernels that the constrained methods keep
orthonormal, of X and of A(X). Times are those of training steps, without compilation
and without the evaluation after each epoch; the time of a step is the median. After
each ± is the standard deviation over seeds. Runs that diverged, to infinity or NaN, are
counted beside the name and enter no figure."""


def target(found: Sequence[Group]) -> float:
    """An accuracy that most methods reach: nine tenths of the best mean."""
    return 0.9 * max(float(g.last("test_accuracy").mean()) for g in found)


def table(found: Sequence[Group], accuracy: float) -> Iterator[str]:
    """The last epoch of each method, in Markdown."""
    header = (
        "method",
        "minimises",
        "η₀",
        "seeds",
        "test accuracy, %",
        "φ",
        "φ + γ‖w‖₁",
        "sparsity, %",
        "exact zeros, %",
        "‖XᵀX − I‖",
        "of A(X)",
        "ms a step",
        f"s to {100 * accuracy:.0f} %",
        "compile, s",
    )
    rows: list[tuple[str, ...]] = [header]
    for group in found:
        settings = group.runs[0].settings
        compiling = np.mean([run.settings["compile_seconds"] for run in group.runs])
        rows.append(
            (
                group.label,
                METHODS[group.name].minimises,
                f"{settings['learning_rate']:g}",
                str(len(group.runs)),
                _spread(100 * group.last("test_accuracy"), ".2f"),
                _spread(group.last("train_loss"), ".3g"),
                _spread(group.last("objective"), ".3g"),
                _spread(100 * group.last("sparsity"), ".1f"),
                _spread(100 * group.last("exact_zeros"), ".1f"),
                f"{group.last('feasibility').max():.1e}",
                f"{group.last('dissolved').max():.1e}",
                f"{1000 * group.last('step_seconds').mean():.3g}",
                _spread(group.seconds_to(accuracy), ".3g"),
                f"{compiling:.1f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    yield lines[0]
    yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    yield from lines[1:]


def _spread(values, form):
    if np.isnan(values).any():
        return "—"
    text = f"{values.mean():{form}}"
    return text if len(values) == 1 else f"{text} ± {values.std(ddof=1):.1g}"


def title(configuration: dict[str, Any]) -> str:
    """What was trained, in a line."""
    width = configuration["width"]
    vgg = configuration["model"].startswith("vgg") and width != 1
    examples = configuration["examples"]
    return (
        f"{configuration['model']}{f' of width {width:g}' if vgg else ''} on "
        f"{f'{examples} images of ' if examples else ''}{configuration['dataset']}, "
        f"batches of {configuration['batch_size']}, γ = {configuration['gamma']:g}, "
        f"β = {configuration['beta']:g}"
    )


def summary(folder: Path, accuracy: float | None = None) -> str:
    """The table, with what is needed to read it."""
    content, found = read_configuration(folder), find_groups(folder)
    if not found:
        raise FolderError(f"{folder} holds no records yet")
    configuration = content["configuration"]
    accuracy = target(found) if accuracy is None else accuracy
    versions = ", ".join(f"{k} {v}" for k, v in content["versions"].items())
    epochs = max(len(records) - 1 for g in found for records in g.records)
    lines = [
        f"# {title(configuration)}",
        "",
        f"After {epochs} epochs of {configuration['epochs']}; learning rate by the "
        f"schedule “{configuration['schedule']}”; {versions}.",
        "",
        *table(found, accuracy),
        "",
        LEGEND,
        "",
        *verdicts(found),
    ]
    return "\n".join(lines) + "\n"


def write(folder: Path, accuracy: float | None = None) -> None:
    """Write the table and the figures into the folder.

    Raises:
        FolderError: If it is no folder of runs, or has no records.
    """
    text = summary(folder, accuracy)
    found = find_groups(folder)
    heading = title(read_configuration(folder)["configuration"])
    figures.curves(folder / "curves.png", heading, found)
    figures.feasibility(folder / "feasibility.png", heading, found)
    images = "![](curves.png)\n\n![](feasibility.png)\n"
    (folder / "report.md").write_text(f"{text}\n{images}", "utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Write the report, and print the table.

    Args:
        argv: The command line after the program's name; the process's own if None.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ocnn.report", description="Report on a folder of runs."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--accuracy", type=float, help="time to reach this one (0 to 1)"
    )
    options = parser.parse_args(argv)
    try:
        write(options.folder, options.accuracy)
    except FolderError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(summary(options.folder, options.accuracy))


if __name__ == "__main__":
    main()
