"""What a set of runs leaves behind in words and numbers: a table and a JSON file."""

import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

import cdopt_jax as cdx
from benchmarks.training import ZERO, Run

_HEADER = (
    "method",
    "minimises",
    "test accuracy",
    "training loss φ",
    "φ + γ‖w‖₁",
    "sparsity",
    "exact zeros",
    "feasibility",
    "ms a step",
    "compile, s",
)

LEGEND = f"""\
φ is the mean cross-entropy over the training examples. Sparsity is the share of kernel
entries with |w| < {ZERO:.0e}, and exact zeros are the share with w = 0: a subgradient
step leaves entries hovering round zero, at a distance that falls with the learning
rate. Feasibility is the largest ‖XᵀX − I‖_F of the kernels that the constrained methods
keep orthonormal. The time of a step is the median, without compilation."""


def table(runs: Mapping[str, Run]) -> str:
    """Lay out the last epoch of each run as a Markdown table."""
    rows = [_HEADER, *(_row(name, run) for name, run in runs.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _row(name: str, run: Run) -> tuple[str, ...]:
    last = run.records[-1]
    return (
        name,
        run.method.minimises,
        f"{last.test_accuracy:.4f}",
        f"{last.train_loss:.2e}",
        f"{last.objective:.4f}",
        f"{last.sparsity:.1%}",
        f"{last.exact_zeros:.1%}",
        f"{last.feasibility:.1e}",
        f"{1000 * run.step_seconds:.2f}",
        f"{run.compile_seconds:.1f}",
    )


def save(path: Path, configuration: Mapping[str, Any], runs: Mapping[str, Run]) -> None:
    """Write everything needed to draw the figure again, or to doubt it."""
    content = {
        "configuration": dict(configuration),
        "versions": _versions(),
        "runs": {name: _entry(run) for name, run in runs.items()},
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", "utf-8")


def _versions() -> dict[str, str]:
    others = ("jax", "jaxlib", "optax", "flax", "numpy", "scikit-learn")
    return {
        "cdopt_jax": cdx.__version__,
        **{name: version(name) for name in others},
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
    }


def _entry(run: Run) -> dict[str, Any]:
    return {
        "minimises": run.method.minimises,
        "settings": dict(run.method.settings),
        "compile_seconds": run.compile_seconds,
        "step_seconds": run.step_seconds,
        "records": [
            # JSON knows no NaN, which a diverged run is full of.
            {
                name: value if math.isfinite(value) else None
                for name, value in record._asdict().items()
            }
            for record in run.records
        ],
    }
