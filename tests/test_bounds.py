"""The report: `bound` is never below the residual, and the fields say what was done."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.oracles import normal, polar, spectral

SIZES = (0.0, 1e-6, 1e-3, 1e-2, 0.1, 1.0, 1e2, 1e6)


@functools.cache
def transformation(kind: str, weights: tuple[float, ...] = ()) -> tuple[Any, Any]:
    """It and its compiled update; with a proximal map, of one weight at each step."""
    mask = cdx.Stiefel(B={"none": None, "array": B, "callable": lambda v: B @ v}[kind])
    tx = cdx.keep_feasible(mask)
    if weights:
        rate = optax.join_schedules(
            [optax.constant_schedule(w) for w in weights], range(1, len(weights))
        )
        r = cdx.prox.l1(1.0)
        tx = cdx.constrain(optax.sgd(0.1), mask, regularizer=r, learning_rate=rate)
    return tx, jax.jit(tx.update)


def reported(x, kind="none", sizes=SIZES, weights=()):
    """What steps of these sizes leave, and the bounds, which must not be below."""
    tx, update = transformation(kind, weights)
    state, left, bounds = tx.init(x), [], []
    for seed, size in enumerate(sizes):
        u = (size * normal(x.shape, seed, jnp.result_type(x, float))).astype(x.dtype)
        updates, state = update(u, state, x)
        x = jnp.asarray(optax.apply_updates(x, updates))
        left.append(spectral(x, None if kind == "none" else B))
        bounds.append(float(optax.tree.get(state, "bound")[0]))
    np.testing.assert_array_less(left, bounds)
    return np.array(left), np.array(bounds)


def ill_conditioned(n):
    """A metric of condition a million."""
    q = polar(normal((n, n), 3))
    b = (q * np.geomspace(1e-3, 1e3, n)) @ q.T
    return jnp.asarray((b + b.T) / 2, jnp.float32)


B = ill_conditioned(30)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float32", (30, 5)),
        ("float32", (1, 1)),
        ("float32", (200, 4)),
        ("bfloat16", (30, 5)),
        ("bfloat16", (16, 16)),
        ("float16", (30, 5)),
        ("complex64", (30, 5)),
        ("complex64", (16, 16)),
    ],
    ids=str,
)
def test_the_bound_is_above_what_rounding_leaves(dtype, shape):
    x = jnp.asarray(polar(normal(shape, 0, jnp.promote_types(dtype, float))), dtype)
    _, bounds = reported(x)
    # Nor is it one that says nothing.
    most = {"float16": 0.05, "bfloat16": 0.5}
    assert bounds.max() <= most.get(dtype, 1e-3)


@pytest.mark.slow
def test_the_bound_is_above_what_is_left_of_a_thousand_columns():
    x = jnp.asarray(polar(normal((1024, 1024), 0)), "float32")
    _, bounds = reported(x, sizes=(1e-4, 1e-2))
    assert bounds.max() <= 0.1


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", "array"),
        ("float32", "callable"),
        ("bfloat16", "array"),
        ("complex64", "array"),
    ],
    ids=str,
)
def test_the_bound_holds_in_a_metric_of_condition_a_million(dtype, kind):
    wide = jnp.promote_types(dtype, float)
    x = jnp.asarray(polar(normal((30, 5), 0, wide), B), dtype)
    _, bounds = reported(x, kind, (0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 1e2))
    if dtype != "bfloat16":
        # After long steps too it is that of the point, not of what led to it.
        assert bounds.max() <= 0.5


@pytest.mark.parametrize("kind", ["none", "array"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scale", [30.0, 3e3, 1e8])
def test_the_bound_holds_after_a_large_start(scale, dtype, kind):
    if (scale, dtype) == (1e8, "float16"):
        pytest.skip("not finite in float16")
    x = (scale * normal((30, 5), 0)).astype(dtype)
    left, bounds = reported(x, kind, (0, 0, 1e-3, 0))
    assert left[-1] <= bounds[-1] <= (0.5 if kind == "none" else np.inf)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", "none"),
        ("bfloat16", "none"),
        ("float32", "array"),
        ("complex64", "none"),
    ],
    ids=str,
)
def test_the_bound_and_the_radius_hold_behind_a_proximal_map(dtype, kind):
    # Thresholds that leave the point near the manifold, and ones that would not.
    weights = (1e-4, 1e-3, 0.03, 1.0, 100.0, 1e-4)
    z = normal((30, 5), 0, jnp.promote_types(dtype, float))
    x = jnp.asarray(polar(z, None if kind == "none" else B), dtype)
    left, _ = reported(x, kind, (0.0, 0.1, 1.0, 0.1, 10.0, 1e4), weights)
    # Rounding of the stored point comes on top.
    assert left.max() <= 0.5 + (0.02 if dtype == "bfloat16" else 1e-5)


def test_the_report_is_found_by_name_and_keeps_its_structure():
    params = {"a": normal((6, 2), 0), "b": normal((4, 5, 2), 1), "free": jnp.ones(3)}
    mask = {"a": True, "b": cdx.Stiefel(rows=1, columns=2), "free": False}
    tx = cdx.constrain(optax.adam(1e-2), mask)
    state = tx.init(params)
    types = jax.tree.map(jax.typeof, state)
    update = jax.jit(tx.update)
    for _ in range(3):
        updates, state = update(params, state, params)
        params: Any = optax.apply_updates(params, updates)
    assert jax.tree.map(jax.typeof, state) == types
    # The start was outside.
    np.testing.assert_array_equal(optax.tree.get(state, "num_long"), [1, 1])
    np.testing.assert_array_equal(optax.tree.get(state, "num_shortened"), [0, 0])
    np.testing.assert_array_equal(optax.tree.get(state, "step_fraction"), [1, 1])
    assert optax.tree.get(state, "num_updates") == 3
    assert optax.tree.get(state, "count") == 3
    np.testing.assert_array_less(optax.tree.get(state, "bound"), 0.5)
