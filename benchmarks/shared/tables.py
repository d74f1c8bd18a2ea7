"""Tables in Markdown."""

import math
from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A table whose columns are aligned in plain text too.

    Args:
        header: The title of each column.
        rows: The cells of each row, turned into text by ``str``.

    Returns:
        The lines, joined.
    """
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    first, *others = [
        "| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([first, rule, *others])


def number(value: float | None, form: str) -> str:
    """A number in a format, or a dash for None, NaN and infinity."""
    return "—" if value is None or not math.isfinite(value) else f"{value:{form}}"


def by(shape: Iterable[int]) -> str:
    """The sizes of a shape with × between them."""
    return "×".join(map(str, shape))
