"""Where runs of the solver end: not at saddles, and not before their budget."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cdopt_jax as cdx


def weighted(x, a, d):
    return jnp.sum((a @ x) * x * d)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("traced", [False, True])
def test_saddles_with_weak_curvature_are_left(traced, dtype):
    """From some the only way down is to turn two columns, or leads past others."""

    def solve(x, a, d):
        result = cdx.minimize(weighted, x, args=(a, d))
        return result.value, result.converged

    solve = jax.jit(solve) if traced else solve
    for seed, spread, d in (117, True, [0.548, 0.714]), (124, False, [1.75, 1.86]):
        rng = np.random.default_rng(seed)
        q = np.linalg.qr(rng.normal(size=(8, 8)))[0]
        values = np.geomspace(1, 1e-2, 8) if spread else rng.uniform(-1, 1, 8)
        a = (q * values) @ q.T
        values, vectors = np.linalg.eigh(a)
        args = jnp.asarray(a, dtype), jnp.asarray(d, dtype)
        for pair in [(0, 1), (0, 2), (0, 5), (0, 7), (5, 1), (6, 1), (7, 1), (7, 3)]:
            value, converged = solve(jnp.asarray(vectors[:, pair], dtype), *args)
            assert converged, pair
            assert float(value) == pytest.approx(values[1::-1] @ d, rel=1e-3), pair


def well(x, a, b):
    return jnp.sum(jnp.log1p(jnp.square(a @ x - b)))


@pytest.mark.parametrize("method", ["tangential", "auto"])
def test_a_run_without_an_end_takes_all_of_its_steps(method):
    """With a tolerance near to rounding the last point and the best one differ."""
    most, converged = 3000, 0
    for seed in range(20):
        a, b = np.split(np.random.default_rng(seed).normal(size=(20, 23)), [20], axis=1)
        args = jnp.asarray(a + a.T, jnp.float32), jnp.asarray(b, jnp.float32)
        x0 = cdx.stiefel.random(jax.random.key(seed), (20, 3), jnp.float32)
        result = cdx.minimize(
            well, x0, args=args, method=method, tol=1e-5, max_steps=most
        )
        used_up = "the budget of steps is used up" in result.message
        assert int(result.steps) == most or not used_up
        converged += bool(result.converged)
    assert converged >= 18
