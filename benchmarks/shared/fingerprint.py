"""Which code a result was measured with, as a hash of that code.

A hash is taken of the syntax, not of the text. Comments, docstrings, formatting, type
annotations, assertions and the wording of errors can change no figure, and do not
enter.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.moves import TOLERANCE, moves

ROOT = Path(__file__).resolve().parents[2]
PARTS = {
    "step": ("cdopt_jax/_math", "cdopt_jax/_transforms"),
    "solver": (
        *("cdopt_jax/_minimize", "cdopt_jax/stiefel.py", "cdopt_jax/prox.py"),
        *("cdopt_jax/_math/products.py", "cdopt_jax/_math/automatic_beta.py"),
    ),
}
"""The folders and files of the package that a result may depend on, by what is
measured. The methods of the solver take no guarded steps."""

MOVES = "moves"
"""What results of training depend on, instead of a part: see `moves`."""

# Modules whose names end so present what others have measured, or keep it in files.
_PRESENTS = ("report", "figures", "claims", "tables", "results", "fingerprint", "index")
# Fields of nodes that no figure depends on.
_IGNORED = ("annotation", "returns", "ctx", "kind", "type_comment", "type_params")


def is_same(part: str, made: dict[str, Any]) -> bool:
    """Whether a result was made with a part of the package as it is now.

    Args:
        part: A key of `PARTS`, or `MOVES`.
        made: What the result says of how it was made.
    """
    if part == MOVES:
        then = made.get(MOVES)
        return then is not None and np.allclose(then, moves(), rtol=0, atol=TOLERANCE)
    return made.get(part) == of_part(part)


@cache
def of_part(part: str, root: Path = ROOT) -> str:
    """The fingerprint of a part of the package, a key of `PARTS`."""
    files: list[Path] = []
    for name in PARTS[part]:
        path = root / name
        files += path.rglob("*.py") if path.is_dir() else [path]
    return of_files(files, root)


@cache
def of_benchmark(module: str, root: Path = ROOT) -> str:
    """The fingerprint of a module of `benchmarks` and of all that it imports there.

    Modules that only present results are left out: another table is no other result.
    """
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        file = _file(waiting.pop(), root)
        if file is None or file in found or file.stem.endswith(_PRESENTS):
            continue
        found.add(file)
        waiting += _imports(ast.parse(file.read_text("utf-8")))
    return of_files(found, root)


def of_files(files: Iterable[Path], root: Path = ROOT) -> str:
    """The fingerprint of some files: of their names under the root, and their code."""
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(file.relative_to(root).as_posix().encode())
        total.update(of_source(file.read_text("utf-8")).encode())
    return total.hexdigest()[:12]


def of_source(text: str) -> str:
    """The fingerprint of Python code; the same in each version of Python."""
    content = "".join(_written(ast.parse(text)))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _written(node: object) -> Iterator[str]:
    """A syntax tree as text, without what no figure depends on.

    Not by `ast.dump`, which in later versions of Python leaves out empty fields.
    """
    if isinstance(node, ast.Raise):
        yield "(Raise)"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(value, list):
                value = [part for part in value if not _is_text(part)]
            if name not in _IGNORED and value is not None and value != []:
                yield f" {name}="
                yield from _written(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for part in node:
            if not isinstance(part, ast.Assert):
                yield from _written(part)
        yield "]"
    else:
        yield repr(node)


def _is_text(statement: ast.AST) -> bool:
    """Whether a statement is a string alone: a docstring, or a comment below a name."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _imports(tree: ast.AST) -> Iterator[str]:
    """The names that code imports from `benchmarks`, which may be of modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file(module: str, root: Path) -> Path | None:
    """The file of a module of `benchmarks`; None for all other names."""
    if module.split(".")[0] != "benchmarks":
        return None
    path = root.joinpath(*module.split("."))
    choices = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in choices if file.is_file()), None)
