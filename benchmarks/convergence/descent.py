"""Runs of an optimiser on a problem, at several learning rates."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cdopt_jax as cdx
from benchmarks.shared.methods import OPTIMISERS, WRAPPERS
from benchmarks.shared.problems import Problem

CHUNK = 100
"""The steps of one compiled loop."""

# From a learning rate to an optimiser that is held to the manifold.
Maker = Callable[[Any], optax.GradientTransformation]
# From the share of the steps that are done to a factor of the learning rate.
Decay = Callable[[Any], Any]


def constant(progress: Any) -> Any:
    """No decay."""
    return jnp.ones_like(progress)


def cosine(progress: Any) -> Any:
    """Down to zero along half of a cosine."""
    return (1 + jnp.cos(jnp.pi * progress)) / 2


class Course(NamedTuple):
    """How to descend.

    Attributes:
        steps: How many steps to take.
        decay: How the learning rate falls.
        gap: Where to stop: the excess of the projected value over the least, relative
            to it; None to take all steps.
    """

    steps: int
    decay: Decay = cosine
    gap: float | None = None


def wrapped(wrapper: str, optimiser: str, mask: Any = None) -> Maker:
    """A wrapper around an optimiser, both by name."""
    return lambda rate: WRAPPERS[wrapper](OPTIMISERS[optimiser](rate), mask)


def descend(
    problem: Problem,
    make: Maker,
    rates: Sequence[float],
    course: Course,
    *,
    pair: bool = False,
    searches: bool = False,
) -> dict[str, list[float]]:
    """Run from the start of a problem at each of the learning rates.

    Args:
        problem: What is to be minimised.
        make: From a learning rate to the transformation.
        rates: The initial learning rates.
        course: How to descend.
        pair: Whether the parameters are an `optax.LookaheadParams`.
        searches: Whether the optimiser is given the objective, for a line search.

    Returns:
        Lists with one entry for each rate. ``values`` are those of the objective at the
        projection of the end, ``feasibility`` the largest ‖XᵀX − I‖_F over the square
        root of the columns, ``gradients`` the projected gradient's norm as a share of
        the start's (of problems with a single array), ``steps`` the steps taken,
        ``met`` whether the gap was met, ``shortened`` and ``long`` the shares of such
        steps, where `keep_feasible` counts them.
    """
    run = _Run(problem, make, course, pair=pair, searches=searches)
    ends = [run(rate) for rate in rates]
    return {name: [end[name] for end in ends] for name in ends[0]}


class _Run:
    def __init__(self, problem, make, course, *, pair, searches):
        self._problem, self._make, self._course = problem, make, course
        self._pair, self._searches = pair, searches
        start = problem.start
        self._start = optax.LookaheadParams.init_synced(start) if pair else start
        goal = -jnp.inf
        if course.gap is not None:
            if problem.best is None:
                raise ValueError("the least value must be known")
            goal = problem.best + course.gap * abs(problem.best)
        self._goal = goal
        # Inside of a loop, convolutions are very slow on a CPU: trees go step by step.
        self._chunk = CHUNK if isinstance(start, jax.Array) else 1
        self._advance, self._end = jax.jit(self._loop), jax.jit(self._measure)

    def __call__(self, rate: float) -> dict[str, float]:
        steps = self._course.steps
        given = jnp.asarray(rate, jnp.float32)
        state = jax.tree.map(jnp.asarray, self._make(given).init(self._start))
        carry = (self._start, state, jnp.zeros([], jnp.int32), jnp.zeros([], bool))
        key = jax.random.key(0)
        for _ in range(0, steps, self._chunk):
            carry = self._advance(carry, given, key)
            if self._course.gap is not None and bool(carry[-1]):
                break
        params, state, count, met = carry
        found = {name: float(v) for name, v in self._end(self._here(params)).items()}
        taken = int(count)
        for field in ("shortened", "long"):
            counted = optax.tree.get(state, f"num_{field}", None)
            if counted is not None:
                found[field] = float(jnp.max(counted)) / taken
        return found | {"steps": taken, "met": bool(met)}

    def _here(self, params):
        """Where gradients are taken."""
        return params.fast if self._pair else params

    def _loop(self, carry, rate, key):
        problem, course = self._problem, self._course

        def step(carry):
            params, state, count, _ = carry
            tx = optax.with_extra_args_support(
                self._make(rate * course.decay(count / course.steps))
            )
            value, grads = jax.value_and_grad(problem.loss)(
                self._here(params), jax.random.fold_in(key, count)
            )
            more = {}
            if self._searches:
                more = {"value": value, "grad": grads, "value_fn": problem.value}
            updates, after = tx.update(grads, state, params, **more)
            # Some optimisers promote a moment or two, which a loop does not allow.
            after = jax.tree.map(lambda a, b: a.astype(b.dtype), after, state)
            params: Any = optax.apply_updates(params, updates)
            met = jnp.zeros([], bool)
            if course.gap is not None:
                projected = cdx.project(self._here(params), problem.mask)
                met = problem.value(projected) <= self._goal
            return params, after, count + 1, met

        until = jnp.minimum(carry[2] + self._chunk, course.steps)
        if self._chunk == 1:
            return step(carry)
        return jax.lax.while_loop(lambda c: (c[2] < until) & ~c[3], step, carry)

    def _measure(self, params):
        problem = self._problem
        offs = cdx.feasibility(params, problem.mask)
        columns = _columns(params)
        scaled = [off / columns[path] ** 0.5 for path, off in offs.items()]
        found = {
            "values": problem.value(cdx.project(params, problem.mask)),
            "feasibility": jnp.max(jnp.stack(scaled)),
        }
        if isinstance(params, jax.Array):
            found["gradients"] = self._slope(params) / self._slope(problem.start)
        return found

    def _slope(self, x):
        grads = jax.grad(self._problem.value)(x)
        return jnp.linalg.norm(cdx.stiefel.tangent(x, grads))


def _columns(params: Any) -> dict[str, int]:
    """The columns of each leaf, read in the default way."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): min(
            np.shape(leaf)[-1], int(np.prod(np.shape(leaf)[:-1]))
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
