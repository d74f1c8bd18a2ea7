"""Algorithm 2 with a multiplier: proximal steps whose fixed points are stationary.

The paper's step prox(A(x) − ηD) needs η → 0, since the proximal map leaves the
tangent space and its normal part is made up for by A in every step: with a constant η
it ends at a distance O(η) from a solution. Here that normal part is learnt. Stationary
points satisfy 0 ∈ ∇f(x) + ∂r(x) + BxΛ with a symmetric Λ, so the step is

    y = prox_{ηr}(x − η(∇f(x) + BxΛ)),    x⁺ = A(y),    Λ⁺ = Λ + Φ(xᵀB(y − x))/(ηκ),

with κ the largest eigenvalue of xᵀB²x, which is 1 without B. The last is a step of
gradient ascent on the dual of the proximal problem in the tangent space, one for each
step instead of a solution. A fixed point has y = x and x = A(x), which is stationarity
and feasibility. Without r, Λ is known: −Φ(xᵀ∇f(x)).

The stepsize is Barzilai and Borwein's, and is halved until the objective is below the
largest of the last values: a nonmonotone search, without which it would be no quicker
than a constant one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cdopt_jax._algebra import each
from cdopt_jax._minimize.common import Method
from cdopt_jax._minimize.landscape import (
    EDGE,
    Landscape,
    Point,
    along,
    dot,
    length,
    minus,
)

MEMORY = 10
"""Over how many of the last values the largest is taken."""

DECREASE = 1e-4
"""The share of ‖y − x‖²/η by which the objective must fall."""

HALVINGS = 30

SHORT, PATIENCE = 1e-3, 20
"""After so many steps in a row that are shorter than this share of the first, f has
kinks: its curvature has no bound."""


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point, on the manifold up to third order.
        y: The last point out of the proximal map, with its exact zeros.
        gradient: That of f at x.
        multiplier: Λ, of each constrained leaf.
        stepsize: The stepsize to try next.
        scale: The stepsize of the start, which later ones are compared with.
        values: The last values of the objective.
        stationarity: The length of an element of ∇f + BxΛ + ∂r, the last at (x, y).
        short: How many stepsizes in a row were a small share of the first.
        stalled: Whether no stepsize was short enough, or too many were too short.
        taken: How many steps were taken.
    """

    x: Point
    y: Point
    gradient: Point
    multiplier: Point
    stepsize: Array
    scale: Array
    values: Array
    stationarity: Array
    short: Array
    stalled: Array
    taken: Array


class _Trial(NamedTuple):
    x: Point
    y: Point
    value: Array
    gradient: Point
    multiplier: Point
    stepsize: Array
    halvings: Array


def proximal() -> Method:
    """Proximal steps, or gradient steps where there is no regularizer."""
    return Method(
        _init,
        _step,
        lambda land, state: land.dissolve(state.x),
        lambda _, state: state.stationarity,
        lambda state: state.stalled,
        "proximal",
        "proximal-gradient residual",
    )


def _init(land: Landscape, x: Point, key: Array) -> State:
    del key
    value, gradient = _evaluate(land, x)
    dtype = value.dtype
    stepsize = _first(land, x, gradient)
    return State(
        x,
        x,
        gradient,
        _known(land, x, gradient),
        stepsize,
        stepsize,
        jnp.full(MEMORY, value),
        jnp.asarray(jnp.inf, dtype),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
        jnp.zeros((), jnp.int32),
    )


def _step(land: Landscape, state: State) -> State:
    x, g = state.x, state.gradient
    bx = land.apply(x)
    known = land.regularizer is None
    current = _known(land, x, g) if known else state.multiplier
    ceiling = jnp.max(state.values)
    kappa = [_largest(s) for s in land.inner(bx, bx)]

    def attempt(stepsize, halvings):
        w = along(x, -stepsize, along(g, 1, land.multiply(bx, current)))
        y = land.prox(w, stepsize)
        multiplier = current
        if not known:
            rows = zip(current, land.inner(bx, minus(y, x)), kappa, strict=True)
            multiplier = [c + off / (stepsize * k) for c, off, k in rows]
        new = land.dissolve(y)
        value, gradient = _evaluate(land, new)
        value = jnp.where(land.feasibility(y) < EDGE, value, jnp.inf)
        return _Trial(new, y, value, gradient, multiplier, stepsize, halvings)

    def too_long(trial):
        moved = minus(trial.y, x)
        enough = ceiling - DECREASE * dot(moved, moved) / trial.stepsize
        return ~(trial.value <= enough) & (trial.halvings < HALVINGS)

    first = attempt(state.stepsize, jnp.zeros((), jnp.int32))
    trial = lax.while_loop(
        too_long, lambda t: attempt(t.stepsize / 2, t.halvings + 1), first
    )
    failed = too_long(trial._replace(halvings=jnp.zeros((), jnp.int32)))
    short = jnp.where(trial.stepsize < SHORT * state.scale, state.short + 1, 0)
    taken = State(
        trial.x,
        trial.y,
        trial.gradient,
        trial.multiplier,
        _barzilai_borwein(land, state, trial, bx),
        state.scale,
        state.values.at[state.taken % MEMORY].set(trial.value),
        length(minus(trial.y, x)) / trial.stepsize,
        short,
        short > PATIENCE if known else failed,
        state.taken + 1,
    )
    kept = state._replace(stalled=failed, taken=state.taken + 1)
    return jax.tree.map(lambda a, b: jnp.where(failed, a, b), kept, taken)


def _evaluate(land, x):
    value, gradient = jax.value_and_grad(land.smooth)(x)
    return value + land.regular(x), gradient


def _largest(s):
    """The largest eigenvalue, from the Schatten-4 norm: within p^(1/4) of it."""
    if s.ndim == 0:
        return jnp.ones_like(s)
    return each(jnp.sqrt(jnp.sqrt(jnp.sum((s @ s) ** 2, axis=(-2, -1)))))


def _known(land, x, g):
    """The multiplier without r."""
    return [-s for s in land.inner(x, g)]


def _first(land, x, g):
    """The inverse of the curvature of f along the projected gradient."""
    d = land.adjoint(x, g)
    size = length(d)
    unit = [a / jnp.where(size > 0, size, 1) for a in d]
    _, bent = jax.jvp(jax.grad(land.smooth), (x,), (unit,))
    curvature = length(bent)
    # Where there is none, as far as a hundredth of the unknown's own size.
    fallback = 0.01 * length(x) / jnp.where(size > 0, size, 1)
    curved = curvature > size * 1e-6
    return jnp.where(curved, 1 / jnp.where(curved, curvature, 1), fallback)


def _barzilai_borwein(land, state, trial, bx):
    """The inverse curvature of the Lagrangian, the longer and the shorter in turn."""
    s = minus(trial.x, state.x)
    change = minus(trial.gradient, state.gradient)
    bs = minus(land.apply(trial.x), bx)
    change = along(change, 1, land.multiply(bs, trial.multiplier))
    ss, sy, yy = dot(s, s), jnp.abs(dot(s, change)), dot(change, change)
    found = jnp.where(state.taken % 2 == 0, ss / sy, sy / yy)
    usable = jnp.isfinite(found) & (found > 0)
    found = jnp.clip(found, 1e-4 * state.scale, 1e3 * state.scale)
    return jnp.where(usable, found, trial.stepsize)
