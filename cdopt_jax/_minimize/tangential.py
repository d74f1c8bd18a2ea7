"""L-BFGS on the manifold: secant pairs of projected gradients, A for a retraction.

With d the projection of ∇f(x) to the tangent space, a step is x⁺ = A(x − ηHd), where H
is the inverse Hessian that the last pairs s = x⁺ − x and y = d⁺ − d stand for. Pairs
are not transported: tangent spaces of neighbours differ little, and A takes off
what is normal in Hd. H is applied in its compact form, two products with all
pairs at once and triangular systems of their number:
Byrd, Nocedal and Schnabel, "Representations of quasi-Newton matrices and their use in
limited memory methods", 1994.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cdopt_jax._math.products import mm
from cdopt_jax._minimize.common import Method, chosen
from cdopt_jax._minimize.curvature import first_stepsize
from cdopt_jax._minimize.landscape import Landscape, Point, along, dot, length, minus
from cdopt_jax._minimize.search import evaluate, search

PAIRS = 6
SLOTS = PAIRS + 1

MEMORY = 5
"""Over how many of the last values the largest is taken."""

DECREASE = 1e-4
"""The share of what the slope promises by which the objective must fall."""

IDLE = 100
"""After so many steps without a lower value there will be none."""


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point, on the manifold up to third order.
        direction: d there.
        steps: The last s, stacked.
        bends: The last y, stacked.
        against: The products of all s, and of all y, with d.
        curvature: The products sᵢ·yⱼ.
        squares: The products yᵢ·yⱼ.
        pairs: How many were kept since they were last forgotten.
        first: The stepsize while there are none.
        values: The last values of the objective.
        stationarity: The norm of d.
        least: The least value so far.
        idle: How many steps ago it was found.
        stalled: Whether no step lowers the objective, or none did for long.
        taken: How many steps were taken.
    """

    x: Point
    direction: Point
    steps: Point
    bends: Point
    against: Array
    curvature: Array
    squares: Array
    pairs: Array
    first: Array
    values: Array
    stationarity: Array
    least: Array
    idle: Array
    stalled: Array
    taken: Array


class _Moved(NamedTuple):
    """What a step changes that was low enough, but for the pairs, which are large."""

    x: Point
    direction: Point
    values: Array
    stationarity: Array
    least: Array
    idle: Array


def tangential() -> Method:
    """Quasi-Newton steps, for f smooth and no regularizer with kinks."""
    return Method(
        _init,
        _step,
        lambda land, state: land.dissolve(state.x),
        lambda _, state: state.stationarity,
        lambda state: state.stalled,
        "tangential",
        "norm of the projected gradient",
    )


def _init(land: Landscape, x: Point, key: Array) -> State:
    del key
    x, bx = land.restored(land.measured(x))
    value, gradient = evaluate(land, x)
    d = land.tangent(bx, gradient)
    none = [jnp.zeros((SLOTS, *a.shape), a.dtype) for a in x]
    square = jnp.zeros((SLOTS, SLOTS), value.dtype)
    zero = jnp.zeros((), jnp.int32)
    return State(
        x,
        d,
        none,
        none,
        jnp.zeros((2, SLOTS), value.dtype),
        square,
        square,
        zero,
        first_stepsize(land, x, d),
        jnp.full(MEMORY, value),
        length(d),
        value,
        zero,
        jnp.zeros((), bool),
        zero,
    )


def _step(land: Landscape, state: State) -> State:
    x, d = state.x, state.direction
    move = secant(state)
    slope = dot(move, d)
    # Uphill, or without pairs: straight down.
    down = (state.pairs == 0) | ~(slope < -1e-10 * length(move) * length(d))
    move = [jnp.where(down, -state.first * b, a) for a, b in zip(move, d, strict=True)]
    slope = jnp.where(down, -state.first * dot(d, d), slope)
    ceiling = jnp.max(state.values)
    # Near a solution falls drown in rounding.
    ceiling = ceiling + 4 * jnp.finfo(ceiling.dtype).eps * jnp.abs(ceiling)
    trial, failed = search(
        land,
        x,
        jnp.ones_like(slope),
        lambda stepsize: along(x, stepsize, move),
        lambda _, stepsize: ceiling + DECREASE * stepsize * slope,
    )
    new = land.tangent(trial.bx, trial.gradient)
    idle = jnp.where(trial.value < state.least, 0, state.idle + 1)
    new = chosen(failed, d, new)
    pairs = _remember(state, minus(trial.x, x), minus(new, d), new, ~failed)
    values = state.values.at[state.taken % MEMORY].set(trial.value)
    moved = _Moved(
        trial.x, new, values, length(new), jnp.minimum(trial.value, state.least), idle
    )
    stayed = _Moved(*(getattr(state, name) for name in _Moved._fields))
    return pairs._replace(
        **chosen(failed, stayed, moved)._asdict(),
        # Without pairs once more, before giving up.
        pairs=jnp.where(failed, 0, pairs.pairs),
        stalled=jnp.where(failed, down, idle > IDLE),
        taken=state.taken + 1,
    )


def secant(state: State) -> Point:
    """The step −Hd."""
    # The oldest pair first, and the spare slot left out.
    order = (state.pairs + 1 + jnp.arange(PAIRS)) % SLOTS
    usable = jnp.arange(PAIRS) >= PAIRS - state.pairs
    both = usable[:, None] & usable
    eye = jnp.eye(PAIRS, dtype=state.curvature.dtype)
    # A slot that holds no pair yet is one with no effect.
    upper = jnp.triu(jnp.where(both, state.curvature[order][:, order], eye))
    squares = jnp.where(both, state.squares[order][:, order], 0)
    pace = upper[-1, -1] / jnp.where(usable[-1], squares[-1, -1], 1)
    along_steps, along_bends = jnp.where(usable, state.against[:, order], 0)
    p = _substituted(upper[::-1, ::-1], along_steps[::-1])[::-1]
    right = jnp.diagonal(upper) * p + pace * (mm(squares, p) - along_bends)
    q = _substituted(upper.T, right)
    weights = jnp.zeros((2, SLOTS), p.dtype)
    weights = weights.at[:, order].set(jnp.where(usable, jnp.stack([q, p]), 0))
    rows = zip(state.direction, state.steps, state.bends, strict=True)
    return [
        -pace * d
        - jnp.tensordot(weights[0], s, 1, precision="highest")
        + pace * jnp.tensordot(weights[1], y, 1, precision="highest")
        for d, s, y in rows
    ]


def _substituted(lower: Array, right: Array) -> Array:
    """The solution of a triangular system: so small that it is written out."""
    found: list[Array] = []
    for i in range(PAIRS):
        known = sum(
            (lower[i, j] * found[j] for j in range(i)), jnp.zeros_like(right[i])
        )
        found.append((right[i] - known) / lower[i, i])
    return jnp.stack(found)


def _against(stack: Point, d: Point) -> Array:
    """The inner products of all pairs with d."""
    found = [
        jnp.tensordot(s, a, axes=a.ndim, precision="highest")
        for s, a in zip(stack, d, strict=True)
    ]
    return sum(found[1:], found[0])


def _remember(state: State, s: Point, y: Point, new: Point, sound: Array) -> State:
    """A pair in the spare slot, which is no longer spare if its curvature is positive.

    The products of all s and y with the new y are differences of those with d.
    """
    s, y = ([jnp.where(sound, a, 0) for a in pair] for pair in (s, y))
    bent = dot(s, y)
    curved = bent > 1e-10 * length(s) * length(y)
    slot = state.pairs % SLOTS

    def put(stack, pair):
        return [a.at[slot].set(b) for a, b in zip(stack, pair, strict=True)]

    steps, bends = put(state.steps, s), put(state.bends, y)
    against = jnp.stack([_against(steps, new), _against(bends, new)])
    before = jnp.stack([dot(s, state.direction), dot(y, state.direction)])
    column, across = against - state.against.at[:, slot].set(before)
    return state._replace(
        steps=steps,
        bends=bends,
        against=against,
        # Of s with a later y alone: the others are not looked at.
        curvature=state.curvature.at[:, slot].set(column).at[slot, slot].set(bent),
        squares=state.squares.at[:, slot].set(across).at[slot].set(across),
        pairs=state.pairs + curved,
    )
