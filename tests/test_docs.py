"""What can be checked of the documentation, and of the architecture it describes."""

import ast
import importlib
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

# Imports point one way: a module sees only those before it.
ORDER = (
    "_paths",
    "_layout",
    "_algebra",
    "_faults",
    "stiefel",
    "prox",
    "_reading",
    "layers",
    "_selection",
    "_describe",
    "_initializer",
    "_hyperparameters",
    "_nearest",
    "_rounding",
    "_far",
    "_guard",
    "_pull",
    "_tangent",
    "_auto",
    "_trees",
    "theory",
    "_transforms",
    "_constrain",
    "_master",
    "_report",
    "_minimize",
    "methods",
    "__init__",
)
# The same inside of a folder: each sees those before it, and what is not listed sees
# them all.
INSIDE = {
    "_transforms": ("_groups", "_leaves"),
    "_minimize": (
        "result",
        "static",
        "checks",
        "problem",
        "method",
        "sampled_gradients",
        "search",
        "proximal",
        "riemannian_lbfgs",
        "dissolved_lbfgs",
        "newton",
        "subgradient",
        "sampling",
        "named",
        "optax_method",
        "scipy",
        "loop",
        "implicit",
        "programs",
        "run",
    ),
}
PROMISED = {
    "cdopt_jax": """Stiefel where dissolve project feasibility stationarity objective
        dissolve_gradients add_penalty restore_feasibility keep_feasible proximal_step
        master_copies
        constrain describe minimize scipy_objective stiefel prox""",
    "cdopt_jax.stiefel": """residual feasibility dissolve jvp vjp penalty penalty_grad
        gradient tangent project random""",
    "cdopt_jax.prox": "Regularizer l1 l21 none",
}


def public(module) -> dict[str, object]:
    """The module's own functions and classes, and the modules it shows."""
    return {
        name: item
        for name, item in vars(module).items()
        if not name.startswith("_")
        and (inspect.isroutine(item) or inspect.isclass(item) or inspect.ismodule(item))
        and (getattr(item, "__module__", "") or item.__name__).startswith("cdopt_jax")
    }


@pytest.mark.parametrize("name", PROMISED)
def test_every_promised_name_is_there(name):
    module = importlib.import_module(name)
    assert set(PROMISED[name].split()) <= set(public(module))


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


def test_the_readme_lists_the_modules_in_their_order():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"The order of the modules is (.*?);", text)
    assert found
    assert re.findall("`(.*?)`", found[1]) == list(ORDER[:-2])


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert cdopt_jax.__version__ == project["project"]["version"]


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


each_file = pytest.mark.parametrize(
    "file",
    sorted(PACKAGE.rglob("*.py")),
    ids=lambda file: file.relative_to(PACKAGE).as_posix(),
)


@each_file
def test_imports_point_one_way(file):
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    assert parts[0] in ORDER, "give the new module its place in ORDER"
    before = set(ORDER[: ORDER.index(parts[0])])
    shared = INSIDE.get(parts[0], ())
    own = shared.index(parts[-1]) if parts[-1] in shared else len(shared)
    siblings = set(shared[:own])
    for name in imports(file):
        root, *inside = name.split(".")
        if root == "cdopt_jax":
            below = inside[0] == parts[0] and inside[1] in siblings
            assert inside[0] in before or below, f"it imports {name}"


@each_file
def test_only_the_declared_dependencies_are_imported(file):
    """Flax, in particular, is the user's choice."""
    roots = {name.split(".")[0] for name in imports(file)}
    declared = {"cdopt_jax", "jax", "numpy", "optax", "chex"}
    assert roots - set(sys.stdlib_module_names) <= declared
