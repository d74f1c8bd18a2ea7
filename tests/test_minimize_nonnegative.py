"""The solver on nonnegative matrices with orthonormal columns."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import cdopt_jax as cdx
from tests.minimize_problems import start

L1 = cdx.prox.nonnegative_l1


def similarity(x, m):
    return -jnp.sum(x * (m @ x))


def alignment(x, g):
    return -jnp.sum(x * g)


def clusters(n=60, k=3, noise=0.1):
    rng = np.random.default_rng(0)
    z = np.eye(k)[rng.integers(0, k, n)]
    wrong = np.eye(k)[rng.integers(0, k, n)]
    m = z @ z.T + noise * rng.standard_normal((n, n))
    return z, jnp.asarray(m), jnp.asarray(wrong / np.linalg.norm(wrong, axis=0))


def slope(x, g):
    """The length of the steepest feasible descent: by columns, and from rows of zeros.

    Args:
        x: A nonnegative matrix in which a row has at most one nonzero entry.
        g: The gradient of f + r.
    """
    x, g = np.asarray(x), np.asarray(g)
    assert np.all(x >= 0)
    assert np.all(np.sum(x > 0, axis=1) <= 1)
    np.testing.assert_allclose(np.linalg.norm(x, axis=0), 1, atol=1e-9)
    inside = np.where(x > 0, g - x * np.sum(x * g, axis=0), 0)
    outside = np.where(x.any(axis=1), 0, np.minimum(g, 0).min(axis=1))
    return np.hypot(np.linalg.norm(inside), np.linalg.norm(outside))


def test_clusters_are_found_from_wrong_ones():
    z, m, wrong = clusters()
    result = cdx.minimize(similarity, wrong, args=(m,), regularizer=L1(1e-3))
    assert result.method == "nonnegative"
    assert result.converged, result.message
    planted = jnp.asarray(z / np.linalg.norm(z, axis=0))
    assert float(result.value) <= float(similarity(planted, m) + 1e-3 * planted.sum())
    assert slope(result.params, jax.grad(similarity)(result.params, m) + 1e-3) < 1e-5
    x = result.projected
    assert float(x.min()) == 0
    assert float(cdx.stiefel.feasibility(x)) < 1e-12
    # A column for each cluster, in some order.
    assert np.all(np.sum(np.asarray(x).T @ z > 1e-6, axis=1) == 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_certified_point_is_stationary_among_feasible_ones(seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((30, 30))
    m, x0 = jnp.asarray(a @ a.T / 30), start(seed, 30, 3)
    result = cdx.minimize(similarity, x0, args=(m,), regularizer=L1(0.1))
    assert result.converged, result.message
    g = np.asarray(jax.grad(similarity)(result.params, m)) + 0.1
    assert slope(result.params, g) < 1e-6 * np.linalg.norm(g)


def test_the_best_of_many_starts_is_the_best_assignment_of_rows():
    g = np.random.default_rng(0).standard_normal((7, 2))
    parts = [np.array(s) for s in itertools.product(range(2), repeat=7)]
    gains = [
        sum(np.linalg.norm(np.maximum(g[s == j, j] - 1e-3, 0)) for j in range(2))
        for s in parts
        if len(set(s)) == 2
    ]
    result = cdx.minimize(
        alignment,
        start(0, 7, 2),
        args=(jnp.asarray(g),),
        regularizer=L1(1e-3),
        starts=6,
        key=jax.random.key(0),
    )
    assert result.converged
    assert result.values is not None
    assert np.all(np.isfinite(result.values))
    assert float(result.value) == pytest.approx(-max(gains), abs=1e-9)


def test_wide_leaves_stacks_and_free_leaves_have_nonnegative_matrices():
    g = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 12)))

    def f(params):
        return alignment(params["wide"], g) + jnp.sum((params["free"] + 1) ** 2)

    params = {"wide": jnp.moveaxis(start(n=24).reshape(2, 12, 3), 1, 2)}
    params["free"] = jnp.zeros(4)
    result = cdx.minimize(
        f,
        params,
        cdx.where("wide", spec=cdx.layers.dense()),
        regularizer=L1({"wide": 1e-3, "free": 0}),
    )
    assert result.converged
    for x, part in zip(result.params["wide"], g, strict=True):
        assert slope(x.T, 1e-3 - part.T) < 1e-5
    np.testing.assert_allclose(result.params["free"], -1, atol=1e-5)


def test_columns_in_single_precision_beside_a_leaf_with_a_metric_stay_nonnegative():
    rng = np.random.default_rng(0)
    g, a = rng.standard_normal((12, 3)), rng.standard_normal((10, 10))
    a, B = a @ a.T, np.diag(np.geomspace(1, 1e3, 10)) + 0.5
    single = partial(jnp.asarray, dtype=jnp.float32)

    def f(params, g, a):
        y = params["metric"]
        return alignment(params["columns"], g) - jnp.sum(y * (a @ y))

    x0 = {"columns": single(start(0, 12, 3)), "metric": single(start(1, 10, 2, B=B))}
    result = cdx.minimize(
        f,
        x0,
        {"columns": cdx.Stiefel(), "metric": cdx.Stiefel(B=single(B))},
        args=(single(g), single(a)),
        regularizer=L1({"columns": 1e-3, "metric": 0.0}),
    )
    assert result.converged, result.message
    best = scipy.linalg.eigh(a, B, eigvals_only=True)[-2:].sum()
    for end in (result.params, result.projected):
        x, y = (np.asarray(end[name], float) for name in ("columns", "metric"))
        x = x / np.linalg.norm(x, axis=0)
        assert slope(x, 1e-3 - g) < float(result.tolerance) < 0.02
        assert -np.sum(y * (a @ y)) == pytest.approx(-best, rel=1e-4)
        assert np.linalg.norm(y.T @ B @ y - np.eye(2)) < 1e-4


def test_a_run_inside_jit_is_certified_as_well():
    _, m, wrong = clusters(30)

    @jax.jit
    def solve(m):
        return cdx.minimize(similarity, wrong, args=(m,), regularizer=L1(1e-3))

    result = solve(m)
    assert result.converged
    assert slope(result.params, jax.grad(similarity)(result.params, m) + 1e-3) < 1e-5


@pytest.mark.parametrize("steps", [1, 7])
def test_a_run_that_is_cut_short_ends_at_a_feasible_point(steps):
    _, m, wrong = clusters()
    result = cdx.minimize(
        similarity, wrong, args=(m,), regularizer=L1(1e-3), max_steps=steps
    )
    assert not result.converged
    assert int(result.steps) <= steps
    assert np.isfinite(result.value)
    assert slope(result.params, jax.grad(similarity)(result.params, m) + 1e-3) > 1e-5


def test_a_run_that_is_stopped_ends_at_a_feasible_point_and_goes_on_from_there():
    _, m, wrong = clusters()
    options = {"args": (m,), "regularizer": L1(1e-3)}
    stopped = cdx.minimize(
        similarity, wrong, callback=lambda info: info.step > 20, **options
    )
    assert not stopped.converged
    assert "stopped by the callback" in stopped.message
    assert slope(stopped.params, jnp.zeros_like(wrong)) == 0
    further = cdx.minimize(similarity, stopped, **options)
    assert further.converged
    assert float(further.value) <= float(stopped.value)


@pytest.mark.parametrize(
    ("mask", "method", "words"),
    [
        (cdx.Stiefel(B=jnp.eye(60)), "auto", "without a metric"),
        (None, "tangential", 'write method="auto"'),
        (None, "geometric", 'write method="auto"'),
    ],
)
def test_what_has_no_nonnegative_form_is_refused(mask, method, words):
    _, m, wrong = clusters()
    with pytest.raises(ValueError, match=words):
        cdx.minimize(
            similarity, wrong, mask, args=(m,), regularizer=L1(1e-3), method=method
        )
