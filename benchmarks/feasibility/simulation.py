"""Settings made to break a method: which optimisers, on what problem, and what is seen.

A `Case` is one compiled program. Optimiser, learning rate and noise are its arguments,
so that compiling, which takes longer than the steps, is done once for all of them.
"""

import functools
import math
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

import cdopt_jax as cdx
from benchmarks.feasibility.odd import ODD
from benchmarks.shared.methods import OPTIMISERS, WRAPPERS

RADIUS = 0.5
"""That of `keep_feasible` and `constrain`, by default."""

CONDITION = 1e3
"""Of the metric B, where there is one."""

# Above this many rows A and B are diagonal and B is a callable: dense products would
# cost more than the method under test.
_DENSE = 100


PROPOSERS = {**OPTIMISERS, **ODD}
"""What proposes updates: optimisers, and what none of them would propose."""

GUARDED = ("constrain", "Algorithm 1, β = auto, guarded")
"""The wrappers whose state has the report of `keep_feasible`."""


class Case(NamedTuple):
    """What one compiled program runs.

    Attributes:
        wrapper: A key of `WRAPPERS`.
        optimisers: Keys of `PROPOSERS`. ``"lbfgs"``, which is given the function too,
            and ``"lookahead"``, whose parameters are a pair, go alone.
        dtype: ``"bfloat16"``, ``"float32"`` or ``"float64"``.
        shape: A matrix, or a stack of them.
        metric: ``"stiefel"``, or ``"generalized"`` for a B of condition `CONDITION`.
    """

    wrapper: str
    optimisers: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    metric: str


def _on_fast(lookahead: optax.GradientTransformation):
    """A lookahead that may be given the gradients of both copies, the slow one's 0."""

    def update(updates, state, params=None, **extra_args):
        del extra_args
        return lookahead.update(_fast(updates), state, params)

    return optax.GradientTransformationExtraArgs(lookahead.init, update)


def _one_of(index: Array, optimisers: Sequence[Any]):
    """The optimiser of that index, in the dtypes of the parameters and its first state.

    Some optimisers promote their updates or a moment or two, which neither a switch
    nor a scan allows.
    """

    def init(params):
        return tuple(_like(o.init(params), o.init(params)) for o in optimisers)

    def update(updates, state, params=None, **extra_args):
        def branch(i):
            optimiser = optax.with_extra_args_support(optimisers[i])

            def run():
                u, after = optimiser.update(updates, state[i], params, **extra_args)
                after = _like(after, state[i])
                return _like(u, params), (*state[:i], after, *state[i + 1 :])

            return run

        return lax.switch(index, [branch(i) for i in range(len(optimisers))])

    return optax.GradientTransformationExtraArgs(init, update)


def _like(tree, example):
    def cast(a, b):
        return jnp.asarray(a, jnp.asarray(b).dtype)

    return jax.tree.map(cast, tree, example)


def allowance(case: Case) -> float:
    """What rounding may add to ‖xᵀBx − I‖₂ beyond the radius.

    The arithmetic of the step and of the measurement, at float32 or better, adds 1e-3
    or 1e-9. Storing the point adds up to eps|x| to its entries, with random signs.
    Entries of x are of size √(‖B⁻¹‖/n) at most on average, so the norm of that error in
    the metric of B is about δ = eps·√cond(B)·(1 + √(p/n)), and the residual changes by
    2δ + δ².
    """
    n, p = case.shape[-2:]
    cond = CONDITION if case.metric == "generalized" else 1
    delta = float(jnp.finfo(case.dtype).eps) * math.sqrt(cond) * (1 + math.sqrt(p / n))
    return (1e-9 if case.dtype == "float64" else 1e-3) + 2 * delta + delta**2


def simulate(
    case: Case, steps: int, rates: Sequence[float], noises: Sequence[float], seed: int
) -> dict[str, np.ndarray]:
    """Take steps with every optimiser, learning rate and noise, from one start.

    Args:
        case: What to run.
        steps: How many steps to take with each setting.
        rates: The learning rates.
        noises: The norms of what is added to the gradient, relative to its own.
        seed: Of the problem, the start and the noise.

    Returns:
        Arrays of shape (optimisers, rates, noises). ``frobenius`` and ``spectral`` are
        the worst residuals over all steps and matrices, ``finite`` whether they always
        were, ``rose`` whether the loss was ever above the start's, ``loss`` the last.
        Of the guard, ``shortened``, ``long`` and ``dropped`` are the steps of which a
        fraction below one was taken, the long ones, and those not made at all. Of the
        unconstrained optimiser, ``first`` is the ‖xᵀBx − I‖_F to which its first step
        along the projected gradient leads.
    """
    with _doubles(on=case.dtype == "float64"):
        return _simulate(case, steps, rates, noises, seed)


@contextmanager
def _doubles(*, on):
    """As a user of that dtype would have it; else line searches promote to float64."""
    before = jnp.zeros(()).dtype == jnp.float64
    jax.config.update("jax_enable_x64", val=on)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", val=before)


def _simulate(case, steps, rates, noises, seed):
    start, loss, spec = _problem(case, seed)
    keys = jax.random.split(jax.random.key(seed + 1), steps)
    guarded = case.wrapper in GUARDED
    lookahead = case.optimisers == ("lookahead",)

    def objective(params):
        return loss(_fast(params))

    def one(setting):
        index, rate, noise = setting
        # As the number that it is in most programs, it must not promote the updates.
        rate = rate.astype(case.dtype)
        optimisers = [PROPOSERS[name](rate) for name in case.optimisers]
        if lookahead:
            optimisers = [_on_fast(optimisers[0])]
        tx = WRAPPERS[case.wrapper](_one_of(index, optimisers), spec)
        params = optax.LookaheadParams.init_synced(start) if lookahead else start
        begin = objective(params)

        def proposal(tx, state, params, key, *, projected=False):
            value, grads = jax.value_and_grad(objective)(params)
            grads = jax.tree.map(lambda g: _noisy(g, noise, key), grads)
            if projected:
                grads = jax.tree.map(
                    lambda g: cdx.stiefel.vjp(start, g, B=spec.B), grads
                )
            # `constrain` expects what lookahead does, the others one for each leaf.
            grads = _fast(grads) if case.wrapper == "constrain" else grads
            more = {"value": value, "grad": grads, "value_fn": objective}
            searches = case.optimisers == ("lbfgs",)
            return tx.update(grads, state, params, **(more if searches else {}))

        def step(carry, key):
            params, state, seen = carry
            updates, after = proposal(tx, state, params, key)
            after = _like(after, state)
            params = optax.apply_updates(params, updates)
            e = jnp.stack([_residual(x, spec) for x in jax.tree.leaves(params)])
            size = jnp.max(jnp.linalg.norm(e, axis=(-2, -1)))
            value = objective(params)
            now = {
                "frobenius": jnp.fmax(seen["frobenius"], size),
                "finite": seen["finite"] & jnp.all(jnp.isfinite(e)),
                "rose": seen["rose"] | ~(value <= begin * (1 + 1e-6)),
                "loss": value,
            }
            if guarded:
                # Eigenvalues are dear, and can matter only where ‖E‖_F is larger.
                larger = size > seen["spectral"]
                worst = lax.cond(larger, _spectral, lambda _: jnp.zeros(()), e)
                now["spectral"] = jnp.fmax(seen["spectral"], worst)
                none = jnp.any(optax.tree.get(after, "step_fraction") == 0)
                now["dropped"] = seen["dropped"] + none
            return (params, after, now), None

        seen = {
            "frobenius": jnp.zeros(()),
            "finite": jnp.ones((), bool),
            "rose": jnp.zeros((), bool),
            "loss": begin,
        }
        if guarded:
            seen |= {"spectral": jnp.zeros(()), "dropped": jnp.zeros((), int)}
        carry, _ = lax.scan(step, (params, tx.init(params), seen), keys)
        _, state, seen = carry
        if guarded:
            seen["shortened"] = jnp.max(optax.tree.get(state, "num_shortened"))
            seen["long"] = jnp.max(optax.tree.get(state, "num_long"))
        if case.wrapper == "unconstrained":
            fresh = tx.init(params)
            u, _ = proposal(tx, fresh, params, keys[0], projected=True)
            e = _residual(_fast(optax.apply_updates(params, u)), spec)
            seen["first"] = jnp.max(jnp.linalg.norm(e, axis=(-2, -1)))
        return seen

    ranges = (np.arange(len(case.optimisers)), np.asarray(rates), np.asarray(noises))
    grid = np.meshgrid(*ranges, indexing="ij")
    settings = tuple(jnp.asarray(axis.ravel()) for axis in grid)
    # Not vmap, under which the guard would compute both sides of every condition.
    program = jax.jit(lambda s: lax.map(one, s))
    return {
        name: np.asarray(values, np.float64).reshape(grid[0].shape)
        for name, values in program(settings).items()
    }


def _problem(case, seed):
    """½‖AX − AY‖² with cond(A) = 10 and random X and Y on the manifold; X, f, spec."""
    rng = np.random.default_rng(seed)
    n = case.shape[-2]
    wide = jnp.float64 if case.dtype == "float64" else jnp.float32

    def rotation():
        return np.linalg.qr(rng.normal(size=(n, n)))[0]

    def diagonal(values):
        column = jnp.asarray(rng.permutation(values)[:, None], wide)
        return lambda x: column * x

    metric = None
    spectrum = np.geomspace(1, CONDITION, n) / CONDITION**0.5
    if case.metric == "generalized" and n <= _DENSE:
        q = rotation()
        b = (q * spectrum) @ q.T
        metric = jnp.asarray((b + b.T) / 2, wide)
    elif case.metric == "generalized":
        metric = diagonal(spectrum)
    spec = cdx.Stiefel(rows=-2, columns=-1, B=metric)
    singular = np.geomspace(1, 10, n)
    if n <= _DENSE:
        a = jnp.asarray(rotation() * singular, wide)
        apply = functools.partial(jnp.matmul, a)
    else:
        apply = diagonal(singular)
    here, there = jax.random.split(jax.random.key(seed))
    start = cdx.stiefel.random(here, case.shape, wide, B=metric).astype(case.dtype)
    target = apply(cdx.stiefel.random(there, case.shape, wide, B=metric))

    def loss(x):
        return jnp.sum((apply(x.astype(wide)) - target) ** 2) / 2

    return start, loss, spec


def _fast(params):
    return params.fast if isinstance(params, optax.LookaheadParams) else params


def _noisy(g, noise, key):
    z = jax.random.normal(key, g.shape, g.dtype)
    size = jnp.linalg.norm(g.ravel()) / jnp.linalg.norm(z.ravel())
    return g + (noise * size).astype(g.dtype) * z


def _residual(x, spec):
    return cdx.stiefel.residual(x, B=spec.B)


def _spectral(e):
    return jnp.max(jnp.abs(jnp.linalg.eigvalsh(e)))
