"""Algorithm 2 with a multiplier: proximal steps whose fixed points are stationary.

The paper's step prox(A(x) − ηD) needs η → 0, since the proximal map leaves the
tangent space and A makes up for its normal part in every step: with a constant η it
ends at a distance O(η) from a solution. Here that normal part is learnt. Stationary
points satisfy 0 ∈ ∇f(x) + ∂r(x) + BxΛ with a symmetric Λ. With Λ = C − S, of which S
makes ∇f(x) − BxS tangent and is known, a step is

    d = ∇f(x) + BxΛ,    y = prox_{ηr}(x − ηd),    x⁺ = A(y),

and C is improved at x⁺ by one step of gradient ascent on the dual of the proximal
problem in the tangent space, C + Φ(xᵀB(prox_{ηr}(x − ηd) − x))/(ηκ), with κ the largest
eigenvalue of xᵀB²x, which is 1 without B. A fixed point has y = x and x = A(x), which
is stationarity and feasibility. Without r, C is zero and d the projected gradient.

Proximal steps with a multiplier and a polynomial in place of a retraction are those of
Xiao, Liu and Yuan's SLPG (arXiv 2103.03514), whose stepsize, Barzilai and Borwein's
longer one, is taken too; without r it alternates with the shorter one. Theirs is not
safeguarded, and diverges from some starts; here it is halved until y is near the
manifold and the objective below the largest of its last values: a search that is far
from monotone, for that is how these steps are quick.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cdopt_jax._math.products import mm, norm, per_matrix, phi
from cdopt_jax._minimize.common import Method, chosen
from cdopt_jax._minimize.curvature import first_stepsize
from cdopt_jax._minimize.landscape import Landscape, Point, along, dot, length, minus
from cdopt_jax._minimize.search import evaluate, search

MEMORY, SMOOTH_MEMORY = 100, 10
"""Over how many of the last values the largest is taken, with r and without."""

DECREASE = 1e-4
"""The share of ‖y − x‖²/η by which the objective must fall."""

IDLE = 200
"""After so many steps without a lower value there will be none."""

SHORT, PATIENCE = 1e-3, 20
"""After so many steps in a row that are shorter than this share of the first, f has
kinks: its curvature has no bound."""


class State(NamedTuple):
    """The state of the method.

    Attributes:
        x: The point, on the manifold up to third order.
        direction: d there.
        multiplier: C, of each constrained leaf.
        stepsize: The stepsize to try next.
        scale: That of the start, which later ones are compared with.
        values: The last values of the objective.
        stationarity: ‖y − x‖/η, the length of an element of ∇f(x) + BxΛ + ∂r(y).
        least: The least value so far.
        idle: How many steps ago it was found.
        short: How many stepsizes in a row were a small share of the first.
        stalled: Whether no stepsize was short enough, too many were too short, or the
            least value is too long ago.
        taken: How many steps were taken.
    """

    x: Point
    direction: Point
    multiplier: Point
    stepsize: Array
    scale: Array
    values: Array
    stationarity: Array
    least: Array
    idle: Array
    short: Array
    stalled: Array
    taken: Array


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
    x, bx = land.restored(land.measured(x))
    value, gradient = evaluate(land, x)
    d = land.tangent(bx, gradient)
    stepsize = first_stepsize(land, x, d)
    zero = [jnp.zeros_like(s) for s in land.inner(x, gradient)]
    multiplier, direction = _improved(land, x, bx, gradient, zero, stepsize)
    return State(
        x,
        direction,
        multiplier,
        stepsize,
        stepsize,
        jnp.full(MEMORY if land.regularizer else SMOOTH_MEMORY, value),
        jnp.asarray(jnp.inf, value.dtype),
        value,
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
        jnp.zeros((), jnp.int32),
    )


def _step(land: Landscape, state: State) -> State:
    x, ceiling = state.x, jnp.max(state.values)

    def candidate(stepsize):
        return land.prox(along(x, -stepsize, state.direction), stepsize)

    def enough(y, stepsize):
        moved = minus(y, x)
        return ceiling - DECREASE * dot(moved, moved) / stepsize

    trial, failed = search(land, x, state.stepsize, candidate, enough)
    multiplier, direction = _improved(
        land,
        trial.x,
        trial.bx,
        trial.gradient,
        state.multiplier,
        trial.stepsize,
    )
    short = jnp.where(trial.stepsize < SHORT * state.scale, state.short + 1, 0)
    idle = jnp.where(trial.value < state.least, 0, state.idle + 1)
    # With r, f is taken at its word to be smooth.
    kinks = short > PATIENCE if land.regularizer is None else failed
    taken = State(
        trial.x,
        direction,
        multiplier,
        _barzilai_borwein(state, trial, direction, land.regularizer is None),
        state.scale,
        state.values.at[state.taken % state.values.size].set(trial.value),
        length(minus(trial.y, x)) / trial.stepsize,
        jnp.minimum(trial.value, state.least),
        idle,
        short,
        kinks | (idle > IDLE),
        state.taken + 1,
    )
    kept = state._replace(stalled=failed, taken=state.taken + 1)
    return chosen(failed, kept, taken)


def _improved(land, x, bx, gradient, multiplier, stepsize):
    """C after a step on the dual, and d."""
    if land.regularizer is None:
        return multiplier, land.tangent(bx, gradient)
    known = minus(multiplier, land.normal(bx, gradient))
    d = along(gradient, 1, land.multiply(bx, known))
    off = land.inner(bx, minus(land.prox(along(x, -stepsize, d), stepsize), x))
    pairs = zip(off, bx, land.forms, strict=True)
    more = [o / (stepsize * _largest(b, form)) for o, b, form in pairs]
    return along(multiplier, 1, more), along(d, 1, land.multiply(bx, more))


def _largest(bx, form):
    """The largest eigenvalue of xᵀB²x, from the Schatten-4 norm: within p^(1/4)."""
    if form is None or form.B is None:
        return 1
    s = phi(form.gram(bx, bx))
    return per_matrix(jnp.sqrt(norm(mm(s, s))))


def _barzilai_borwein(state, trial, direction, alternating):
    """The inverse curvature along the last step, as the directions show it."""
    s, y = minus(trial.x, state.x), minus(direction, state.direction)
    bent = jnp.abs(dot(s, y))
    found = dot(s, s) / bent
    if alternating:
        # With r, short steps cost ten times as many.
        found = jnp.where(state.taken % 2 == 0, found, bent / dot(y, y))
    usable = jnp.isfinite(found) & (found > 0)
    found = jnp.clip(found, 1e-4 * state.scale, 1e4 * state.scale)
    return jnp.where(usable, found, trial.stepsize)
