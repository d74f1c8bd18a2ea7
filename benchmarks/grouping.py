"""Where it pays to step equal leaves as one stack: ``python -m benchmarks.grouping``.

`constrain` groups leaves of one shape up to `SMALL` entries. Here trees of equal leaves
are stepped in groups and one by one: the time of a step, of tracing and compilation,
and the kernels of the compiled program, which an accelerator would have to launch.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.timing import environment, interleaved
from cdopt_jax._transforms import _groups

SHAPES = ((32, 16), (64, 64), (128, 64), (128, 128), (256, 128), (256, 256))
COUNTS = (4, 16, 64)
WAYS = {"one by one": 0, "in groups": 2**40}
BUDGET = 4.0  # seconds of each program
_KERNEL = re.compile(r" (?:fusion|dot|copy|custom-call)\(")
_FUSED = re.compile(r"\n%fused_computation.*?\n}", re.DOTALL)


def program(shape: tuple[int, int], count: int) -> tuple[Callable[[], Any], float, int]:
    """A step of so many leaves, the seconds to compile it, and its kernels."""
    keys = jax.random.split(jax.random.key(0), count)
    x = {str(i): cdx.stiefel.random(k, shape, jnp.float32) for i, k in enumerate(keys)}
    g = jax.tree.map(lambda v: jax.random.normal(jax.random.key(1), v.shape), x)
    tx = cdx.constrain(optax.sgd(1e-3, momentum=0.9))

    def step(x, g, state):
        updates, state = tx.update(g, state, x)
        return optax.apply_updates(x, updates), state

    state = tx.init(x)
    began = time.perf_counter()
    made = jax.jit(step).lower(x, g, state).compile()
    seconds = time.perf_counter() - began
    kernels = len(_KERNEL.findall(_FUSED.sub("", made.as_text() or "")))
    return partial(made, x, g, state), seconds, kernels


def measure(shape: tuple[int, int], count: int, repeats: int) -> dict[str, Any]:
    """Both ways, in turns."""
    made = {}
    for way, entries in WAYS.items():
        # The group of a leaf is chosen when it is traced, and traces are kept.
        jax.clear_caches()
        with mock.patch.object(_groups, "SMALL", entries):
            made[way] = program(shape, count)
    runs = {way: run for way, (run, _, _) in made.items()}
    return {
        "shape": shape,
        "count": count,
        "seconds": interleaved(runs, repeats, budget=BUDGET),
        "compile": {way: seconds for way, (_, seconds, _) in made.items()},
        "kernels": {way: kernels for way, (_, _, kernels) in made.items()},
    }


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One row for each tree."""
    kinds = {"seconds": ("ms a step", 1e3), "compile": ("s to compile", 1)}
    kinds |= {"kernels": ("kernels", 1)}
    head = [f"{name}, {' | '.join(WAYS)} | ratio" for name, _ in kinds.values()]
    yield f"| leaves | entries of each | {' | '.join(head)} |"
    yield "|---" * 11 + "|"
    for record in records:
        shape = record["shape"]
        cells = [f"{record['count']} of {shape[0]}×{shape[1]}", str(math.prod(shape))]
        for field, (_, unit) in kinds.items():
            alone, grouped = (unit * record[field][way] for way in WAYS)
            cells += [f"{v:.3g}" if v < 1000 else f"{v:.0f}" for v in (alone, grouped)]
            cells.append(f"{grouped / alone:.2f}")
        yield "| " + " | ".join(cells) + " |"


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the records and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/grouping"))
    options = parser.parse_args(arguments)
    shapes, counts = (SHAPES[:1], COUNTS[:1]) if options.quick else (SHAPES, COUNTS)
    trees = [(shape, count) for shape in shapes for count in counts]
    around = environment("jax", "jaxlib", "optax")
    records = [measure(*tree, options.repeats) for tree in tqdm(trees)]
    versions = ", ".join(f"{k} {v}" for k, v in around["versions"].items())
    text = "\n".join(
        [
            "`constrain` of SGD with momentum on trees of equal leaves, float32, "
            f"medians of up to {options.repeats} turns on {around['device']} with "
            f"{around['cpus']} processors, load {around['load']:.1f} before; "
            f"{versions}. Compilation includes the trace; kernels are those of all "
            f"branches. Leaves of up to {_groups.SMALL} entries are grouped.\n",
            *table(records),
        ]
    )
    options.out.mkdir(parents=True, exist_ok=True)
    result = json.dumps(around | {"records": records}, indent=1)
    (options.out / "grouping.json").write_text(result + "\n")
    (options.out / "grouping.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
