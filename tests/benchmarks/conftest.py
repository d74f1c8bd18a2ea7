"""What tests of benchmarks share."""

import fcntl
import os

import pytest


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Folders that are filled once, even if pytest spreads tests over workers.

    From a name and a function, which fills the folder that it is given and returns a
    text, to the folder and the text.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent

    def make(name, fill):
        folder, text = base / name, base / f"{name}.txt"
        with open(base / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not text.exists():
                text.write_text(fill(folder), "utf-8")
        return folder, text.read_text("utf-8")

    return make
