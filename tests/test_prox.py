"""The regularizers: each proximal map against the definition it must satisfy.

y = prox(x, step) minimises r(y) + ‖y − x‖²/(2·step); as r is convex, that is to say
that (x − y)/step is a subgradient of r at y. The oracles are NumPy and SciPy, with r
written out as `plain`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from cdopt_jax import prox
from tests.oracles import assert_close

SHAPE = (3, 4)
TOL = 1e-12  # float64, a handful of operations on entries of order one


class Case(NamedTuple):
    make: Callable[..., prox.Regularizer]
    weights: tuple[Any, ...]
    plain: Callable[..., Any]


def group_norms(x, axes):
    return np.sqrt((x**2).sum(axes)).sum()


CASES = {
    "l1": Case(prox.l1, (0.7,), lambda x: 0.7 * np.abs(x).sum()),
    "l21-rows": Case(prox.l21, (0.7,), lambda x: 0.7 * group_norms(x, -1)),
    "l21-columns": Case(prox.l21, (0.7, -2), lambda x: 0.7 * group_norms(x, -2)),
    "l21-whole": Case(prox.l21, (0.7, (0, 1)), lambda x: 0.7 * group_norms(x, (0, 1))),
    "elastic_net": Case(
        prox.elastic_net,
        (0.7, 0.4),
        lambda x: 0.7 * np.abs(x).sum() + 0.2 * (x**2).sum(),
    ),
    "nonnegative_l1": Case(
        prox.nonnegative_l1,
        (0.7,),
        lambda x: 0.7 * x.sum() if (x >= 0).all() else np.inf,
    ),
    "none": Case(prox.none, (), lambda _: 0.0),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
bounded = st.floats(-4, 4, allow_subnormal=False)
matrices = arrays(np.float64, SHAPE, elements=bounded)
steps = st.sampled_from((0.01, 0.5, 3.0))
property_test = settings(max_examples=25, deadline=None, derandomize=True)


def draw(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@each_case
def test_the_value_is_that_of_the_formula(case):
    r = case.make(*case.weights)
    for seed in (0, 1, 2):
        for x in (draw(seed), np.abs(draw(seed)), np.zeros(SHAPE)):
            assert_close(r.value(jnp.asarray(x)), case.plain(x), TOL)


@each_case
@property_test
@given(x=matrices, z=matrices, step=steps)
def test_the_step_taken_is_a_subgradient(case, x, z, step):
    """r(z) ≥ r(y) + ⟨(x − y)/step, z − y⟩ for every z in the domain."""
    r = case.make(*case.weights)
    y = np.asarray(r.prox(jnp.asarray(x), step))
    assert np.isfinite(case.plain(y))
    for other in (z, np.abs(z), 0.9 * y, np.zeros(SHAPE)):
        below = case.plain(y) + np.sum((x - y) / step * (other - y))
        assert case.plain(other) >= below - 1e-9 * (1 + abs(below))


@each_case
@property_test
@given(x=matrices, z=matrices, step=steps)
def test_the_proximal_map_is_firmly_nonexpansive(case, x, z, step):
    r = case.make(*case.weights)
    p, q = (np.asarray(r.prox(jnp.asarray(a), step)) for a in (x, z))
    assert np.sum((p - q) ** 2) <= np.sum((p - q) * (x - z)) + 1e-9


@property_test
@given(x=matrices, step=steps)
def test_the_parts_of_moreau_add_up(x, step):
    """x = prox_{step·r}(x) + the projection to the ball that is dual to the norm r."""
    box = np.clip(x, -0.7 * step, 0.7 * step)
    weight: Any = 0.7
    assert_close(prox.l1(weight).prox(jnp.asarray(x), step) + box, x, TOL)
    norms = np.sqrt((x**2).sum(-1, keepdims=True))
    rows = x * np.minimum(1, 0.7 * step / np.maximum(norms, 1e-300))
    assert_close(prox.l21(weight).prox(jnp.asarray(x), step) + rows, x, TOL)


GROUPS = {
    "rows": ((5, 4), -1, lambda zero: zero.all(1)),
    "columns": ((5, 4), -2, lambda zero: zero.all(0)),
    "input-channels": ((3, 3, 4, 2), (0, 1, 3), lambda zero: zero.all((0, 1, 3))),
    "output-channels": ((3, 3, 2, 4), (0, 1, 2), lambda zero: zero.all((0, 1, 2))),
}


@pytest.mark.parametrize(("shape", "axis", "whole"), GROUPS.values(), ids=GROUPS.keys())
def test_l21_makes_whole_groups_exactly_zero(shape, axis, whole):
    for seed in (0, 1, 2):
        x = draw(seed, shape)
        norms = np.sqrt((x**2).sum(axis))
        threshold: Any = float(np.median(norms))
        y = np.asarray(prox.l21(threshold, axis).prox(jnp.asarray(x), 1.0))
        gone = whole(y == 0)
        np.testing.assert_array_equal(gone, norms <= threshold)
        assert 0 < gone.sum() < gone.size
        left = np.sqrt((y**2).sum(axis))
        assert_close(left, np.maximum(norms - threshold, 0), TOL)
        assert (y[y != 0] * x[y != 0] > 0).all()


@pytest.mark.parametrize("name", ["l1", "l21-whole", "elastic_net", "nonnegative_l1"])
@pytest.mark.parametrize(
    "dtype", [jnp.bfloat16, jnp.float32, jnp.float64], ids=["bf16", "f32", "f64"]
)
def test_zeros_are_exact_and_the_dtype_is_kept(name, dtype):
    r = CASES[name].make(*CASES[name].weights)
    x = jnp.asarray(0.1 * draw(0), dtype)
    y = r.prox({"x": x}, 1.0)["x"]
    assert y.dtype == dtype
    np.testing.assert_array_equal(np.float64(y), np.zeros(SHAPE))


@each_case
def test_half_precision_is_computed_in_single(case):
    r = case.make(*case.weights)
    x = jnp.asarray(draw(0), jnp.bfloat16)
    single = r.prox(x.astype(jnp.float32), 0.1)
    np.testing.assert_array_equal(r.prox(x, 0.1), single.astype(jnp.bfloat16))


def test_the_value_of_single_precision_is_in_single_precision():
    x = jnp.zeros(SHAPE, jnp.float32)
    regularizers = {name: case.make(*case.weights) for name, case in CASES.items()}
    values = {name: jax.eval_shape(r.value, x) for name, r in regularizers.items()}
    assert {value.dtype for value in values.values()} == {jnp.dtype("float32")}


@each_case
def test_the_gradient_of_the_value_is_finite_at_zero(case):
    r = case.make(*case.weights)
    slope = jax.grad(lambda x: r.value(x))(jnp.zeros(SHAPE))
    assert np.isfinite(slope).all()


@each_case
def test_values_and_maps_compile_with_the_step_as_an_argument(case):
    r = case.make(*case.weights)
    x = jnp.asarray(draw(0))
    assert_close(jax.jit(r.prox)(x, 0.3), r.prox(x, 0.3), TOL)
    assert_close(jax.jit(r.value)(x), case.plain(draw(0)), TOL)


COMPLEX = {
    "l1": (prox.l1(0.7), lambda z: 0.7 * np.abs(z).sum()),
    "l21-rows": (prox.l21(0.7), lambda z: 0.7 * np.linalg.norm(z, axis=-1).sum()),
    "elastic_net": (
        prox.elastic_net(0.7, 0.4),
        lambda z: 0.7 * np.abs(z).sum() + 0.2 * (np.abs(z) ** 2).sum(),
    ),
}


@pytest.mark.parametrize(("r", "plain"), COMPLEX.values(), ids=COMPLEX.keys())
def test_of_complex_entries_the_modulus_is_shrunk(r, plain):
    """The step is a subgradient, in the real inner product, and phases are kept."""
    for seed in range(5):
        x, other = draw(seed, (2, *SHAPE)) + 1j * draw(seed + 9, (2, *SHAPE))
        assert_close(r.value(jnp.asarray(x)), plain(x), TOL)
        y = np.asarray(r.prox(jnp.asarray(x), 0.9))
        assert y.dtype == np.complex128
        for z in (other, 0.9 * y, 1j * y, y * 0, y.conj()):
            below = plain(y) + np.sum(((x - y) / 0.9).conj() * (z - y)).real
            assert plain(z) >= below - 1e-9
        kept = y != 0
        np.testing.assert_allclose(np.angle(y[kept]), np.angle(x[kept]), atol=1e-12)
    small = jnp.asarray(0.1 * draw(0) * 1j)
    assert (np.asarray(r.prox(small, 1.0)) == 0).all()
    slope = jax.grad(lambda x: r.value(x))(jnp.zeros(SHAPE, complex))
    assert np.isfinite(slope).all()


def test_a_real_number_is_shrunk_as_a_complex_one():
    x = jnp.asarray(draw(0))
    for r, _ in COMPLEX.values():
        assert_close(r.prox(x + 0j, 0.9), np.asarray(r.prox(x, 0.9)) + 0j, TOL)


TREE = {"a": {"bias": jnp.ones(3), "kernel": jnp.ones((3, 2))}, "b": jnp.ones((2, 2))}
PREFIXES = {
    "one-for-all": (0.5, [0.5, 0.5, 0.5]),
    "by-branch": ({"a": 0.5, "b": 0}, [0.5, 0.5, 1.0]),
    "by-leaf": ({"a": {"bias": 0, "kernel": 0.25}, "b": 0.5}, [1.0, 0.75, 0.5]),
    "arrays": ({"a": jnp.asarray(0.5), "b": np.float32(0.25)}, [0.5, 0.5, 0.75]),
}


@pytest.mark.parametrize(("weight", "left"), PREFIXES.values(), ids=PREFIXES.keys())
def test_weights_are_spread_over_the_tree(weight, left):
    r = prox.l1(weight)
    y = r.prox(TREE, 1.0)
    chex.assert_trees_all_equal_structs(y, TREE)
    for leaf, expected in zip(jax.tree.leaves(y), left, strict=True):
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, expected))
    sizes = [leaf.size for leaf in jax.tree.leaves(TREE)]
    value = sum(n * (1 - kept) for n, kept in zip(sizes, left, strict=True))
    assert_close(r.value(TREE), value, TOL)


def test_a_weight_for_each_entry_of_a_leaf():
    x, w = jnp.asarray(draw(0)), np.abs(draw(1))
    y = prox.l1(w).prox(x, 0.5)
    assert_close(y, np.sign(x) * np.maximum(np.abs(x) - 0.5 * w, 0), TOL)


@pytest.mark.parametrize("name", ["l1", "l21", "nonnegative_l1"])
def test_a_weight_of_zero_leaves_its_leaf_alone(name):
    tree = {"w": jnp.ones((2, 2)), "n": jnp.arange(-3, 3), "name": "free"}
    weights: Any = {"w": 0.5, "n": 0, "name": 0.0}
    r = getattr(prox, name)(weights)
    y = r.prox(tree, 1.0)
    assert y["n"] is tree["n"]
    assert y["name"] == "free"
    assert np.isfinite(r.value(tree))


def test_both_weights_must_be_zero_to_leave_a_leaf_alone():
    weights: tuple[Any, Any] = ({"a": 0, "b": 0.5}, {"a": 0.5, "b": 0})
    y = prox.elastic_net(*weights).prox({"a": jnp.ones(2), "b": jnp.ones(2)}, 1.0)
    assert_close(y["a"], np.full(2, 1 / 1.5), TOL)
    assert_close(y["b"], np.full(2, 0.5), TOL)


def test_a_zero_that_is_an_array_leaves_its_leaf_alone_too():
    x = -jnp.ones(3)
    y = prox.nonnegative_l1(jnp.zeros(())).prox(x, 1.0)
    np.testing.assert_array_equal(y, x)


def test_weights_may_be_traced():
    def shrunk(w):
        return prox.l1(w).prox(jnp.ones(3), 1.0).sum()

    value, slope = jax.jit(jax.value_and_grad(shrunk))(0.25)
    assert (value, slope) == (2.25, -3.0)


def test_a_regularizer_can_be_made_inside_jit():
    @jax.jit
    def step(x, weight):
        known, traced = prox.l1(0.1), prox.l1(weight)
        return known.prox(x, 1.0), traced.prox(x, 1.0)

    x = jnp.array([-1.0, 0.05, 0.3])
    for shrunk in step(x, 0.1):
        np.testing.assert_allclose(shrunk, [-0.9, 0.0, 0.2], atol=1e-12)
