"""What devices exchange in a step, read from the compiled program."""

import re
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest

from tests.test_sharding import (
    CASES,
    TRANSFORMS,
    arrays,
    each_kind,
    mesh_of,
    placed,
    reading,
)

MOVES = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"


def traffic(compiled: Any) -> list[Counter[str]]:
    """What moves, computation by computation: "all-reduce f32[16,16]" and so on."""
    text = compiled.as_text()
    found = []
    for computation in re.split(r"\n(?=\S)", text):
        moves: Counter[str] = Counter()
        pattern = rf"= (\(?[^=\n]*?) ({MOVES})(?:-start)?\("
        for shapes, kind in re.findall(pattern, computation):
            sizes = re.findall(r"\w+\[[\d,]*\]", shapes)
            moves.update(f"{kind} {size}" for size in sizes)
        if moves:
            entry = computation.startswith("ENTRY")
            found.insert(0 if entry else len(found), moves)
    return found


def compile_step(name: str, layout: str, kind: str) -> tuple[Any, tuple[int, ...]]:
    case = CASES[layout]
    tx = TRANSFORMS[name](reading(case, told=kind == "auto"))
    x, g = placed(arrays(case), case, mesh_of(kind))
    return jax.jit(tx.update).lower(g, tx.init(x), x).compile(), case.shape


def entries(move: str) -> int:
    size = move[move.index("[") + 1 : -1]
    return int(np.prod([int(n) for n in size.split(",") if n], dtype=int))


@each_kind
@pytest.mark.parametrize("name", ["dissolve_gradients", "keep_feasible"])
@pytest.mark.parametrize("layout", ["rows-by-two-axes", "conv-inputs"])
def test_split_rows_need_one_round_of_sums_of_p_by_p_matrices(layout, name, kind):
    compiled, shape = compile_step(name, layout, kind)
    p = min(shape[-1], shape[0]) if len(shape) == 2 else shape[-1]
    entry, *branches = traffic(compiled)
    matrices = [move for move in entry.elements() if entries(move) > 1]
    assert len(set(matrices)) == 1
    assert entries(matrices[0]) == p * p
    assert all(move.startswith("all-reduce") for move in entry)
    # What is summed depends on nothing that was: one round.
    assert rounds(compiled) == 1
    for branch in branches:
        assert all(move.startswith("all-reduce") for move in branch)
        assert max(map(entries, branch)) <= p * p


def rounds(compiled: Any) -> int:
    """The longest chain of sums of matrices, each of which needs the one before."""
    text = compiled.as_text()
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
@pytest.mark.parametrize("layout", ["rows", "wide-by-columns"])
def test_an_optimiser_between_gradient_and_step_makes_it_two_rounds(layout, kind):
    compiled, _ = compile_step("constrain", layout, kind)
    assert rounds(compiled) == 2


@each_kind
@pytest.mark.parametrize("name", ["dissolve_gradients", "keep_feasible"])
def test_a_split_batch_moves_no_matrix(name, kind):
    compiled, _ = compile_step(name, "batch", kind)
    for moves in traffic(compiled):
        # Whether any matrix needs the long way, and the worst of them for the report.
        assert all(entries(move) == 1 for move in moves)


@each_kind
@pytest.mark.parametrize("layout", ["rows-and-columns", "conv-outputs"])
def test_split_columns_are_exchanged_and_never_gathered(layout, kind):
    compiled, shape = compile_step("keep_feasible", layout, kind)
    size = int(np.prod(shape))
    for moves in traffic(compiled):
        assert not any(move.startswith("all-gather") for move in moves)
        for move in moves:
            assert entries(move) <= size // 4
    exchanged = [m for moves in traffic(compiled) for m in moves if "all-to-all" in m]
    assert exchanged
