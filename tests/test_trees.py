"""The functions of trees: leaf by leaf those of `stiefel`, and the oracles of these.

In float64 the two sides differ by the order of some sums: TOL is 1e-12, relative.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

import cdopt_jax as cdx
from tests.oracles import assert_close, plain_dissolve, plain_penalty, polar, spd

TOL = 1e-12
BETA = 3.0
B = np.asarray(spd(6))
SHAPES = {"free": (4,), "heads": (6, 2, 3), "metric": (6, 3), "wide": (3, 6)}
MASK = {
    "free": False,
    "heads": cdx.Stiefel(rows=0, columns=2),
    "metric": cdx.Stiefel(B=B),
    "wide": True,
}
# How each leaf is read as matrices; done twice, it is the leaf again.
READ = {
    "heads": lambda a: a.transpose(1, 0, 2),
    "metric": lambda a: a,
    "wide": lambda a: a.T,
}
METRIC = {"heads": None, "metric": B, "wide": None}

eager_and_jit = pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit], ids=["eager", "jit"]
)


def tree(seed: int, scale: float = 0.4) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(scale * rng.standard_normal(shape))
        for name, shape in SHAPES.items()
    }


def with_mask(f):
    return functools.partial(f, mask=MASK)


def dense(name: str) -> Any:
    return np.eye(6) if METRIC[name] is None else METRIC[name]


def test_maps_agree_with_the_plain_formula_and_the_singular_values():
    both = jax.jit(lambda tree: (cdx.dissolve(tree, MASK), cdx.project(tree, MASK)))
    for seed in (0, 1, 2):
        params = tree(seed)
        dissolved, projected = both(params)
        for out in (dissolved, projected, cdx.dissolve(params, MASK)):
            assert jax.tree.map(jax.typeof, out) == jax.tree.map(jax.typeof, params)
            np.testing.assert_array_equal(out["free"], params["free"])
        for leaf, read in READ.items():
            x = np.asarray(read(params[leaf]))
            assert_close(read(dissolved[leaf]), plain_dissolve(x, dense(leaf)), TOL)
            nearest = [polar(m, METRIC[leaf]) for m in x.reshape(-1, *x.shape[-2:])]
            # The condition number of a random matrix multiplies the rounding.
            assert_close(read(projected[leaf]), np.reshape(nearest, x.shape), 1e3 * TOL)


@eager_and_jit
def test_feasibility_is_the_largest_of_each_constrained_leaf_by_path(wrap):
    params = {"layers": [tree(0), tree(1)]}
    mask = {"layers": [MASK, MASK]}
    found = wrap(functools.partial(cdx.feasibility, mask=mask))(params)
    assert set(found) == {f"layers/{i}/{leaf}" for i in (0, 1) for leaf in READ}
    for i, layer in enumerate(params["layers"]):
        for leaf, read in READ.items():
            x = np.asarray(read(layer[leaf]))
            distances = 2 * np.sqrt(plain_penalty(x, dense(leaf)))
            assert_close(found[f"layers/{i}/{leaf}"], np.max(distances), TOL)


def distance(params, target, power=2):
    return sum(jnp.sum(abs(params[k] - target[k]) ** power) for k in params)


def through_plain_formula(params, target, power=2):
    """The distance, with A written out on each constrained leaf."""
    plain = {k: r(plain_dissolve(r(params[k]), dense(k))) for k, r in READ.items()}
    return distance(params | plain, target, power)


def plain_objective(params, target, power=2):
    """h for the distance, with all formulas written out."""
    terms = [plain_penalty(r(params[k]), dense(k)).sum() for k, r in READ.items()]
    return through_plain_formula(params, target, power) + BETA * sum(terms)


plain_h = jax.jit(jax.value_and_grad(plain_objective), static_argnames="power")


def test_stationarity_is_the_norm_of_the_gradient_through_the_dissolving_map():
    found = jax.jit(with_mask(cdx.stationarity))
    gradient = jax.jit(jax.grad(distance), static_argnums=2)
    slope = jax.jit(jax.grad(through_plain_formula), static_argnums=2)
    for seed in (0, 1, 2):
        params, target = tree(seed), tree(seed + 10)
        grads = gradient(cdx.dissolve(params, MASK), target, 4)
        norms = found(params, grads)
        assert set(norms) == set(SHAPES)
        for leaf, plain in slope(params, target, 4).items():
            assert_close(norms[leaf], np.linalg.norm(np.ravel(plain)), TOL)


@pytest.mark.parametrize("b", [None, B], ids=["plain", "metric"])
def test_stationarity_vanishes_at_the_leading_eigenspace_only(b):
    m = np.diag([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]) + 0.1
    rotation = polar(np.random.default_rng(0).standard_normal((3, 3)))
    vectors = np.asarray(scipy.linalg.eigh(m, b)[1])[:, -3:]
    x = jnp.asarray(vectors @ rotation)
    mask = cdx.Stiefel(B=b)
    assert cdx.stationarity(x, -m @ x, mask)[""] < 1e-13
    elsewhere = jnp.asarray(polar(np.random.default_rng(1).standard_normal((6, 3)), b))
    assert cdx.stationarity(elsewhere, -m @ elsewhere, mask)[""] > 0.1


@pytest.mark.parametrize("name", ["dissolve", "project", "feasibility"])
def test_half_precision_goes_in_and_comes_out(name):
    params = jax.tree.map(jnp.bfloat16, tree(0))
    out = jax.eval_shape(with_mask(getattr(cdx, name)), params)
    expected = jnp.float32 if name == "feasibility" else jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(out)} == {jnp.dtype(expected)}


def test_free_leaves_are_handed_back_as_they_are():
    params = {"w": jnp.eye(3, 2), "name": "net", "epoch": 3, "none": None}
    mask = cdx.where("w")
    assert cdx.dissolve(params, mask)["name"] == "net"
    assert cdx.project(params, mask)["epoch"] is params["epoch"]
    assert set(cdx.feasibility(params, mask)) == {"w"}


def test_an_empty_tree_has_nothing_to_constrain():
    assert cdx.dissolve({}) == cdx.project({}) == cdx.feasibility({}) == {}


def test_leaves_with_the_same_path_are_both_reported():
    params = {"a": {"b": jnp.eye(2)}, "a/b": 2 * jnp.eye(2)}
    assert len(cdx.feasibility(params)) == 2


def test_a_second_projection_compiles_nothing(caplog):
    x = jnp.eye(5, 2) + 0.1
    cdx.project(x).block_until_ready()
    with jax.log_compiles():
        cdx.project(x).block_until_ready()
    assert not [r for r in caplog.records if "XLA compilation" in r.getMessage()]


def test_the_objective_has_the_value_and_the_gradient_of_its_formula():
    h = jax.jit(jax.value_and_grad(cdx.objective(distance, MASK, beta=BETA)))
    for seed in (0, 1, 2):
        params, target = tree(seed), tree(seed + 10)
        value, slope = h(params, target)
        plain_value, plain_slope = plain_h(params, target)
        assert_close(value, plain_value, TOL)
        for leaf, plain in plain_slope.items():
            assert_close(slope[leaf], plain, TOL)


def test_the_objective_passes_further_arguments_on():
    h = cdx.objective(distance, MASK, beta=BETA)
    params, target = tree(0), tree(10)
    expected, _ = plain_h(params, target, power=4)
    both = jax.jit(lambda x, y: (h(x, y, 4), h(x, target=y, power=4)))
    for value in both(params, target):
        assert_close(value, expected, TOL)


def test_the_objective_hands_back_what_else_the_function_returns():
    def f(params, target):
        return distance(params, target), {"seen": params}

    h = cdx.objective(f, MASK, beta=BETA, has_aux=True)
    h = jax.jit(jax.value_and_grad(h, has_aux=True))
    params, target = tree(0), tree(10)
    (value, aux), slope = h(params, target)
    plain_value, plain_slope = plain_h(params, target)
    assert_close(value, plain_value, TOL)
    dissolved = cdx.dissolve(params, MASK)
    for leaf in params:
        assert_close(slope[leaf], plain_slope[leaf], TOL)
        assert_close(aux["seen"][leaf], dissolved[leaf], TOL)


def test_the_objective_keeps_single_precision():
    params = jax.tree.map(jnp.float32, tree(0))
    value = jax.eval_shape(cdx.objective(distance, MASK, beta=BETA), params, params)
    assert value.dtype == jnp.float32


@pytest.mark.parametrize("b", [None, B], ids=["plain", "metric"])
def test_an_unconstrained_solver_finds_the_leading_eigenspace(b):
    m = np.diag([6.0, 5.0, 4.0, 1.0, 0.5, 0.0])
    h = cdx.objective(
        lambda x: -jnp.trace(x.T @ m @ x) / 2, beta=60.0, mask=cdx.Stiefel(B=b)
    )
    fun = jax.jit(jax.value_and_grad(lambda flat: h(flat.reshape(6, 3))))
    values, vectors = scipy.linalg.eigh(m, b)
    leading = np.asarray(vectors)[:, -3:]
    for seed in (0, 1, 2):
        start = polar(np.random.default_rng(seed).standard_normal((6, 3)), b)
        result = scipy.optimize.minimize(
            fun, start.ravel(), jac=True, method="BFGS", options={"gtol": 1e-8}
        )
        x = result.x.reshape(6, 3)
        # The solver stops at a gradient of 1e-8, and the value is flat to second order.
        assert_close(result.fun, -np.sum(values[-3:]) / 2, 1e-12)
        assert_close(x @ x.T, leading @ leading.T, 1e-6)
