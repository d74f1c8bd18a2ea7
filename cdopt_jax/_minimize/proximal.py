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
safeguarded, and diverges from some starts. Here the step is shortened until y is near
the manifold and the objective below the largest of its last values: a search that is
far from monotone, for that is how these steps are quick.

With a multiplier that is not exact, a step may be no descent for any stepsize. Where
the search fails, or has brought nothing for long, the method returns to the best point,
solves the dual problem there, and takes a step of ManPG (Chen, Ma, So and Zhang,
arXiv 1811.00980), x⁺ = A(x + t(y − x)), which lowers the objective for small t unless
the point is stationary. Only if that fails too, the run has stalled.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from .dual import Iterate, iterate
from .method import Method, choose, either
from .points import Point, dots
from .problem import Look, Problem
from .search import search

DECREASE = 1e-4
"""The share of ‖y − x‖²/η by which the objective must fall."""

IDLE = 200
"""After so many steps without a lower value the method returns to the best point."""

DUAL_STEPS = 300
"""The most steps that solve the dual problem where the multiplier must be exact."""

FAILURES = 3
"""After so many searches in a row that found nothing, from the best point, the run has
stalled."""

SHORT, PATIENCE = 1e-4, 20
"""After so many steps in a row that are shorter than this share of the first, f has
kinks: its curvature has no bound."""

JUMP = 0.1
"""The share of the residual by which gradients differ on both sides of a kink."""

WIDEST = 1e8
"""The largest ratio of a stepsize to the first one, and its inverse the smallest."""

LEVEL = 1e-6
"""A certified point counts as the end if its value is above the least seen by no more
than this share of all that the run has gained."""


class State(NamedTuple):
    """The state of the method.

    Attributes:
        now: Where the method stands.
        best: Where the objective was least.
        stepsize: The stepsize to try next.
        first: That of the start, which later ones are compared with.
        start: The objective at the start.
        values: The last values of the objective.
        exact: Whether the next step is one of ManPG.
        idle: How many steps ago there was progress, in the objective or the residual.
        nearest: The residual from which progress is counted.
        short: How many stepsizes in a row were a small share of the first.
        failures: How many searches in a row found nothing.
        jumped: Whether the last of these had gradients that differ at no distance.
        taken: How many steps were taken.
    """

    now: Iterate
    best: Iterate
    stepsize: Array
    first: Array
    start: Array
    values: Array
    exact: Array
    idle: Array
    nearest: Array
    short: Array
    failures: Array
    jumped: Array
    taken: Array


@dataclasses.dataclass(frozen=True)
class Proximal(Method):
    """Algorithm 2 with a multiplier, for f smooth, with a regularizer or without.

    Hu, Xiao, Liu and Toh, Algorithm 2; Xiao, Liu and Yuan, arXiv 2103.03514; Chen, Ma,
    So and Zhang, arXiv 1811.00980.

    Attributes:
        memory: Over how many of the last values the largest is taken, which a step must
            stay below; None for 100 with a regularizer and 10 without.
        ahead: The most steps that are taken for f alone before the regularizer counts.
            With 300 this is ``"continuation"``, which finds better local minima where
            the regularizer is strong.
    """

    memory: int | None = None
    ahead: int = 0

    certificate: ClassVar[str] = "proximal-gradient residual"

    @property
    def name(self) -> str:
        """The name of the method."""
        return "continuation" if self.ahead else "proximal"

    def init(self, problem: Problem, x: Point, look: Look, key: Array) -> State:
        """The state at a point."""
        del key
        size = optax.tree.norm(x)
        scale = sum(look.sizes)
        first = size / jnp.where(scale > 0, scale, 1)
        images = problem.manifold.kept(problem.manifold.image(x))
        place = x, images, look.value, look.gradient
        none = [jnp.zeros_like(s) for s in problem.manifold.inner(x, look.gradient)]
        now = iterate(problem, place, none, first, jnp.ones((), jnp.int32))
        usual = 100 if problem.regularizer else 10
        zero = jnp.zeros((), jnp.int32)
        return State(
            now=now,
            best=now,
            stepsize=first,
            first=first,
            start=look.value,
            values=jnp.full(self.memory or usual, look.value),
            exact=jnp.zeros((), bool),
            idle=zero,
            nearest=now.residual,
            short=zero,
            failures=zero,
            jumped=jnp.zeros((), bool),
            taken=zero,
        )

    def step(self, problem: Problem, state: State) -> State:
        """One step, or the return to the best point."""
        now, best, x = state.now, state.best, state.now.x
        precision = jnp.finfo(now.value.dtype).eps
        slack = 4 * precision * jnp.abs(best.value)
        # Near a solution the objective says less than the residual does: steps may rise
        # by what they could gain.
        gain = now.residual**2 * jnp.minimum(state.stepsize, 1e2 * state.first)
        ceiling = jnp.max(state.values) + slack + jnp.where(state.exact, 0, gain)

        def candidate(stepsize):
            y = problem.prox(
                optax.tree.add_scale(x, -stepsize, now.direction), stepsize, x
            )
            if problem.regularizer is None:
                return y
            # On the line from x to its proximal point, which is tangential.
            straight = optax.tree.add_scale(
                x, stepsize / now.stepsize, optax.tree.sub(now.y, x)
            )
            return choose(state.exact, straight, y)

        def enough(y, stepsize):
            moved = optax.tree.sub(y, x)
            return ceiling - DECREASE * optax.tree.norm(moved, squared=True) / stepsize

        trial, failed = search(problem, x, state.stepsize, candidate, enough)
        lower = trial.value < best.value - slack
        # From the best point, a step that gains nothing but rounding is none.
        failed = failed | (state.exact & ~lower)
        failures = jnp.where(failed, state.failures + 1, 0)
        nearer = now.residual < 0.9 * state.nearest
        idle = jnp.where(lower | nearer, 0, state.idle + 1)
        met = _certificate(problem, state, now) <= problem.tolerance
        back = failed | (idle > IDLE) | (met & _above_best(state))
        tried = trial.x, trial.images, trial.value, trial.gradient
        place = either(back, (best.x, best.images, best.value, best.gradient), tried)
        dtype = state.first.dtype
        shorter = state.stepsize * jnp.asarray(0.1, dtype) ** failures.astype(dtype)
        shorter = jnp.clip(shorter, 1e-4 * state.first, 1e2 * state.first)
        eta = jnp.where(back, shorter, trial.stepsize)
        multiplier = either(back, best.multiplier, now.multiplier)
        rounds = jnp.where(back, DUAL_STEPS, 1)
        new = iterate(problem, place, multiplier, eta, rounds)
        # What follows from rounding near a solution says nothing about f.
        s, y = optax.tree.sub((new.x, new.direction), (x, now.direction))
        change = optax.tree.sub(trial.gradient, now.gradient)
        pairs = (s, s), (s, y), (y, y), (change, change), (x, x)
        *secant, changed, size = dots(*pairs)
        far = now.residual > jnp.sqrt(precision * size) / state.first
        short = far & (trial.stepsize < SHORT * state.first)
        values = state.values.at[state.taken % state.values.size].set(trial.value)
        alternate = problem.regularizer is None
        stepsize = _barzilai_borwein(state, new.stepsize, secant, alternate=alternate)
        return State(
            now=new,
            best=either(new.value <= best.value, new, best),
            stepsize=jnp.where(back, eta, stepsize),
            first=state.first,
            start=state.start,
            values=jnp.where(back, best.value, values),
            exact=back,
            idle=jnp.where(back, 0, idle),
            nearest=jnp.where(nearer, now.residual, state.nearest),
            short=jnp.where(short, state.short + 1, 0),
            failures=failures,
            jumped=failed & far & (jnp.sqrt(changed) > JUMP * now.residual),
            taken=state.taken + 1,
        )

    def residual(self, problem: Problem, state: State) -> Array:
        """The residual, infinite where a much better point is known."""
        return jnp.where(
            _above_best(state), jnp.inf, _certificate(problem, state, state.now)
        )

    def stationarity(
        self, problem: Problem, state: State, x: Point, look: Look
    ) -> Array:
        """The residual of the point reached."""
        if problem.regularizer is None:
            return super().stationarity(problem, state, x, look)
        return _certificate(problem, state, _reached(problem, state))

    def point(self, problem: Problem, state: State) -> Point:
        """The last point or the best one."""
        return problem.manifold.dissolve(_reached(problem, state).x)

    def sparse_parameters(
        self, problem: Problem, state: State, x: Point
    ) -> optax.Params:
        """The proximal point, of which the zeros are exact."""
        if problem.regularizer is None:
            return problem.coordinates.write(x)
        end = _reached(problem, state)
        at = optax.tree.add_scale(end.x, -end.stepsize, end.direction)
        return problem.prox_parameters(at, end.stepsize, end.x)

    def stalled(self, state: State) -> Array:
        """Whether no step from the best point lowers the objective."""
        return (state.failures >= FAILURES) | self.kinked(state)

    def kinked(self, state: State) -> Array:
        """Whether gradients jump, or steps have been too short for too long."""
        jumps = state.jumped & (state.failures >= FAILURES)
        return jumps | (state.short > PATIENCE)


def _certificate(problem, state, at):
    """The residual, or, where the stepsize was longer than the first, a bound of it.

    With a long stepsize a small ‖y − x‖/η does not say that y is near x.
    """
    if problem.regularizer is None:
        return at.residual
    return at.residual * jnp.maximum(1, at.stepsize / state.first)


def _reached(problem, state):
    """The last point, if it is as low as the best one and nearer to stationary."""
    last, best = (_certificate(problem, state, at) for at in (state.now, state.best))
    nearer = last <= best
    return either(nearer & ~_above_best(state), state.now, state.best)


def _above_best(state):
    gained = state.start - state.best.value
    precision = jnp.finfo(gained.dtype).eps
    level = LEVEL * gained + 100 * precision * jnp.abs(state.best.value)
    return state.now.value > state.best.value + level


def _barzilai_borwein(state, last, secant, *, alternate):
    """The inverse curvature along the last step, as the directions show it."""
    ss, sy, yy = secant
    bent = jnp.abs(sy)
    found = ss / bent
    if alternate:
        # With r, short steps cost ten times as many.
        shorter = bent / yy
        found = jnp.where(state.taken % 2 == 0, found, shorter)
    usable = jnp.isfinite(found) & (found > 0)
    found = jnp.clip(found, state.first / WIDEST, state.first * WIDEST)
    return jnp.where(usable, found, last)
