"""L-BFGS on the manifold: secant pairs of projected gradients, A for a retraction.

With d the projection of ∇f(x) to the tangent space, a step is x⁺ = A(x − ηHd), where H
is the inverse Hessian that the last pairs s = x⁺ − x and y = d⁺ − d stand for. Pairs
are not transported: tangent spaces of neighbours differ little, and A takes off
what is normal in Hd. H is applied in its compact form, two products with all
pairs at once and triangular systems of their number:
Byrd, Nocedal and Schnabel, "Representations of quasi-Newton matrices and their use in
limited memory methods", 1994.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array, lax

from cdopt_jax._math.products import mm
from cdopt_jax._math.sharding import on_one_device

from .method import Method, choose, either
from .points import Point, dot, gradient_of
from .problem import Look, Problem
from .search import search

MEMORY = 5
"""Over how many of the last values the largest is taken."""

DECREASE = 1e-4
"""The share of what the slope promises by which the objective must fall."""

IDLE = 100
"""After so many steps without a lower value there will be none."""


class Iterate(NamedTuple):
    """A point with all that belongs to it.

    Attributes:
        x: The point, on the manifold up to third order.
        direction: The projected gradient d.
        value: The objective.
        residual: The norm of d.
    """

    x: Point
    direction: Point
    value: Array
    residual: Array


class Pairs(NamedTuple):
    """The last pairs s and y, in a ring with one spare slot, and their products.

    Attributes:
        steps: The last s, stacked.
        changes: The last y, stacked.
        with_direction: The products of all s, and of all y, with d.
        steps_changes: The products sᵢ·yⱼ.
        changes_changes: The products yᵢ·yⱼ.
        known: How many were kept since they were last forgotten.
    """

    steps: Point
    changes: Point
    with_direction: Array
    steps_changes: Array
    changes_changes: Array
    known: Array


class State(NamedTuple):
    """The state of the method.

    Attributes:
        now: Where the method stands.
        best: Where the objective was least.
        pairs: The secant pairs.
        first: The stepsize while there are no pairs.
        values: The last values of the objective.
        idle: How many steps ago the best point was found.
        stuck: Whether no step lowers the objective, or none did for long.
        taken: How many steps were taken.
    """

    now: Iterate
    best: Iterate
    pairs: Pairs
    first: Array
    values: Array
    idle: Array
    stuck: Array
    taken: Array


@dataclasses.dataclass(frozen=True)
class Tangential(Method):
    """L-BFGS in the tangent spaces, for f + r smooth; fewer steps, where they are dear.

    Byrd, Nocedal and Schnabel, "Representations of quasi-Newton matrices and their use
    in limited memory methods", 1994; Huang, Gallivan and Absil, "A Broyden class of
    quasi-Newton methods for Riemannian optimization", 2015.

    Attributes:
        history: How many pairs are kept.
    """

    history: int = 6

    @property
    def name(self) -> str:
        """The name of the method."""
        return "tangential"

    def init(self, problem: Problem, x: Point, look: Look, key: Array) -> State:
        """The state at a point."""
        del key
        d = problem.manifold.tangent(problem.manifold.image(x), look.whole)
        dtype, slots = look.value.dtype, self.history + 1
        none = [jnp.zeros((slots, *_row(a).shape), a.dtype) for a in x]
        zero = jnp.zeros((), jnp.int32)
        scale = sum(look.sizes)
        now = Iterate(x=x, direction=d, value=look.value, residual=optax.tree.norm(d))
        return State(
            now=now,
            best=now,
            pairs=Pairs(
                steps=none,
                changes=none,
                with_direction=jnp.zeros((2, slots), dtype),
                steps_changes=jnp.zeros((slots, slots), dtype),
                changes_changes=jnp.zeros((slots, slots), dtype),
                known=zero,
            ),
            first=optax.tree.norm(x) / jnp.where(scale > 0, scale, 1),
            values=jnp.full(MEMORY, look.value),
            idle=zero,
            stuck=jnp.zeros((), bool),
            taken=zero,
        )

    def step(self, problem: Problem, state: State) -> State:
        """One step."""
        now, x, d = state.now, state.now.x, state.now.direction
        move = secant(state.pairs, d)
        slope = dot(move, d)
        sizes = optax.tree.norm(move) * now.residual
        # Uphill, or without pairs: straight down.
        down = (state.pairs.known == 0) | ~(slope < -1e-10 * sizes)
        move = choose(down, optax.tree.scale(-state.first, d), move)
        slope = jnp.where(down, -state.first * now.residual**2, slope)
        ceiling = jnp.max(state.values)
        # Near a solution falls drown in rounding.
        ceiling = ceiling + 4 * jnp.finfo(ceiling.dtype).eps * jnp.abs(ceiling)
        trial, failed = search(
            problem,
            x,
            jnp.ones_like(slope),
            lambda stepsize: optax.tree.add_scale(x, stepsize, move),
            lambda _, stepsize: ceiling + DECREASE * stepsize * slope,
        )
        gradient = trial.gradient
        if problem.regularizer is not None:
            gradient = optax.tree.add(gradient, gradient_of(problem.regular)(trial.x))
        bx = problem.manifold.unkept(trial.x, trial.images)
        direction = choose(failed, d, problem.manifold.tangent(bx, gradient))
        idle = jnp.where(trial.value < state.best.value, 0, state.idle + 1)
        moved = Iterate(
            x=trial.x,
            direction=direction,
            value=trial.value,
            residual=optax.tree.norm(direction),
        )
        pairs = remember(
            state.pairs,
            choose(failed, optax.tree.zeros_like(x), optax.tree.sub(trial.x, x)),
            d,
            direction,
        )
        now = either(failed, now, moved)
        values = state.values.at[state.taken % MEMORY].set(trial.value)
        return State(
            now=now,
            best=either(now.value < state.best.value, now, state.best),
            # Without pairs once more, before giving up.
            pairs=pairs._replace(known=jnp.where(failed, 0, pairs.known)),
            first=state.first,
            values=jnp.where(failed, state.values, values),
            idle=idle,
            stuck=jnp.where(failed, down, idle > IDLE),
            taken=state.taken + 1,
        )

    def residual(self, problem: Problem, state: State) -> Array:
        """The norm of the projected gradient at the point reached."""
        del problem
        best, now = state.best.residual, state.now.residual
        return jnp.where(_ends_now(state), now, best)

    def point(self, problem: Problem, state: State) -> Point:
        """The last point, if it is as low as the best one up to rounding, or that."""
        x = either(_ends_now(state), state.now.x, state.best.x)
        return problem.manifold.dissolve(x)

    def stalled(self, state: State) -> Array:
        """Whether no step lowers the objective."""
        return state.stuck


def _ends_now(state):
    """Whether the last point is the point reached, and not the best one.

    Of points that are as low up to rounding, it is the one nearer to stationary.
    """
    best, precision = state.best.value, jnp.finfo(state.best.value.dtype).eps
    level = max(1e-10, 100 * float(precision)) * jnp.abs(best)
    low = state.now.value <= best + level
    return low & (state.now.residual <= state.best.residual)


def secant(pairs: Pairs, d: Point) -> Point:
    """The step −Hd."""
    slots = pairs.steps_changes.shape[0]
    count = slots - 1
    # The oldest pair first, and the spare slot left out.
    slot = jnp.arange(count, dtype=pairs.known.dtype)
    order = (pairs.known + 1 + slot) % slots
    usable = slot >= count - pairs.known
    both = usable[:, None] & usable[None]
    eye = jnp.eye(count, dtype=pairs.steps_changes.dtype)
    # A slot that holds no pair yet is one with no effect.
    upper = jnp.triu(jnp.where(both, pairs.steps_changes[order][:, order], eye))
    squares = jnp.where(both, pairs.changes_changes[order][:, order], 0)
    pace = upper[-1, -1] / jnp.where(usable[-1], squares[-1, -1], 1)
    of_steps, of_changes = jnp.where(usable[None], pairs.with_direction[:, order], 0)
    p = _substituted(upper[::-1, ::-1], of_steps[::-1])[::-1]
    right = jnp.diagonal(upper) * p + pace * (mm(squares, p) - of_changes)
    q = _substituted(upper.T, right)
    # From the order of age to that of the slots, of which the spare one has no weight.
    age = (jnp.arange(slots, dtype=slot.dtype) - pairs.known - 1) % slots
    found = jnp.where(usable[None], jnp.stack([q, p]), 0)
    weights = jnp.where(age[None] < count, found[:, jnp.minimum(age, count - 1)], 0)
    rows = zip(d, pairs.steps, pairs.changes, strict=True)
    return [
        -pace * a
        - jnp.tensordot(weights[0], s, 1, precision="highest").reshape(a.shape)
        + pace * jnp.tensordot(weights[1], y, 1, precision="highest").reshape(a.shape)
        for a, s, y in rows
    ]


def _substituted(lower: Array, right: Array) -> Array:
    """The solution of a triangular system.

    Every round solves each row with what is known of the rows before. After as many
    rounds as there are rows that is substitution. All rounds are the same kernel, which
    is compiled once, and runs without the loop that substitution row by row takes.
    """
    before = jnp.tril(jnp.ones_like(lower, bool), -1)
    found = jnp.zeros_like(right)
    for _ in range(right.size):
        known = jnp.sum(jnp.where(before, lower * found[None], 0), axis=1)
        found = (right - known) / jnp.diagonal(lower)
    return found


def _row(a: Array) -> Array:
    """An array as a row of a stack, unless it is spread over devices.

    Of stacks of matrices XLA for CPU made eight copies in every step, and two updates
    of each where one is enough. Without them, and with the rounds of `_substituted`, a
    step at 141×5 takes 47 µs and not 58, at 400×10 453 and not 546.
    """
    return a.reshape(-1) if on_one_device(a) else a


def _products(stack: Point, d: Point) -> Array:
    """The inner products of all of a stack with d."""
    found = [
        jnp.real(jnp.tensordot(s, jnp.conj(a), axes=a.ndim, precision="highest"))
        for s, a in zip(stack, map(_row, d), strict=True)
    ]
    return sum(found[1:], found[0])


def remember(pairs: Pairs, s: Point, old: Point, new: Point) -> Pairs:
    """A pair in the spare slot, which is no longer spare if its curvature is positive.

    The products of all s and y with the new y are differences of those with d.

    Args:
        pairs: The pairs so far.
        s: The step.
        old: The direction before it.
        new: The direction after it.
    """
    y = optax.tree.sub(new, old)
    bent = dot(s, y)
    curved = bent > 1e-10 * optax.tree.norm(s) * optax.tree.norm(y)
    slots = pairs.steps_changes.shape[0]
    slot = pairs.known % slots

    def put(stack, pair):
        return [
            lax.dynamic_update_index_in_dim(a, _row(b), slot, 0)
            for a, b in zip(stack, pair, strict=True)
        ]

    steps, changes = put(pairs.steps, s), put(pairs.changes, y)
    after = jnp.stack([_products(steps, new), _products(changes, new)])
    before = jnp.stack([dot(s, old), dot(y, old)])
    here = (jnp.arange(slots, dtype=slot.dtype) == slot)[None]
    column, across = after - jnp.where(here, before[:, None], pairs.with_direction)
    # Of s with a later y alone: the other products are not looked at.
    mixed = jnp.where(here, column[:, None], pairs.steps_changes)
    squares = jnp.where(here, across[:, None], pairs.changes_changes)
    return Pairs(
        steps=steps,
        changes=changes,
        with_direction=after,
        steps_changes=jnp.where(here & here.T, bent, mixed),
        changes_changes=jnp.where(here.T, across[None], squares),
        known=pairs.known + curved.astype(pairs.known.dtype),
    )
