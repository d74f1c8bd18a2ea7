"""The guarded step: what its proof claims, and what no update may bring about."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.oracles import (
    gram_residual,
    metric_of,
    near,
    normal,
    plain_dissolve,
    polar,
    transpose,
)

# Rounding of a residual that is itself of order one, in each dtype.
SLACK = {"float32": 3e-4, "float64": 1e-9}


def spectral(e):
    return np.linalg.norm(np.asarray(e, np.float64), 2, axis=(-2, -1))


def guarded(radius=0.5, B=None):
    mask = cdx.Stiefel(rows=-2, columns=-1, B=B)
    tx = cdx.keep_feasible(mask, radius=radius)

    def step(x, u) -> tuple[Any, Any]:
        updates, state = tx.update(u, tx.init(x), x)
        return optax.apply_updates(x, updates), state

    # Without a callable, what is compiled for a shape serves every test.
    return jax.jit(step) if callable(B) else step


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "radius"),
    [
        ((1, 1), "float64", "array", 0.5),
        ((7, 1), "float32", "none", 0.05),
        ((7, 1), "float64", "callable", 0.9),
        ((6, 6), "float32", "none", 0.5),
        ((6, 6), "float64", "none", 0.05),
        ((20, 4), "float32", "callable", 0.5),
        ((20, 4), "float64", "none", 0.9),
        ((5, 8, 3), "float32", "array", 0.5),
        ((5, 8, 3), "float64", "none", 0.5),
    ],
    ids=str,
)
def test_no_finite_update_leaves_the_radius(shape, dtype, kind, radius):
    B, b = metric_of(kind, shape[-2], dtype)
    step = guarded(radius, B)
    x = cdx.stiefel.random(jax.random.key(0), shape, dtype, B=B)
    for seed in range(21):
        u = normal(shape, seed, dtype)
        # Tangential, normal and mixed directions, from far too short to far too long.
        normal_part = x @ (transpose(x) @ u + transpose(u) @ x)
        u = (u, normal_part, u + 1e2 * normal_part)[seed % 3]
        x, state = step(x, 10.0 ** (2 * (seed % 7) - 5) * u)
        after = spectral(gram_residual(x, b))
        slack = SLACK[dtype]
        assert np.all(after <= radius + slack)
        assert np.all(after <= np.max(state.bound) + slack)
        assert 0 < state.t[0] <= 1


@pytest.mark.parametrize("kind", ["none", "array"])
def test_from_the_edge_of_the_radius_a_step_stays_inside(kind):
    B, b = metric_of(kind, 9)
    x = jnp.asarray(near(9, 3, 0, 0.49, kind, None if kind == "none" else b))
    step = guarded(0.5, B)
    for seed in range(5):
        for size in (1e-3, 1.0, 1e3):
            y, _ = step(x, size * normal(x.shape, seed))
            assert spectral(gram_residual(y, b)) <= 0.5 + 1e-12


@pytest.mark.parametrize("kind", ["none", "array"])
def test_a_short_step_is_its_tangential_part_seen_through_the_dissolving_map(kind):
    B, b = metric_of(kind, 12)
    x = jnp.asarray(near(12, 4, 1, 0.1, kind, None if kind == "none" else b))
    u = 0.01 * normal(x.shape, 2)
    y, state = guarded(0.5, B)(x, u)
    v = u - x @ (x.T @ b @ u + u.T @ b @ x) / 2
    np.testing.assert_allclose(y, plain_dissolve(x + v, b), atol=1e-14)
    assert state.t[0] == 1
    assert state.formed[0] == 0
    assert state.capped[0] == 0


@pytest.mark.parametrize("size", [0.7, 50.0])
def test_a_long_step_is_shortened_and_brought_back_to_its_polar_factor(size):
    x = jnp.asarray(polar(normal((30, 5), 0)))
    u = size * normal(x.shape, 1)
    y, state = guarded()(x, u)
    a, along = jax.jvp(plain_dissolve, (x,), (u,))
    t, s = state.t[0], (x.T @ u + u.T @ x) / 2
    there = a @ (jnp.eye(5) + t**2 * s @ s) + t * along
    np.testing.assert_allclose(y, polar(there), atol=1e-6)
    assert state.formed[0] == 1
    assert (state.t[0] < 1) == (state.capped[0] == 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_start_outside_is_brought_in_by_the_first_update(dtype):
    u, v = polar(normal((40, 6), 0)), polar(normal((6, 6), 1))
    x = jnp.asarray((u * np.geomspace(1e-3, 10, 6)) @ v.T, dtype)
    y, _ = guarded()(x, jnp.zeros_like(x))
    limit = {"float32": 1e-5, "float64": 1e-11, "bfloat16": 2e-2}[dtype]
    assert cdx.stiefel.feasibility(y) <= limit
    jaxpr = jax.make_jaxpr(guarded())(x, x)
    assert not any(name in str(jaxpr) for name in ("svd", "qr[", "cholesky", "eigh"))


def test_only_the_matrix_that_is_outside_is_moved():
    x = jnp.asarray(polar(normal((3, 8, 2), 0)))
    y, state = guarded()(x.at[1].mul(5.0), jnp.zeros_like(x))
    np.testing.assert_allclose(y, x, atol=1e-13)
    assert state.t[0] == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_not_made(bad):
    x = jnp.asarray(near(10, 3, 0, 0.2, "none"))
    y, state = guarded()(x, jnp.zeros_like(x).at[2, 1].set(bad))
    np.testing.assert_allclose(y, polar(x), atol=1e-6)
    assert state.t[0] == 0


def test_a_matrix_whose_update_is_not_finite_does_not_hold_up_its_stack():
    x = jnp.asarray(polar(normal((3, 8, 2), 0)))
    u = 1e-3 * normal(x.shape, 1)
    expected, _ = guarded()(x, u)
    y, state = guarded()(x, u.at[1, 0, 0].set(np.nan))
    np.testing.assert_allclose(y[1], x[1], atol=1e-13)
    np.testing.assert_allclose(y[::2], expected[::2], atol=1e-6)
    assert state.t[0] == 0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_beside_a_matrix_outside_long_steps_keep_to_the_radius(scale):
    x = jnp.asarray(polar(normal((3, 8, 2), 0))).at[1].mul(5.0)
    y, state = guarded()(x, scale * normal(x.shape, 1))
    assert np.all(spectral(gram_residual(y)) <= 0.5 + 1e-12)
    assert np.all(spectral(gram_residual(y)) <= state.bound[0] + 1e-12)
    assert np.linalg.norm(y[0] - x[0]) > 1e-4


@pytest.mark.parametrize("radius", [1e-6, 1e-3, 0.9, 0.99, 0.999, 1 - 1e-6])
def test_the_radius_may_be_any_fraction(radius):
    step = guarded(radius)
    for seed in range(6):
        x = jnp.asarray(near(9, 3, seed, 0.999 * radius, "none"))
        y, state = step(x, 10.0 ** (seed - 3) * normal(x.shape, seed))
        after = spectral(gram_residual(y))
        assert after <= radius
        assert after <= state.bound[0] + 1e-12


def test_the_corrected_step_is_far_from_singular():
    """Item 3 of the proof, for steps of every kind and size."""
    for seed in range(60):
        size = 0.02 + 0.9 * (seed % 10) / 10
        x = jnp.asarray(near(9, 3, seed, size, "none"))
        u = 10.0 ** (seed % 4 - 2) * normal(x.shape, seed + 100)
        rho = spectral(gram_residual(x))
        e = (40 * rho**3 + 15 * rho**4 + 9 * rho**5) / 64
        a, v = jax.jvp(plain_dissolve, (x,), (u,))
        s = (x.T @ u + u.T @ x) / 2
        n = jnp.eye(3) + s @ s
        nu, c = spectral(n), spectral(a.T @ v + v.T @ a)
        if e * nu**0.5 > (1 + e) / 2 or c > (1 - e) / 2:
            continue
        low = (1 - e * nu**0.5 - c / 2) ** 2 / (1 + e)
        y = a @ n + v
        assert np.linalg.eigvalsh(y.T @ y)[0] >= low - 1e-12


@pytest.mark.parametrize("kind", ["none", "array"])
def test_the_constants_of_the_proof_hold(kind):
    _, b = metric_of(kind, 9)
    for seed in range(40):
        size = 0.02 + 0.9 * (seed % 10) / 10
        x = jnp.asarray(near(9, 3, seed, size, kind, None if kind == "none" else b))
        residual, rho = gram_residual(x, b), spectral(gram_residual(x, b))
        e = (40 * rho**3 + 15 * rho**4 + 9 * rho**5) / 64
        a = plain_dissolve(x, b)
        cube = jnp.linalg.matrix_power(residual, 3)
        rest = 40 * jnp.eye(3) - 15 * residual + 9 * residual @ residual
        np.testing.assert_allclose(gram_residual(a, b), cube @ rest / 64, atol=1e-12)
        assert spectral(gram_residual(a, b)) <= e + 1e-12
        assert e <= rho**3 + 1e-12


def test_matrices_of_a_stack_have_a_step_of_their_own():
    x = jnp.asarray(polar(normal((2, 8, 2), 0)))
    u = normal(x.shape, 1) * jnp.array([1e-3, 1e3])[:, None, None]
    both, _ = guarded()(x, u)
    step = guarded()
    for i in range(2):
        alone, _ = step(x[i], u[i])
        # In a stack the short step is corrected along with the long one.
        np.testing.assert_allclose(both[i], alone, atol=1e-5)


def tall_products(jaxpr, size):
    """How many products of that size stand outside all branches, and in each."""
    outside, branches = 0, []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            lhs, out = equation.invars[0].aval, equation.outvars[0].aval
            (contract, _), _ = equation.params["dimension_numbers"]
            outside += lhs.shape[contract[0]] * out.size == size
        for name in ("branches", "jaxpr"):
            inner = equation.params.get(name, ())
            for sub in inner if isinstance(inner, tuple) else (inner,):
                found = tall_products(sub.jaxpr, size)
                if name == "branches":
                    branches.append(found)
                else:
                    outside += found[0]
                    branches += found[1]
    return outside, branches


def test_the_ordinary_step_forms_four_products_and_the_long_one_eight():
    n, p = 40, 8
    x = jnp.asarray(polar(normal((n, p), 0)))
    tx = cdx.keep_feasible()
    state = tx.init(x)
    jaxpr = jax.make_jaxpr(lambda x, u: tx.update(u, state, x))(x, x).jaxpr
    outside, (long, usual) = tall_products(jaxpr, n * p * p)
    assert outside == 3  # xᵀu, xΦ(xᵀu) and zᵀz
    assert usual == (1, [])  # of z with its p×p factor
    assert long[0] == 5  # xᵀx, xΦ(xᵀu), vᵀv, and of x and v with their p×p factors


def test_the_report_is_found_by_name_and_keeps_its_structure():
    params = {"a": normal((6, 2), 0), "b": normal((4, 5, 2), 1), "free": jnp.ones(3)}
    mask = {"a": True, "b": cdx.Stiefel(rows=1, columns=2), "free": False}
    tx = cdx.constrain(optax.adam(1e-2), mask)
    state = tx.init(params)
    types = jax.tree.map(jax.typeof, state)
    for _ in range(3):
        updates, state = jax.jit(tx.update)(params, state, params)
        params = optax.apply_updates(params, updates)
    assert jax.tree.map(jax.typeof, state) == types
    assert optax.tree.get(state, "formed").shape == (2,)
    assert optax.tree.get(state, "step") == 3
    assert optax.tree.get(state, "count") == 3
    np.testing.assert_array_less(optax.tree.get(state, "bound"), 0.5)


@pytest.mark.parametrize("weight", [1e-2, 0.3, 10.0])
def test_the_bound_holds_behind_a_proximal_map(weight):
    x: Any = {"w": jnp.asarray(polar(normal((30, 5), 0)))}
    tx: Any = cdx.constrain(
        optax.sgd(0.1), regularizer=cdx.prox.l1(weight), learning_rate=0.1
    )
    state = tx.init(x)
    for seed in range(5):
        updates, state = tx.update({"w": normal((30, 5), seed)}, state, x)
        x = optax.apply_updates(x, updates)
        after = spectral(gram_residual(x["w"]))
        assert after <= optax.tree.get(state, "bound")[0] + 1e-12
        assert after <= 0.5 + 1e-12


def test_updates_of_higher_precision_than_the_leaf_are_accepted():
    x = jnp.asarray(polar(normal((6, 2), 0)), jnp.float32)
    y, _ = guarded()(x, 1e-2 * normal(x.shape, 1))
    assert y.dtype == jnp.float32
    assert cdx.stiefel.feasibility(y) < 1e-2
