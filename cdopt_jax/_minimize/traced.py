"""All phases of a run as one program, for ``jit`` and ``vmap``."""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from .loop import Ending, advance, ending, opening
from .method import choose
from .nearby import again
from .phase import BOUND, Phase
from .phase_data import looks, phase_data
from .result import UNSETTLED, History
from .setup import Data, Setup


def traced(
    setup: Setup, data: Data, x0: optax.Params, phases: list[Phase]
) -> tuple[Ending, History]:
    """All phases of a run as one program."""
    rows = max(sum(1 for _ in looks(0, phase.budget)) for phase in phases)

    def one(data, start, attempt, taken, budget):
        """One attempt of a phase: how it opens and ends, and its course."""
        opened = opening(setup, data, start, attempt, taken)
        prepared = opened.prepared

        def piece(course, until):
            until = jnp.minimum(taken + until, budget)
            new = advance(setup, data, prepared, course, until, budget)
            return new, _row(prepared, new)

        offsets = list(looks(0, phases[-1].budget))
        offsets = jnp.asarray(offsets + offsets[-1:] * (rows - len(offsets)), jnp.int32)
        course, history = lax.scan(piece, opened.course, offsets)
        history = jax.tree.map(
            lambda a, b: jnp.concatenate([a[None], b]),
            _row(prepared, opened.course),
            history,
        )
        end = ending(setup, data, prepared, course)
        return end, history, opened.stationary, prepared.scale / prepared.unit

    # Its types are asked for before it is called: as a function of its own it is traced
    # once.
    one = jax.jit(one)

    def phase(carry, options):
        before, taken, scale = carry
        here, start = phase_data(setup, data, options, before, scale)
        zero = jnp.zeros((), jnp.int32)

        # All attempts by one loop, so that they are compiled once.
        def attempted(carry):
            attempt, _, found = carry
            end, history, stationary, _ = found
            first = attempt == 0
            given = choose(first, start, end.params)
            steps = jnp.where(first, taken, end.steps)
            other = one(here, given, attempt, steps, options.budget)
            # A start that was stationary is the end, unless there is a lower point
            # nearby. Values have r at its full strength, also where it is yet to count.
            lower = other[0].value < end.value - _rounding(end.value)
            lower = lower | (here.strength < 1)
            chosen = choose(first | lower, other, found)
            # The history is that of what was chosen, after the start.
            begun = jax.tree.map(
                lambda a, b, c: c.at[0].set(jnp.where(first, a[0], b[0])),
                other[1],
                history,
                chosen[1],
            )
            stationary = jnp.where(first, other[2], stationary)
            found_scale = jnp.where(first, other[3], found[3])
            chosen = chosen[0], begun, stationary, found_scale
            more = stationary & again(attempt, lower, here.strength)
            return attempt + 1, more, chosen

        shapes = jax.eval_shape(one, here, start, zero, taken, options.budget)
        none = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        begin = zero, jnp.ones((), bool), none
        *_, (end, history, _, size) = lax.while_loop(
            lambda carry: carry[1], attempted, begin
        )
        scale = jnp.where(scale > 0, scale, size)
        if setup.columns is not None:
            unsettled = (options.kind == BOUND) & setup.columns.overlapping(before)
            status = jnp.where(unsettled, UNSETTLED, end.status)
            end = end._replace(status=status.astype(jnp.int32))
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
