"""What a phase of a run starts with, and when it is looked at."""

from collections.abc import Iterator
from functools import partial

import jax
import numpy as np
import optax
from jax import Array

from .phase import Phase
from .setup import Data, Setup
from .static import as_number

GROWTH, FEWEST = 1.1, 15
"""By which factor, and by how many steps at least, a look at a run is later than the
look before.

For small problems a look takes as long as two to four steps.
"""


def looks(taken: int, budget: int) -> Iterator[int]:
    """After how many steps to look at a run."""
    at = taken
    while at < budget:
        at = min(max(at + FEWEST, round(GROWTH * at)), budget)
        yield at
    # The steps before the last look may have ended early for a certificate that the
    # look denied.
    yield budget


def phase_data(
    setup: Setup,
    data: Data,
    phase: Phase,
    start: optax.Params,
    scale: float | Array,
    *,
    many: bool = False,
) -> tuple[Data, optax.Params]:
    """The arrays of a phase, and its start, from the end of the phase before.

    The scale is that of the gradient at the start of the run. The phase may be of
    numbers or of arrays, and with ``many`` the starts have an axis of their own.
    """
    dtype = data.tol.dtype
    tol = data.tol if phase.tol is None else as_number(phase.tol, dtype)
    here = data._replace(strength=as_number(phase.strength, dtype), tol=tol)
    if setup.columns is None:
        return here, start
    assigned = partial(setup.columns.assigned, kind=as_number(phase.kind, np.int32))
    start, allowed = (jax.vmap(assigned) if many else assigned)(start)
    overlap = as_number(phase.overlap * scale, dtype)
    return here._replace(overlap=overlap, allowed=allowed), start
