"""What every command has in common: its options, its files and where it was run."""

import argparse
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

import jax

RESULTS = Path("benchmarks/results")
PACKAGES = (
    *("cdopt_jax", "jax", "jaxlib", "optax", "flax", "numpy", "scipy", "scikit-learn"),
    *("torch", "geoopt", "geotorch", "pogo-torch", "pymanopt", "pystop"),
)


def make_parser(name: str, description: str | None, out: Path):
    """The options of all commands.

    Args:
        name: The name under which the index finds the command.
        description: What it answers.
        out: The folder to which it writes if no other is given.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small, to see it run")
    parser.add_argument("--out", type=Path, default=out, help=f"folder ({out})")
    return parser


def write(folder: Path, name: str, result: Any, text: str) -> None:
    """Write the records and the report, and print the report."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(result, indent=1, ensure_ascii=False)
    (folder / f"{name}.json").write_text(content + "\n", "utf-8")
    (folder / f"{name}.md").write_text(text.rstrip("\n") + "\n", "utf-8")
    print(text)


def processors() -> int | None:
    """How many this process may use; a system may not know."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def environment() -> dict[str, Any]:
    """What the figures depend on: versions of what is installed, device and load.

    The load is that of the last minute: libraries whose threads wait for each other
    suffer from it out of proportion.
    """
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "device": jax.devices()[0].device_kind,
        "processors": processors(),
        "load": os.getloadavg()[0],
    }


def surroundings(result: dict[str, Any]) -> str:
    """An `environment` in words."""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    load = f", load {result['load']:.1f} before" if "load" in result else ""
    return (
        f"Device: {result['device']}, processors: {result['processors']}{load}; "
        f"{versions}."
    )
