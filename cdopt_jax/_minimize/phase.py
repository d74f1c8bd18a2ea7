"""The phases of a run, each of which starts at the end of the one before."""

from typing import NamedTuple

LOOSE, FAINT = 1e-3, 1e-9
"""The tolerance of a phase that goes ahead, and the strength of r in a continuation."""

FREE, SETTLED, BOUND = range(3)
"""Which entries of nonnegative columns may be nonzero; see `nonnegative`."""


class Phase(NamedTuple):
    """A phase of a run.

    Attributes:
        budget: The most steps, those of the phases before included.
        strength: What r is multiplied by.
        tol: The relative tolerance; None for that of the user.
        overlap: The weight of the overlap of nonnegative columns, relative to the size
            of the gradient.
        kind: Which entries of nonnegative columns may be nonzero.
    """

    budget: int
    strength: float = 1.0
    tol: float | None = None
    overlap: float = 0.0
    kind: int = FREE
