"""What can be checked of the documentation, and of the architecture it describes."""

import ast
import graphlib
import inspect
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
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


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "guides").glob("*.md"))


BLOCK = r"^(<!-- slow -->\n)?```python\n(.*?)^```$"


def blocks(page: Path) -> Iterator:
    """Each Python block of a page, and the line at which it begins."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(BLOCK, text, re.MULTILINE | re.DOTALL):
        line = text[: match.start(2)].count("\n")
        marks = pytest.mark.slow if match[1] else ()
        yield pytest.param(page, line, match[2], id=f"{page.stem}-{line}", marks=marks)


@pytest.mark.parametrize(
    ("page", "line", "block"),
    [block for page in PAGES for block in blocks(page)],
)
def test_every_python_block_runs(page, line, block):
    # Blank lines before it, so that an error names the line of the page.
    exec(compile("\n" * line + block, page, "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_is_found(page):
    text = page.read_text(encoding="utf-8")
    assert len(list(blocks(page))) == text.lower().count("```py")


def test_there_are_examples():
    assert all(list(blocks(page)) for page in PAGES if page.parent.name == "guides")
    assert list(blocks(ROOT / "README.md"))


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_to_files_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    targets += re.findall(r'(?:src|srcset)="([^"]+)"', text)
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (ROOT / target).exists()] == []


def exported(module) -> Iterator[str]:
    """The names that a module defines, or imports in the form ``x as x``."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names if alias.asname == alias.name]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        else:
            continue
        yield from (name for name in names if not name.startswith("_"))


def test_every_public_name_has_a_page():
    """`docs/api.md` lists what there is, and nothing else."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed, module = set(), ""
    for line in text.splitlines():
        if match := re.match(r"\.\. currentmodule:: (\S+)", line):
            module = match[1]
        elif match := re.fullmatch(r"(?: {3}|\.\. py:data:: )(\w+)", line):
            listed.add(f"{module}.{match[1]}")
    shown = [item for item in vars(cdopt_jax).values() if inspect.ismodule(item)]
    modules = [m for m in shown if not m.__name__.rpartition(".")[2].startswith("_")]
    names = {
        f"{module.__name__}.{name}"
        for module in (cdopt_jax, *modules)
        for name in exported(module)
        if not inspect.ismodule(getattr(module, name))
    }
    assert listed == names


FIGURES = ROOT / "docs" / "figures"


@pytest.mark.usefixtures("optimised")
def test_the_figures_show_what_their_captions_say():
    namespace = runpy.run_path(str(ROOT / "docs" / "figures.py"))
    drawn = {path.stem for path in FIGURES.glob("*.svg")}
    assert drawn == {f + g for f in namespace["FIGURES"] for g in namespace["GROUNDS"]}
    sigma, quintic, cubic = namespace["singular_values"]()
    np.testing.assert_allclose(
        quintic, sigma * (15 - 10 * sigma**2 + 3 * sigma**4) / 8, 1e-5
    )
    assert np.diff(quintic).min() > -1e-6
    assert np.diff(cubic).min() < 0
    _, after = namespace["steps"]()
    assert after["guarded"].max() < 1e-5
    assert after["X + U"].min() > 0.2
    assert after["A(X) + U"][0] < 0.02 < 1 < after["A(X) + U"][-1]
    runs = namespace["training"](steps=60)
    assert runs["constrain(adam)"]["feasibility"].max() < 1e-4
    assert runs["adam"]["feasibility"][-1] > 1
    last = {name: run["loss"][-10:].mean() for name, run in runs.items()}
    assert last["constrain(adam)"] < 2 * last["adam"] < 1


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]


def test_the_version_is_that_of_the_project():
    assert cdopt_jax.__version__ == PROJECT["version"]


@pytest.mark.parametrize("page", ["CHANGELOG.md", "CITATION.cff"])
def test_the_version_is_told_alike(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(r"^(?:## |version: )(\d+\.\d+\.\d+)", text, re.MULTILINE)
    assert found is not None
    assert found[1] == PROJECT["version"]


def test_each_package_has_one_lower_bound():
    """`.ci/oldest` installs them all at once."""
    asked = [
        entry
        for entries in PROJECT["optional-dependencies"].values()
        for entry in (*entries, *PROJECT["dependencies"])
    ]
    bounds: dict[str, set[str]] = {}
    for name, bound in (entry.split(">=") for entry in asked if ">=" in entry):
        bounds.setdefault(name, set()).add(bound)
    assert {name: given for name, given in bounds.items() if len(given) > 1} == {}


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
