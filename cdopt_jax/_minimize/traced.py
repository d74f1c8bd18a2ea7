"""All phases of a run as one program, for ``jit`` and ``vmap``."""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from .loop import Ending, advance, ending, opening
from .method import choose
from .phase import BOUND, Phase
from .phase_data import NOISE, looks, nearby, phase_data
from .result import UNSETTLED, History
from .setup import Data, Setup


def traced(
    setup: Setup, data: Data, x0: optax.Params, phases: list[Phase]
) -> tuple[Ending, History]:
    """All phases of a run as one program."""
    rows = max(sum(1 for _ in looks(0, phase.budget)) for phase in phases)

    def phase(carry, options):
        before, taken, scale = carry
        budget = options.budget
        here, start = phase_data(setup, data, options, before, scale)
        # Both starts, plain and perturbed, by one program that is compiled once.
        both = lax.map(
            lambda noise: opening(
                setup, choose(noise > 0, nearby(here), here), start, noise, taken
            ),
            jnp.asarray([0, NOISE], data.tol.dtype),
        )
        plain, moved = (jax.tree.map(lambda a, i=i: a[i], both) for i in (0, 1))
        first = choose(plain.stationary, moved, plain)
        here = choose(plain.stationary, nearby(here), here)

        def piece(course, until):
            until = jnp.minimum(taken + until, budget)
            new = advance(setup, here, first.prepared, course, until, budget)
            return new, _row(first.prepared, new)

        offsets = list(looks(0, phases[-1].budget))
        offsets = jnp.asarray(offsets + offsets[-1:] * (rows - len(offsets)), jnp.int32)
        course, history = lax.scan(piece, first.course, offsets)
        # A start that was stationary is the end, unless there is a lower point nearby.
        gain = plain.course.value / plain.prepared.unit
        lower = course.value / first.prepared.unit < gain - _rounding(gain)
        # Values have r at its full strength, also where it is yet to count.
        lower = lower | (here.strength < 1)
        keep = plain.stationary & ~lower
        prepared = choose(keep, plain.prepared, first.prepared)
        course = choose(keep, plain.course, course)
        end = ending(setup, here, prepared, course)
        scale = jnp.where(scale > 0, scale, plain.prepared.scale / plain.prepared.unit)
        if setup.columns is not None:
            unsettled = (options.kind == BOUND) & setup.columns.overlapping(before)
            status = jnp.where(unsettled, UNSETTLED, end.status)
            end = end._replace(status=status.astype(jnp.int32))
        begun = _row(plain.prepared, plain.course)
        history = jax.tree.map(
            lambda a, b: jnp.concatenate([a[None], b]), begun, history
        )
        return (end.params, end.steps, scale), (end, history)

    told = [p if p.tol is not None else p._replace(tol=data.tol) for p in phases]
    columns = jax.tree.map(lambda *column: jnp.stack(column), *told)
    begin = (x0, jnp.zeros((), jnp.int32), jnp.zeros((), data.tol.dtype))
    _, (ends, histories) = lax.scan(phase, begin, columns)
    end = jax.tree.map(lambda a: a[-1], ends)
    history = jax.tree.map(lambda a: a.reshape(-1), histories)
    nan = jnp.full_like(history[1], jnp.nan)
    return end, History(*history, seconds=nan)


def _row(prepared, course):
    unit = prepared.unit
    return (
        course.steps,
        course.value / unit,
        course.feasibility,
        course.stationarity / unit,
    )


def _rounding(value):
    return 100 * jnp.finfo(value.dtype).eps * jnp.abs(value)
