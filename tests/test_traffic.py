"""What devices exchange in a step, read from the compiled program."""

import functools
import re
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest

from tests.layouts import (
    CASES,
    KINDS,
    TRANSFORMS,
    arrays,
    each_kind,
    mesh_of,
    placed,
    reading,
)
from tests.programs import Program


@functools.cache
def compile_step(name: str, layout: str, kind: str) -> tuple[str, tuple[int, ...]]:
    """The text of the compiled program, and the shape of the leaf."""
    case = CASES[layout]
    tx = TRANSFORMS[name](reading(case, told=kind == "auto"))
    x, g = placed(arrays(case), case, mesh_of(kind))
    # In haste: machine code is not looked at.
    compiled: Any = (
        jax.jit(tx.update)
        .lower(g, tx.init(x), x)
        .compile({"xla_backend_optimization_level": "0"})
    )
    return compiled.as_text(), case.shape


def traffic(text: str) -> list[Counter[str]]:
    """What moves, computation by computation."""
    program = Program(text)
    found = [program.moves(name) for name in program.text]
    return [moves for moves in found if moves]


def usual_traffic(text: str) -> list[Counter[str]]:
    """What moves in a short step, for each branch that it may take."""
    ways = Program(text).ways()
    return [Counter({k: n for k, n in way.items() if " " in str(k)}) for way in ways]


def entries(move: str) -> int:
    size = move[move.index("[") + 1 : -1]
    return int(np.prod([int(n) for n in size.split(",") if n], dtype=int))


# Rounds of sums of p×p matrices. Of scalars, there is one more at most.
ROUNDS = {"dissolve_gradients": 1, "keep_feasible": 1, "constrain": 2}


# By default each transformation on one kind of axes, and `constrain` on both.
STEPS = [
    ("dissolve_gradients", "rows-by-two-axes"),
    ("keep_feasible", "rows-by-two-axes"),
    ("keep_feasible", "conv-inputs"),
    ("constrain", "rows-by-two-axes"),
    ("constrain", "wide-by-columns"),
    ("constrain", "conv-inputs"),
]
QUICK = {
    ("dissolve_gradients", "rows-by-two-axes", "auto"),
    ("keep_feasible", "conv-inputs", "explicit"),
    ("constrain", "rows-by-two-axes", "explicit"),
    ("constrain", "rows-by-two-axes", "auto"),
}


@pytest.mark.parametrize(
    ("name", "layout", "kind"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in ((*step, kind) for step in STEPS for kind in KINDS)
    ],
)
def test_split_rows_need_rounds_of_sums_of_p_by_p_matrices(name, layout, kind):
    text, shape = compile_step(name, layout, kind)
    p = min(shape[-1], shape[0]) if len(shape) == 2 else shape[-1]
    # What is summed in a round depends on nothing that is summed in it.
    assert rounds(text) == ROUNDS[name]
    for moves in usual_traffic(text):
        matrices = [move for move in moves.elements() if entries(move) > 1]
        # The gradient's part is summed beside E, in the same round.
        sums = 2 if name == "dissolve_gradients" else ROUNDS[name]
        assert [entries(move) for move in matrices] == [p * p] * sums
        assert len(list(moves.elements())) - len(matrices) <= ROUNDS[name] + 1
    # Not in rare branches either is anything of the size of the leaf moved.
    for moves in traffic(text):
        assert all(move.startswith("all-reduce") for move in moves)
        assert max(map(entries, moves)) <= p * p


def rounds(text: str) -> int:
    """The longest chain of sums of matrices, each of which needs the one before."""
    entry = text[text.index("\nENTRY") :]
    depth: dict[str, int] = {}
    for line in entry.splitlines():
        if not (head := re.match(r"\s+(?:ROOT )?%(\S+) = ", line)):
            continue
        right = line[head.end() :].split(", metadata=")[0]
        before = max(
            (depth.get(n, 0) for n in re.findall(r"%([\w.-]+)", right)), default=0
        )
        summed = re.search(r"^(\(?[^=]*?) all-reduce(?:-start)?\(", right)
        matrix = summed and any(
            entries(size) > 1 for size in re.findall(r"\w+\[[\d,]*\]", summed[1])
        )
        depth[head[1]] = before + bool(matrix)
    return max(depth.values())


@each_kind
@pytest.mark.parametrize(
    "name",
    ["keep_feasible", pytest.param("dissolve_gradients", marks=pytest.mark.slow)],
)
def test_a_split_batch_moves_no_matrix(name, kind):
    text, _ = compile_step(name, "batch", kind)
    for moves in traffic(text):
        # Whether any matrix needs the long way, and the four numbers of the report.
        assert all(entries(move) in (1, 4) for move in moves)


@each_kind
@pytest.mark.parametrize(
    "layout",
    ["rows-and-columns", pytest.param("conv-outputs", marks=pytest.mark.slow)],
)
def test_split_columns_are_exchanged_and_never_gathered(layout, kind):
    text, shape = compile_step("keep_feasible", layout, kind)
    size = int(np.prod(shape))
    for moves in traffic(text):
        assert not any(move.startswith("all-gather") for move in moves)
        for move in moves:
            assert entries(move) <= size // 4
    exchanged = [m for moves in traffic(text) for m in moves if "all-to-all" in m]
    assert exchanged
