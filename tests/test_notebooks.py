"""The notebooks run from a clean kernel, and are kept small and with their outputs."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
assert NOTEBOOKS
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
COLAB = "colab.research.google.com/github/cdopt-jax/cdopt_jax/blob/main/notebooks"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_keeps_its_outputs(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert "image/png" in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_opens_in_colab_installs_and_says_where_it_runs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert f"{COLAB}/{path.name}" in cells[0].source
    assert "%pip install" in cells[1].source
    assert "platform" in cells[2].source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_installs_from_its_checkout_or_from_the_repository(
    path, tmp_path, monkeypatch
):
    """Never by the name alone: in a package index, that may be somebody else's."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    shell: Any = InteractiveShell()
    asked: list[str] = []
    shell.register_magic_function(asked.append, "line", "pip")
    cell = nbformat.read(path, as_version=4).cells[1].source
    for place in (path.parent, tmp_path):
        monkeypatch.chdir(place)
        shell.run_cell(cell).raise_error()
    checkout, address = (line.split() for line in asked)
    assert checkout[:3] == ["install", "--quiet", f'"{path.parents[1]}"']
    assert address[2] == '"git+https://github.com/cdopt-jax/cdopt_jax"'
    assert checkout[3:] == address[3:]
    assert not any("cdopt" in name for name in checkout[3:])


def quick(path):
    return path.stem == "quickstart"


@pytest.mark.filterwarnings("default")  # those of the kernel's own packages
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if quick(path) else pytest.mark.slow)
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_runs_in_two_minutes_and_prints_what_it_keeps(path):
    kept = printed(notebook := nbformat.read(path, as_version=4))
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    for cell, before in zip(printed(notebook), kept, strict=True):
        assert NUMBER.sub("#", cell).split() == NUMBER.sub("#", before).split()
        for found, expected in zip(numbers(cell), numbers(before), strict=True):
            # Rounding differs among machines, and with it counts of steps.
            assert abs(found - expected) <= 0.3 * abs(expected) + 0.02


def printed(notebook):
    """The text that each cell printed."""
    return [
        "".join(o.text for o in cell.get("outputs", ()) if o.get("name") == "stdout")
        for cell in notebook.cells
    ]


def numbers(text):
    """The numbers in a text."""
    return [float(number) for number in NUMBER.findall(text)]
