"""Tables and figures of a folder of runs: ``python -m benchmarks report DIR``."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ocnn import figures
from benchmarks.ocnn.claims import verdicts
from benchmarks.ocnn.groups import Group, find_groups, gather, write_gathered
from benchmarks.ocnn.measuring import SAMPLE, ZERO
from benchmarks.ocnn.runs import FolderError
from benchmarks.shared.methods import METHODS
from benchmarks.shared.results import in_words, surroundings
from benchmarks.shared.tables import table

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


def rows(found: Sequence[Group], accuracy: float) -> Iterator[Sequence[str]]:
    """The last epoch of each method, under a header."""
    yield (
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
    for group in found:
        compiling = np.mean([run["compile_seconds"] for run in group.settings])
        yield (
            group.label,
            METHODS[group.name].minimises,
            f"{group.settings[0]['learning_rate']:g}",
            str(len(group.records)),
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


def summary(content: dict[str, Any], accuracy: float | None = None) -> str:
    """The table, with what is needed to read it.

    Args:
        content: What `gather` has returned.
        accuracy: Methods are timed until they reach this one; None for `target`.
    """
    found, configuration = find_groups(content), content["configuration"]
    header, *cells = rows(found, target(found) if accuracy is None else accuracy)
    epochs = max(len(records) - 1 for g in found for records in g.records)
    return "\n".join(
        [
            f"# {title(configuration)}",
            "",
            f"After {epochs} epochs of {configuration['epochs']}; learning rate by the "
            f"schedule “{configuration['schedule']}”. {surroundings(content)}",
            "",
            table(header, cells),
            "",
            LEGEND,
            *_more(content),
            "",
            verdicts(found, content.get("timing", {}).get("seconds")),
        ]
    )


def _more(content: dict[str, Any]) -> list[str]:
    """What is said of γ and of the time of a step, where more than usual is known."""
    parts = []
    if "search" in content:
        parts += ["", content["search"].rstrip()]
    if "gamma" in content:
        parts += ["", content["gamma"]]
    if "timing" in content:
        timing = content["timing"]
        rows = [
            (
                METHODS[name].label,
                f"{1000 * took:.3g}",
                f"{timing['compile'][name]:.1f}",
            )
            for name, took in timing["seconds"].items()
        ]
        parts += [
            "",
            "Steps timed apart from the runs, the methods taking turns, at a load of "
            f"{timing['load']:.1f}. All seconds above and in the figures are by these.",
            "",
            table(("method", "ms a step", "compile, s"), rows),
        ]
    return parts


def write(folder: Path, accuracy: float | None = None, out: Path | None = None) -> str:
    """Write the table, the figures and the records behind them.

    Args:
        folder: The runs, or what an earlier report has kept of them.
        accuracy: See `summary`.
        out: Where to write; None for the same folder.

    Returns:
        The table.

    Raises:
        FolderError: If it is no folder of runs, or has no records.
    """
    content, out = gather(folder), out or folder
    text, found = summary(content, accuracy), find_groups(content)
    heading = title(content["configuration"])
    out.mkdir(parents=True, exist_ok=True)
    write_gathered(out, content)
    figures.curves(out / "curves.png", heading, found)
    figures.feasibility(out / "feasibility.png", heading, found)
    images = "![](curves.png)\n\n![](feasibility.png)"
    parts = [text, images, in_words(content["made"])]
    (out / "report.md").write_text("\n\n".join(parts) + "\n", "utf-8")
    return text


def main(argv: Sequence[str] | None = None) -> None:
    """Write the report, and print the table.

    Args:
        argv: The command line after the program's name; the process's own if None.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks report", description="Report on a folder of runs."
    )
    add = parser.add_argument
    add("folder", type=Path, help="of runs, or of an earlier report")
    add("--accuracy", type=float, help="time to reach this one (0 to 1)")
    add("--out", type=Path, help="where to write, if not there")
    options = parser.parse_args(argv)
    try:
        print(write(options.folder, options.accuracy, options.out))
    except FolderError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
