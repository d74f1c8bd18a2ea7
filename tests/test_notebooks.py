"""The notebooks run from a clean kernel, and are kept small and with their outputs."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def test_there_is_a_notebook():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_keeps_its_outputs(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert "image/png" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of the kernel's own packages
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    client.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
