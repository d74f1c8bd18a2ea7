"""What can be checked of the documentation, and of the architecture it describes."""

import ast
import graphlib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import cdopt_jax

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cdopt_jax"
MODULES = (cdopt_jax, cdopt_jax.stiefel, cdopt_jax.prox, cdopt_jax.theory)


def public(module) -> dict[str, object]:
    """The module's own functions and classes, and the modules it shows."""
    return {
        name: item
        for name, item in vars(module).items()
        if not name.startswith("_")
        and (inspect.isroutine(item) or inspect.isclass(item) or inspect.ismodule(item))
        and (getattr(item, "__module__", "") or item.__name__).startswith("cdopt_jax")
    }


@pytest.mark.parametrize(
    ("name", "item"),
    [
        pytest.param(name, item, id=f"{module.__name__}.{name}")
        for module in MODULES
        for name, item in {module.__name__: module, **public(module)}.items()
    ],
)
def test_every_public_name_has_a_docstring(name, item):
    first, *rest = (inspect.getdoc(item) or "").split("\n\n")
    assert first.endswith((".", ":")), f"{name} is not described in a sentence"
    assert "Alias for field" not in first
    if "Args:" in (text := "\n\n".join(rest)):
        for parameter in inspect.signature(item).parameters:
            assert re.search(rf"^ +\*?{parameter}: ", text, re.MULTILINE), parameter


def readme_blocks() -> Iterator[tuple[int, str]]:
    """Each Python block of the README, and the line at which it begins."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text[: match.start(1)].count("\n"), match[1]


@pytest.mark.parametrize(
    ("line", "block"),
    [pytest.param(*block, id=f"line-{block[0]}") for block in readme_blocks()],
)
def test_every_python_block_of_the_readme_runs(line, block):
    # Blank lines before it, so that an error names the line of the README.
    exec(compile("\n" * line + block, ROOT / "README.md", "exec"), {})


def test_the_readme_has_examples_and_each_is_found():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(list(readme_blocks())) == text.lower().count("```py") > 0


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]


def test_the_version_is_that_of_the_project():
    assert cdopt_jax.__version__ == PROJECT["version"]


def imports(file: Path) -> Iterator[str]:
    """The absolute name of each module that a file of the package imports."""
    parents = ["cdopt_jax", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            is_folder = (ROOT / source.replace(".", "/")).is_dir()
            names = [f"{source}.{alias.name}" for alias in node.names]
            yield from (
                names if source.startswith("cdopt_jax") and is_folder else [source]
            )


def module(file: Path) -> str:
    """The name under which a file is imported."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(
        ".__init__"
    )


FILES = {module(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def test_imports_point_one_way():
    """No module needs, directly or through others, a module that needs it."""
    graph = {
        name: {n if n in FILES else n.rpartition(".")[0] for n in imports(file)}
        for name, file in FILES.items()
    }
    assert graph["cdopt_jax"] & FILES.keys()
    # Of a cycle, CycleError names the modules.
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_only_the_declared_dependencies_are_imported(file):
    """Flax, in particular, is the user's choice."""
    roots = {name.split(".")[0] for name in imports(file)}
    declared = {re.split(r"\W", name)[0] for name in PROJECT["dependencies"]}
    # JAX brings NumPy.
    declared |= {"cdopt_jax", "numpy"} | set(sys.stdlib_module_names)
    assert roots <= declared
