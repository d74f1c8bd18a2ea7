"""Leaves with a scale: f over XᴴBX = c²I is f(c·) over XᴴBX = I.

Y = X/c is orthonormal, and the gradient of f(cY) with respect to Y is c times that of
f. All tests compare the package with a scale to the package without, which other tests
compare to oracles. In float64 the two sides differ by rounding: TOL is 1e-12, relative.
"""

import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.oracles import (
    assert_close,
    double,
    each_field,
    gradient,
    gram_residual,
    normal,
    spd,
    spectral,
)

TOL = 1e-12
C = math.sqrt(3.7)
SHAPES = {"conv": (3, 3, 2, 4), "free": (3,), "metric": (8, 3), "wide": (3, 6)}


def mask_of(dtype, scale):
    return {
        "conv": cdx.layers.conv(scale=scale),
        "free": False,
        "metric": cdx.Stiefel(B=jnp.asarray(spd(8, dtype)), scale=scale / 2),
        "wide": cdx.Stiefel(scale=scale),
    }


def scales(scale):
    return {"conv": scale, "free": 1.0, "metric": scale / 2, "wide": scale}


def tree(dtype, seed=0):
    return {k: normal(s, seed + i, dtype) for i, (k, s) in enumerate(SHAPES.items())}


def times(tree, factors):
    return jax.tree.map(lambda x, c: c * x, tree, factors)


def by(tree, factors):
    return jax.tree.map(lambda x, c: x / c, tree, factors)


def close(found, expected, tol=TOL):
    chex.assert_trees_all_equal_structs(found, expected)
    jax.tree.map(lambda a, b: assert_close(a, b, tol), found, expected)


@each_field
def test_points_are_those_of_the_unit_manifold_times_the_scale(dtype):
    x, c = tree(dtype), scales(C)
    scaled, plain = mask_of(dtype, C), mask_of(dtype, 1.0)
    plain["metric"] = cdx.Stiefel(B=plain["metric"].B)
    near = by(x, jax.tree.map(lambda a: 2 * float(np.sqrt(a.size)), x))
    for f in (cdx.project, cdx.dissolve):
        y = f(times(near, c), scaled)
        close(y, times(f(near, plain), c), 1e-11)
    found = cdx.project(x, scaled)
    assert_close(gram_residual(double(found["wide"]).T / C), np.zeros((3, 3)), TOL)
    b = np.asarray(spd(8, dtype))
    x = double(found["metric"])
    assert_close(x.conj().T @ b @ x, (C / 2) ** 2 * np.eye(3), TOL)
    close(cdx.feasibility(times(near, c), scaled), cdx.feasibility(near, plain))


def objective(params):
    return sum(jnp.sum(jnp.abs(x - 0.3) ** 4) for x in jax.tree.leaves(params))


@each_field
@pytest.mark.parametrize("beta", [2.0, "auto"])
def test_the_objective_is_that_of_the_scaled_function(beta, dtype):
    y, c = tree(dtype), scales(C)
    scaled, plain = mask_of(dtype, C), mask_of(dtype, 1.0)
    plain["metric"] = cdx.Stiefel(B=plain["metric"].B)
    y = jax.tree.map(lambda a: a / np.sqrt(a.size), y)
    h = jax.jit(cdx.objective(objective, scaled, beta=beta))
    unit = jax.jit(cdx.objective(lambda y: objective(times(y, c)), plain, beta=beta))
    assert_close(h(times(y, c)), unit(y), TOL)
    expected = by(jax.grad(unit)(y), c)
    close(jax.grad(h)(times(y, c)), expected)


def slopes(f):
    """The gradient of a function of a tree, by autodiff."""
    return jax.jit(lambda x: jax.tree.map(jnp.conj, jax.grad(f)(x)))


@each_field
def test_dissolved_gradients_are_those_of_the_objective(dtype):
    mask = mask_of(dtype, C)
    x = times(jax.tree.map(lambda a: a / np.sqrt(a.size), tree(dtype)), scales(C))
    expected = slopes(cdx.objective(objective, mask, beta=2.0))(x)
    tx = cdx.dissolve_gradients(2.0, mask)
    g = slopes(objective)(cdx.dissolve(x, mask))
    close(jax.jit(tx.update)(g, tx.init(x), x)[0], expected)
    tx = cdx.add_penalty(2.0, mask)
    through = slopes(lambda x: objective(cdx.dissolve(x, mask)))(x)
    close(jax.jit(tx.update)(through, tx.init(x), x)[0], expected)


@each_field
def test_the_automatic_weight_is_that_of_the_scaled_function(dtype):
    tx = cdx.dissolve_gradients("auto", mask_of(dtype, C))
    x, g = tree(dtype), tree(dtype, 10)
    _, state = jax.jit(tx.update)(g, tx.init(x), x)
    columns = {"conv": 4, "metric": 3, "wide": 3}
    expected = [
        2 * scales(C)[name] * np.linalg.norm(g[name]) / math.sqrt(p)
        for name, p in columns.items()
    ]
    assert_close(optax.tree.get(state, "beta"), expected, TOL)


@each_field
def test_stationarity_is_the_norm_of_the_gradient_with_respect_to_the_leaf(dtype):
    mask = mask_of(dtype, C)
    x = cdx.project(tree(dtype), mask)
    g = tree(dtype, 10)
    found = cdx.stationarity(x, g, mask)
    through = jax.grad(
        lambda x: sum(
            jnp.sum((g[k].conj() * v).real) for k, v in cdx.dissolve(x, mask).items()
        )
    )(x)
    for name, slope in through.items():
        assert_close(found[name], np.linalg.norm(np.ravel(slope)), TOL)


@each_field
def test_projected_gradients_are_with_respect_to_the_parameters(dtype):
    """g − BXΦ(XᴴG)/c², so that an optimiser sees the size of the gradient itself."""
    x = cdx.project(tree(dtype), mask_of(dtype, C))
    g = tree(dtype, 10)
    tx = cdx.project_gradients(mask_of(dtype, C))
    found: Any = tx.update(g, tx.init(x), x)[0]
    a, u, b = double(x["metric"]), double(g["metric"]), np.asarray(spd(8, dtype))
    s = a.conj().T @ u
    expected = u - b @ a @ (s + s.conj().T) / 2 / (C / 2) ** 2
    assert_close(found["metric"], expected, TOL)
    np.testing.assert_array_equal(found["free"], g["free"])


@each_field
def test_a_guarded_step_is_the_unit_one_times_the_scale(dtype):
    plain, scaled = mask_of(dtype, 1.0), mask_of(dtype, C)
    plain["metric"] = cdx.Stiefel(B=plain["metric"].B)
    c, y = scales(C), cdx.project(tree(dtype), plain)
    one, two = cdx.keep_feasible(plain), cdx.keep_feasible(scaled)
    update, scaled_update = jax.jit(one.update), jax.jit(two.update)
    for size in (1e-3, 0.3, 100.0):  # short, long, longer
        u = jax.tree.map(lambda a, size=size: size * a, tree(dtype, 10))
        unit, state = update(u, one.init(y), y)
        found, after = scaled_update(times(u, c), two.init(y), times(y, c))
        close(found, times(unit, c), 1e-10)
        for field in ("step_fraction", "num_long", "num_shortened"):
            np.testing.assert_allclose(getattr(after, field), getattr(state, field))
        np.testing.assert_allclose(after.bound, state.bound, rtol=1e-3, atol=1e-12)


@each_field
def test_a_run_of_constrain_is_that_of_the_scaled_function(dtype):
    """Rates are with respect to the parameters: c² times those of the unit one."""
    target = normal((8, 3), 5, dtype)

    def f(x):
        return jnp.sum(jnp.abs(x - target) ** 2)

    def run(tx, f, x):
        def step(carry, _):
            x, state = carry
            updates, state = tx.update(gradient(f)(x), state, x)
            return (optax.apply_updates(x, updates), state), None

        return jax.lax.scan(step, (x, tx.init(x)), length=50)[0][0]

    y = cdx.project(normal((8, 3), 0, dtype))
    scaled = cdx.constrain(optax.sgd(0.1, momentum=0.5), cdx.Stiefel(scale=C))
    unit = cdx.constrain(optax.sgd(0.1 / C**2, momentum=0.5))
    found = jax.jit(lambda y: run(scaled, f, C * y))(y)
    expected = C * jax.jit(lambda y: run(unit, lambda y: f(C * y), y))(y)
    assert_close(found, expected, 1e-9)
    assert cdx.feasibility(found, cdx.Stiefel(scale=C))[""] < 1e-6


def test_proximal_steps_act_on_the_parameters_and_zeros_are_exact():
    mask, x0 = cdx.Stiefel(scale=C), normal((40, 4), 0)
    r = cdx.prox.l1(0.2)
    for tx in (
        cdx.constrain(optax.sgd(0.1), mask, regularizer=r, learning_rate=0.1),
        cdx.proximal_step(0.1, r, mask, tangential=True),
    ):
        x: Any = cdx.project(x0, mask)
        state, update = tx.init(x), jax.jit(tx.update)
        for _ in range(50):
            updates, state = update(jnp.zeros_like(x), state, x)
            x = optax.apply_updates(x, updates)
        assert np.mean(np.asarray(x) == 0) > 0.2
        assert not np.any((np.abs(x) > 0) & (np.abs(x) < 1e-12))
    # The first shrinks the entries of the leaf, not those of the leaf over its scale.
    x = cdx.project(x0, mask)
    tx = cdx.proximal_step(0.1, r, mask)
    updates: Any = tx.update(jnp.zeros_like(x), tx.init(x), x)[0]
    expected = np.sign(x) * np.maximum(np.abs(x) - 0.02, 0)
    assert_close(x + updates, expected, TOL)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
@pytest.mark.parametrize("scale", [0.07, 1.3, 40.0])
def test_the_bound_is_above_what_rounding_leaves(scale, dtype):
    tx = cdx.keep_feasible(cdx.Stiefel(scale=scale))
    update = jax.jit(tx.update)
    x = (scale * normal((30, 5), 0, jnp.promote_types(dtype, float))).astype(dtype)
    state = tx.init(x)
    for seed, size in enumerate((0.0, 1e-3, 0.1, 10.0, 1e-6)):
        u = normal(x.shape, seed + 1, jnp.promote_types(dtype, float))
        updates, state = update((scale * size * u).astype(dtype), state, x)
        x = jnp.asarray(optax.apply_updates(x, updates))
        assert (
            spectral(double(x.astype(jnp.promote_types(dtype, "f4"))) / scale)
            <= (state.bound[0])
        )
        assert state.bound[0] <= (0.5 if "16" in dtype else 1e-3)


@pytest.mark.parametrize(
    ("method", "metric"),
    [
        ("proximal", True),
        ("tangential", False),
        pytest.param("lbfgs", False, marks=pytest.mark.slow),
        pytest.param("newton", True, marks=pytest.mark.slow),
    ],
)
def test_minimize_takes_the_steps_of_the_scaled_function(method, metric):
    b = jnp.asarray(spd(8)) if metric else None
    target = normal((8, 3), 5)

    def f(x):
        return jnp.sum((x - target) ** 4)

    y = cdx.project(normal((8, 3), 0), cdx.Stiefel(B=b))
    found = cdx.minimize(f, C * y, cdx.Stiefel(B=b, scale=C), method=method)
    unit = cdx.minimize(lambda y: f(C * y), y, cdx.Stiefel(B=b), method=method)
    assert bool(found.converged)
    # The unit of the objective is chosen from gradients that differ by rounding.
    assert_close(found.value, unit.value, 1e-12)
    assert_close(found.params, C * unit.params, 1e-6)
    # Over hundreds of steps rounding adds up.
    assert abs(int(found.steps) - int(unit.steps)) <= 2 + 0.25 * int(unit.steps)
    assert cdx.feasibility(found.projected, cdx.Stiefel(B=b, scale=C))[""] < TOL


def test_minimize_with_an_optimiser_gives_it_gradients_of_the_parameters():
    target = normal((8, 3), 5)

    def f(x):
        return jnp.sum((x - target) ** 2)

    x = C * cdx.project(normal((8, 3), 0))
    mask = cdx.Stiefel(scale=C)
    found = cdx.minimize(f, x, mask, method=optax.sgd(0.1), max_steps=1, tol=1e-30)
    # In the unit of the objective, a power of two.
    ends = []
    for power in range(-8, 9):
        tx = cdx.constrain(optax.sgd(0.1 * 2.0**power), mask)
        updates: Any = tx.update(jax.grad(f)(x), tx.init(x), x)[0]
        ends.append(float(jnp.max(jnp.abs(x + updates - found.params))))
    assert min(ends) < 1e-12


@pytest.mark.parametrize("free", [pytest.param(False, marks=pytest.mark.slow), True])
def test_sparse_solutions_are_those_of_the_scaled_function(free):
    """With a free leaf of scale one the proximal map has no closed form."""
    m = np.asarray(spd(12)) @ np.diag(np.linspace(1, 3, 12))
    m = jnp.asarray(m + m.T)

    def f(params):
        x = params["x"]
        extra = jnp.sum((params["b"] - 1) ** 2) if free else 0.0
        return -jnp.sum(x * (m @ x)) + extra

    y = cdx.project(normal((12, 3), 0))
    mask: dict[str, Any] = {"x": cdx.Stiefel(scale=C)}
    params = {"x": C * y}
    if free:
        params["b"], mask["b"] = jnp.zeros(4), False
    r = cdx.prox.l1(0.5)
    found = cdx.minimize(f, params, mask, regularizer=r, method="proximal", tol=1e-9)

    def unit(params):
        return f(params | {"x": C * params["x"]})

    weights: Any = {"x": 0.5 * C} | ({"b": 0.5} if free else {})
    plain = {k: k == "x" for k in mask}
    expected = cdx.minimize(
        unit,
        params | {"x": y},
        plain,
        regularizer=cdx.prox.l1(weights),
        method="proximal",
        tol=1e-9,
    )
    assert bool(found.converged)
    assert bool(expected.converged)
    assert_close(found.value, expected.value, 1e-8)
    zeros = np.asarray(found.proximal["x"]) == 0
    assert zeros.any()
    np.testing.assert_array_equal(zeros, np.asarray(expected.proximal["x"]) == 0)
    if free:
        # argmin (b − 1)² + |b|/2, entry by entry.
        np.testing.assert_allclose(found.params["b"], 0.75, atol=1e-6)


def test_a_solution_is_differentiated_with_its_scale():
    """The polar factor of a, times c; its derivative against finite differences."""
    a, by_a = np.asarray(normal((6, 3), 0)), np.asarray(normal((6, 3), 1))
    w, step = np.asarray(normal((6, 3), 2)), 1e-5
    mask = cdx.Stiefel(scale=C)

    def f(x, a):
        return -jnp.sum(a * x)

    def solved(t):
        x0 = cdx.project(jnp.asarray(a), mask)
        found = cdx.minimize(f, x0, mask, args=(a + t * by_a,), tol=1e-13)
        return jnp.sum(w * found.projected)

    def exact(t):
        u, _, v = np.linalg.svd(a + t * by_a, full_matrices=False)
        return C * np.sum(w * (u @ v))

    slope = (exact(step) - exact(-step)) / (2 * step)
    assert float(jax.grad(solved)(0.0)) == pytest.approx(slope, rel=1e-6)


READINGS = {
    "dense": ((4, 3), cdx.layers.dense),
    "embedding": ((5, 3), cdx.layers.embedding),
    "conv": ((3, 3, 2, 4), cdx.layers.conv),
    "conv_transpose": ((3, 3, 4, 2), cdx.layers.conv_transpose),
    "attention": ((6, 2, 3), cdx.layers.attention),
    "attention_out": ((2, 3, 6), cdx.layers.attention_out),
    "recurrent": ((4, 4), cdx.layers.recurrent),
    "fused": ((6, 6), lambda scale: cdx.layers.fused(2, scale=scale)),
    "torch_linear": ((3, 6), cdx.layers.torch_linear),
    "torch_conv": ((4, 2, 3, 3), cdx.layers.torch_conv),
}


@pytest.mark.parametrize("name", READINGS)
def test_every_layer_takes_a_scale_and_the_initializer_draws_it(name):
    shape, layer = READINGS[name]
    spec = layer(scale=2.5)
    x = cdx.initializer(spec)(jax.random.key(0), shape)
    # All columns of all matrices have this length, so the sum of squares is known.
    columns = float(jnp.sum(x**2)) / 2.5**2
    assert columns == pytest.approx(round(columns), abs=1e-10)
    assert cdx.feasibility(x, spec)[""] < 1e-12
    assert cdx.feasibility(x, layer(scale=1.0))[""] > 1
    assert "scale 2.5" in cdx.describe(x, spec)
    assert "scale" not in cdx.describe(x, layer(scale=1.0))


def test_readings_of_different_scales_differ():
    assert cdx.Stiefel(scale=2) == cdx.Stiefel(scale=2.0)
    assert hash(cdx.Stiefel(scale=2)) == hash(cdx.Stiefel(scale=2.0))
    assert cdx.Stiefel(scale=2) != cdx.Stiefel()
    single: Any = np.float32(2)
    assert cdx.Stiefel(scale=single).scale == 2.0


def test_leaves_of_one_shape_and_different_scales_are_each_at_their_own():
    params = {str(i): normal((6, 2), i) for i in range(4)}
    mask = {str(i): cdx.Stiefel(scale=1 + i % 2) for i in range(4)}
    tx = cdx.constrain(optax.adam(0.1), mask)
    updates, state = jax.jit(tx.update)(params, tx.init(params), params)
    new: Any = optax.apply_updates(params, updates)
    for i, x in enumerate(new.values()):
        expected = (1 + i % 2) ** 2 * np.eye(2)
        np.testing.assert_allclose(np.asarray(x.T @ x), expected, atol=1e-5)
    assert max(cdx.report(state, new, mask)[f"residual/{i}"] for i in range(4)) < 1e-5


def test_the_constants_of_the_theory_are_those_of_the_scaled_function():
    def f(x):
        return jnp.sum(x**3)

    x, key = cdx.stiefel.random(jax.random.key(0), (6, 2)), jax.random.key(1)
    found = cdx.theory.estimate_gradient_bound(f, C * x, cdx.Stiefel(scale=C), key=key)
    unit = cdx.theory.estimate_gradient_bound(lambda y: f(C * y), x, key=key)
    assert float(found) == pytest.approx(float(unit))
