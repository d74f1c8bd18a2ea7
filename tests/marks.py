"""Which cases of a test run by default, and which with ``-m slow`` alone."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly(names: Iterable[str], *, slow: Collection[str]) -> list[Any]:
    """Cases of a test by their names, some of them marked as slow."""
    names = list(names)
    assert set(slow) < set(names), set(slow) - set(names)
    return [
        pytest.param(name, marks=pytest.mark.slow if name in slow else ())
        for name in names
    ]
