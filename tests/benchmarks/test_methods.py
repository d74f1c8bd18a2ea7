"""The methods of the experiment: each a transformation, against independent oracles."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

import cdopt_jax as cdx
from benchmarks.shared.methods import METHODS, Task
from benchmarks.shared.methods.dissolving import centralize
from benchmarks.shared.methods.leaves import back, descending, matrix, on_constrained
from benchmarks.shared.methods.lookahead import lookahead
from benchmarks.shared.methods.penalties import cubic
from benchmarks.shared.methods.proximal import r_proxsgd, tangent_prox
from benchmarks.shared.methods.retraction import descent, polar_svd
from tests.oracles import assert_close, each_seed, normal, polar

MASK = cdx.where("kernel", "conv")
FEASIBLE = ("constrain", "r-", "pogo")
NEAR = ("soft-penalty", "landing", "algorithm-1")
# Each of these differs from another in a part that has a test of its own.
ALIKE = ("r-sgd-gram", "cayley", "expen-autodiff", "restore-feasibility", "sgd", "adam")
ALIKE += ("constrain-muon", "keep-feasible")
each_method = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name
        for name in METHODS
    ],
)


def task(gamma=0.0, beta=3.0):
    return Task(mask=MASK, gamma=gamma, beta=beta, schedule=optax.constant_schedule)


def start(seed=0):
    """A tall and a wide constrained leaf, and one that is free."""
    shapes = {"kernel": (3, 3, 2, 4), "conv": (2, 6), "bias": (4,)}
    params = {k: normal(shape, seed + i) for i, (k, shape) in enumerate(shapes.items())}
    return cdx.project(jax.tree.map(jnp.asarray, params), MASK)


def loss(params):
    """Smooth, with its minimum off the manifold."""
    aims = start(seed=7)
    parts = jax.tree.map(lambda x, a: jnp.sum((x - 2 * a) ** 2), params, aims)
    return sum(jax.tree.leaves(parts))


def advance(method, params, steps, value=loss):
    """The parameters after so many steps."""

    @jax.jit
    def step(params, state):
        grads = jax.grad(value)(method.point(params))
        updates, state = method.transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = method.transform.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params


@each_method
def test_every_method_descends_on_all_leaves_and_feasible_ones_stay_on_the_manifold(
    name,
):
    method = METHODS[name].make(task(), 1e-2)
    assert method.settings["learning_rate"] == 1e-2
    before, after = start(), advance(method, start(), 100)
    assert loss(method.point(after)) < loss(method.point(before))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before, after)
    assert min(moved.values()) > 1e-3
    farthest = max(cdx.feasibility(after, MASK).values())
    if name.startswith(FEASIBLE):
        assert farthest < 1e-6
    elif name in NEAR:
        assert 1e-8 < farthest < 2


def test_constrained_methods_end_where_a_projection_does():
    # Of a leaf alone, the nearest point to 2a on the manifold is a itself.
    for name in ("constrain-sgd", "r-sgd-qr"):
        after = advance(METHODS[name].make(task(), 5e-2), start(), 2000)
        for leaf, aim in zip(
            jax.tree.leaves(after), jax.tree.leaves(start(seed=7)), strict=True
        ):
            scale = 2 if leaf.ndim == 1 else 1
            assert_close(leaf, scale * aim, 1e-5)


def test_gradients_are_centred_for_each_output():
    """As Optax centres kernels whose outputs come first; a bias is left alone."""
    grads = {"conv": normal((3, 2, 5, 4), 0), "dense": normal((6, 3), 1)}
    first = jax.tree.map(lambda g: np.moveaxis(g, -1, 0), grads)
    wanted, _ = optax.centralize().update(first, optax.EmptyState())
    wanted = jax.tree.map(lambda g: np.moveaxis(g, 0, -1), wanted)
    bias = normal((4,), 2)
    found: Any
    found, _ = centralize().update(grads | {"bias": bias}, optax.EmptyState())
    for name, expected in (wanted | {"bias": bias}).items():
        assert_close(found[name], expected, 1e-12)


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_lookahead_is_that_of_optax(seed):
    fast = optax.radam(0.05)
    params = {"x": jnp.asarray(normal((4, 3), seed))}

    def value(p):
        return jnp.sum(jnp.sin(p["x"]) ** 2)

    mine: Any = params
    state = lookahead(fast).init(params)
    theirs: Any = optax.LookaheadParams.init_synced(params)
    rival = optax.lookahead(fast, sync_period=5, slow_step_size=0.5)
    rival_state = rival.init(theirs)
    for _ in range(12):
        updates, state = lookahead(fast).update(jax.grad(value)(mine), state, mine)
        mine = optax.apply_updates(mine, updates)
        updates, rival_state = rival.update(
            jax.grad(value)(theirs.fast), rival_state, theirs
        )
        theirs = optax.apply_updates(theirs, updates)
        assert_close(mine["x"], theirs.fast["x"], 1e-6)


solve_exactly = jax.jit(partial(tangent_prox, tolerance=1e-11))


def best_tangent(x, g, rate, gamma):
    """The tangential proximal problem by SciPy, as a quadratic program.

    X + Y = a − b with a, b ≥ 0, so that ‖X + Y‖₁ is their sum.
    """
    n, p = x.shape

    def value(v):
        a, b = v.reshape(2, n, p)
        y = a - b - x
        along = g + y / rate
        slope = np.stack([along + gamma, gamma - along])
        total = (g * y).sum() + gamma * v.sum() + (y**2).sum() / (2 * rate)
        return total, slope.ravel()

    rows, columns = np.triu_indices(p)

    def tangency(v):
        a, b = v.reshape(2, n, p)
        s = x.T @ (a - b - x)
        return (s + s.T)[rows, columns]

    start = np.concatenate([np.maximum(x, 0).ravel(), np.maximum(-x, 0).ravel()])
    solved = scipy.optimize.minimize(
        value,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0, None)] * (2 * n * p),
        constraints={"type": "eq", "fun": tangency},
        options={"maxiter": 500, "ftol": 1e-14},
    )
    assert np.abs(tangency(solved.x)).max() < 1e-8
    a, b = solved.x.reshape(2, n, p)
    return a - b - x, solved.fun


@each_seed
@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.5, 3.0])
@pytest.mark.parametrize("shape", [(6, 1), (5, 2), (4, 4)], ids=str)
def test_the_tangential_proximal_problem_is_that_of_a_generic_solver(
    shape, gamma, seed
):
    x, g = polar(normal(shape, seed)), normal(shape, 10 + seed)
    p = shape[1]
    solved = solve_exactly(x, g, 0.4, gamma, jnp.zeros((p, p)))
    assert solved.error < 1e-9
    y, value = best_tangent(x, g, 0.4, gamma)
    mine = np.asarray(solved.y)
    total = (g * mine).sum() + gamma * np.abs(x + mine).sum() + (mine**2).sum() / 0.8
    assert total <= value + 1e-9
    assert_close(mine, y, 1e-4)


@pytest.mark.parametrize(
    "dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"]
)
def test_it_is_solved_to_its_tolerance_from_any_multiplier(dtype):
    x = jnp.asarray(polar(normal((60, 20), 0)), dtype)
    g = normal((60, 20), 1, dtype)
    solve = jax.jit(partial(tangent_prox, x, g, 0.1))
    for size in (0.0, 1.0, 30.0):
        dual = size * normal((20, 20), 2, dtype)
        for gamma in (1e-5, 1e-2, 1.0):
            solved = solve(gamma, dual + dual.T)
            length = np.linalg.norm(solved.y)
            assert solved.error <= 1e-5 * (1 + length)
            assert solved.iterations < 30


def test_a_multiplier_of_the_last_step_saves_newton_steps():
    x, g = jnp.asarray(polar(normal((60, 20), 0))), normal((60, 20), 1)
    solve = jax.jit(tangent_prox)
    first = solve(x, g, 0.1, 0.3, jnp.zeros((20, 20)))
    again = solve(x, g + 1e-3, 0.1, 0.3, first.dual)
    assert 0 < again.iterations < first.iterations


@pytest.mark.slow
def test_without_the_l1_norm_it_is_a_riemannian_gradient_step():
    params, grads = start(), jax.grad(loss)(start())
    prox = r_proxsgd(optax.constant_schedule(0.1), 0.0, MASK)
    plain = descending(descent(polar_svd), optax.constant_schedule(0.1), MASK)
    mine, _ = jax.jit(prox.update)(grads, prox.init(params), params)
    theirs, _ = jax.jit(plain.update)(grads, plain.init(params), params)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert_close(a, b, 1e-5)


def test_proximal_methods_make_exact_zeros_of_free_parameters():
    strong = task(gamma=100.0)
    for name in ("r-proxsgd", "algorithm-2"):
        after = advance(METHODS[name].make(strong, 1e-2), start(), 100)
        assert (after["bias"] == 0).all()


def test_expen_takes_its_gradient_at_the_cubic():
    params = jax.tree.map(lambda x: 1.1 * x, start())
    method = METHODS["expen"].make(task(), 0.1)
    point = method.point(params)
    assert_close(point["bias"], params["bias"], 0)
    assert_close(matrix(point["conv"]), cubic(matrix(params["conv"])), 1e-6)


def test_a_wide_leaf_is_transposed_and_back():
    leaf = jnp.asarray(normal((2, 6), 0))
    assert matrix(leaf).shape == (6, 2)
    assert_close(back(matrix(leaf), leaf), leaf, 0)
    params = start()
    same = on_constrained(lambda _, u: u, MASK, params, params)
    for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(params), strict=True):
        assert_close(a, b, 0)
