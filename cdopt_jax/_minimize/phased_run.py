"""A run on the host: its phases, each from the end of the one before."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .nearby import again
from .phase import BOUND, FREE, SETTLED, Phase
from .phase_data import phase_data
from .result import UNSETTLED
from .run import Ended, Watch, begin, check_start, finish
from .setup import Data, Setup


def run_phases(
    setup: Setup,
    data: Data,
    start: optax.Params,
    phases: list[Phase],
    watch: Watch,
    many: int,
    before: Ended | None = None,
) -> Ended:
    """The phases of a run, from ``many`` starts or, if that is zero, from one.

    What was run ``before`` is the first part of the run.
    """
    if many:
        start = _random_starts(setup, data, start, many)
    columns, ended = setup.columns, before
    overlapping, kind = np.ones((), bool), FREE
    for phase in phases:
        if columns is not None and ended is not None:
            look = columns.overlapping
            overlapping = np.asarray((jax.vmap(look) if many else look)(start))
            if not overlapping.any() and (phase.kind == FREE or kind == SETTLED):
                continue
        scale = 0.0 if ended is None else ended.scale
        here, start = phase_data(setup, data, phase, start, scale, many=many > 0)
        budget = 0 if ended is not None and ended.stopped else phase.budget
        found = _phase(setup, here, start, budget, watch, many, ended)
        ended = found if ended is None else found.after(ended)
        start, kind = ended.params, phase.kind
        if kind == BOUND and overlapping[ended.best]:
            ended = ended.with_status(UNSETTLED)
        if ended.stopped:
            # Another phase might yet have changed what this one has certified.
            if phase is not phases[-1]:
                ended = ended.with_status(ended.stopped)
            if columns is None:
                break
    assert ended is not None
    return ended


def _phase(
    setup: Setup,
    data: Data,
    start: optax.Params,
    budget: int,
    watch: Watch,
    many: int,
    before: Ended | None,
) -> Ended:
    """One phase of a run; the arguments are those of `run_phases`."""
    taken, spent = 0, 0.0
    if before is not None:
        taken, spent = int(np.max(np.asarray(before.end.steps))), before.seconds
    begun = begin(setup, data, start, attempt=0, taken=taken, budget=budget, many=many)
    if before is None:
        check_start(begun.opened.report, setup.structure)
        _warn(begun.opened.report.moved, data.tol.dtype)
    found = finish(setup, data, begun, _later(watch, spent))
    if many or not bool(begun.opened.stationary):
        return found
    # It may be a saddle: what is found from nearby counts if it is lower, or if r is
    # yet to count, since values have r at its full strength.
    attempt, lower, strength = 0, False, float(data.strength)
    while again(attempt, lower, strength) and not found.stopped:
        attempt, taken = attempt + 1, int(found.end.steps)
        nearby = begin(
            setup,
            data,
            found.params,
            attempt=attempt,
            taken=taken,
            budget=budget,
            many=0,
        )
        other = finish(setup, data, nearby, _later(watch, spent + found.seconds))
        value = float(found.end.value)
        slack = 100 * float(jnp.finfo(data.tol.dtype).eps) * abs(value)
        lower = float(other.end.value) < value - slack or strength < 1
        if lower:
            found = other.after(found)
        elif other.stopped:
            found = found.with_status(other.stopped)._replace(stopped=other.stopped)
    return found


def _later(watch: Watch, spent: float) -> Watch:
    """The same for a part of a run, before which so many seconds were spent."""
    return lambda info: watch(info._replace(seconds=spent + info.seconds))


def _random_starts(setup, data, start, many):
    """The start and random ones, in a leading axis; free leaves are all the same."""
    keys = jax.random.split(jax.random.fold_in(data.key, 3), len(setup.structure.paths))

    def one(key, leaf, reading):
        first = leaf[None]
        if reading is None:
            return jnp.repeat(first, many, axis=0)
        drawn = jax.random.normal(key, (many - 1, *leaf.shape), leaf.dtype)
        return jnp.concatenate([first, drawn])

    rows = zip(keys, jax.tree.leaves(start), setup.structure.readings, strict=True)
    return setup.structure.treedef.unflatten(one(*row) for row in rows)


def _warn(moved, dtype):
    """Say so where the start was off the manifold."""
    distance = float(np.ravel(np.asarray(moved))[0])
    if distance > float(jnp.finfo(dtype).eps) ** 0.5:
        warnings.warn(
            "minimize: x0 is not on the manifold; its projection was taken, which "
            f"moves an entry by {distance:.1e}.",
            stacklevel=6,
        )
