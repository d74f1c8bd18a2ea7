"""The solver: optima that other libraries know."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
import scipy.optimize

import cdopt_jax as cdx
from benchmarks.shared.problems import sparse_pca
from tests.marks import mostly
from tests.minimize_problems import (
    BEST,
    METRIC,
    PLANTED,
    POINTS,
    RNG,
    M,
    N,
    P,
    farthest,
    kinks,
    quadratic,
    start,
)

SMOOTH = ["proximal", "tangential", "lbfgs", "newton"]


@pytest.mark.parametrize("method", SMOOTH)
def test_a_smooth_optimum_is_that_of_the_eigenvalues(method):
    result = cdx.minimize(quadratic, start(), method=method, max_steps=500)
    assert float(result.value) == pytest.approx(BEST, abs=1e-10)
    assert float(cdx.stiefel.feasibility(result.projected)) < 1e-10
    worse = quadratic(result.projected) - result.value
    assert float(worse) < 1e-8


@pytest.mark.parametrize("callable_metric", [False, True])
def test_generalized_eigenvalues_are_those_of_scipy(callable_metric):
    b = jnp.asarray(METRIC)
    spec = cdx.Stiefel(B=(lambda x: b @ x) if callable_metric else b)
    result = cdx.minimize(quadratic, start(B=METRIC), spec, tol=1e-9)
    values = scipy.linalg.eigh(M, METRIC, eigvals_only=True)
    assert float(result.value) == pytest.approx(-values[-P:].sum() / 2, abs=1e-8)
    assert bool(result.converged)
    assert float(result.feasibility) < 1e-10


@pytest.mark.parametrize("method", ["proximal", "continuation"])
def test_the_multiplier_makes_a_composite_problem_stationary(method):
    weight = 0.1
    result = cdx.minimize(
        quadratic, start(), method=method, regularizer=cdx.prox.l1(weight), tol=1e-8
    )
    assert np.all(np.diff(result.history.step) > 0)
    assert bool(result.converged)
    x = result.params
    assert float(cdx.stiefel.feasibility(x)) < 1e-12
    assert farthest(x, jax.grad(quadratic)(x), weight, 1e-6) < 1e-7
    zeros = np.mean(np.asarray(result.proximal) == 0)
    assert float(result.sparsity) == pytest.approx(zeros)
    assert zeros > 0.4
    np.testing.assert_allclose(result.proximal, x, atol=1e-6)


def test_auto_finds_the_planted_direction_of_a_function_with_kinks():
    first = jnp.asarray(np.linalg.svd(POINTS)[2][-1:].T)
    result = cdx.minimize(kinks, first, max_steps=2000)
    assert result.method == "geometric"
    assert abs(float(PLANTED[:, 0] @ result.params[:, 0])) == pytest.approx(1, abs=1e-9)
    assert len(result.history.step) == len(set(np.asarray(result.history.step)))
    assert np.all(np.diff(result.history.seconds) > 0)


@pytest.mark.parametrize(
    "method",
    mostly(
        ["diminishing", "normalized", "polyak", "sampling"],
        slow=["diminishing", "normalized"],
    ),
)
def test_every_rule_lowers_a_function_with_kinks(method):
    steps = 60 if method == "sampling" else 400
    result = cdx.minimize(kinks, start(1, 8, 1), method=method, max_steps=steps)
    best = float(kinks(jnp.asarray(PLANTED)))
    assert float(result.value) - best < 0.05 * (float(kinks(start(1, 8, 1))) - best)
    assert float(result.feasibility) < 1e-8


def test_an_optax_optimiser_is_a_method():
    result = cdx.minimize(quadratic, start(), method=optax.adam(0.02), max_steps=400)
    assert result.method == "optax"
    assert float(result.value) == pytest.approx(BEST, rel=1e-3)


def test_batches_are_drawn_anew_and_the_optimum_is_met_on_average():
    data = jnp.asarray(RNG.normal(size=(500, N)) @ np.diag(np.geomspace(3, 0.3, N)))

    def loss(x, rows):
        return -jnp.mean(jnp.sum((rows @ x) ** 2, axis=1))

    def batch(key):
        return data[jax.random.randint(key, (50,), 0, len(data))]

    result = cdx.minimize(loss, start(), batch=batch, max_steps=300)
    best = -np.linalg.eigvalsh(np.asarray(data.T @ data) / len(data))[-P:].sum()
    assert float(loss(result.projected, data)) == pytest.approx(best, rel=0.02)


def test_a_tree_has_free_leaves_beside_the_constrained():
    def f(params):
        return quadratic(params["x"]) + jnp.sum((params["c"] - 2.0) ** 2)

    params = {"x": start(), "c": jnp.zeros(4)}
    result = cdx.minimize(f, params, cdx.where("x"))
    np.testing.assert_allclose(result.params["c"], 2, atol=1e-6)
    assert float(result.value) == pytest.approx(BEST, abs=1e-9)


def test_zeros_are_exact_in_the_parameters_also_with_a_metric():
    # The best x is along the last axis, and Lᵀx, in which it is computed, is dense.
    towards = jnp.asarray(METRIC[:, -1:])
    spec = cdx.Stiefel(B=jnp.asarray(METRIC))
    result = cdx.minimize(
        lambda x: -jnp.sum((towards.T @ x) ** 2),
        start(p=1, B=METRIC),
        spec,
        regularizer=cdx.prox.l1(1e-2),
    )
    assert result.converged
    assert float(result.sparsity) == pytest.approx(1 - 1 / N)
    assert float(jnp.mean(result.proximal == 0)) == pytest.approx(1 - 1 / N)


@pytest.mark.parametrize(
    "beta",
    [0.1, *(pytest.param(b, marks=pytest.mark.slow) for b in (1.0, 10.0)), 100.0],
)
def test_a_stationary_point_of_h_is_one_of_the_problem_for_every_weight(beta):
    """The theorem, seen: h is minimised by a plain subgradient method of its own."""
    weight = 0.05

    def whole(x):
        return quadratic(x) + weight * jnp.sum(jnp.abs(x))

    look = jax.value_and_grad(cdx.objective(whole, beta=beta))

    def step(carry, _):
        x, best, least, length, since = carry
        value, g = look(x)
        progress = value < least - 1e-3 * length * jnp.linalg.norm(g)
        best = jnp.where(value < least, x, best)
        since = jnp.where(progress, 0, since + 1)
        shorter = since >= 60
        length = jnp.where(shorter, 0.9 * length, length)
        x = jnp.where(shorter, best, x) - length * g / jnp.linalg.norm(g)
        least = jnp.minimum(value, least)
        return (x, best, least, length, jnp.where(shorter, 0, since)), None

    noise = np.random.default_rng(0).normal(size=(N, P))
    x0 = start() + 0.01 * noise
    begin = (x0, x0, jnp.inf, 0.01, 0)
    (_, best, *_), _ = jax.jit(lambda c: jax.lax.scan(step, c, None, 60_000))(begin)
    # Near the manifold, and nearer than where it started.
    assert float(cdx.stiefel.feasibility(best)) < 0.01
    x = cdx.stiefel.project(best)
    at_start = farthest(start(), jax.grad(quadratic)(start()), weight, 1e-5)
    assert farthest(x, jax.grad(quadratic)(x), weight, 1e-5) < 2e-3 * at_start


FOLDER = os.environ.get("CDOPT_JAX_DATASETS")


@pytest.mark.skipif(FOLDER is None, reason="CDOPT_JAX_DATASETS names no folder")
def test_components_of_pitprops_explain_what_published_ones_do():
    """Zou, Hastie and Tibshirani: 75.8 % with 18 loadings; all of PCA: 87 %."""
    instance = sparse_pca.pitprops(Path(FOLDER or ""), 0)
    starts = cdx.stiefel.random(jax.random.key(0), (10, 13, 6), jnp.float64)

    def solve(x):
        return cdx.minimize(
            instance.f,
            x,
            method="continuation",
            regularizer=instance.regularizer,
            max_steps=2000,
        )

    result = jax.jit(jax.vmap(solve))(starts)
    x = np.asarray(result.params[int(jnp.argmin(result.value))])
    correlations = np.load(Path(FOLDER or "") / "pitprops.npz")["corr"]
    half = np.real(scipy.linalg.sqrtm(correlations))
    order = np.argsort(-np.linalg.norm(half @ x, axis=0))
    adjusted = np.sum(np.diag(np.linalg.qr(half @ x[:, order])[1]) ** 2) / 13
    assert 13 <= np.sum(np.abs(x) > 1e-5) <= 20
    assert 0.74 <= adjusted <= 0.87
