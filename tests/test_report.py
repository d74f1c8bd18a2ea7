"""`report`: what the transformations did, as scalars with names."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization

import cdopt_jax as cdx


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tx: tx,
        lambda tx: optax.chain(optax.clip(1.0), tx),
        lambda tx: optax.apply_if_finite(tx, 3),
        lambda tx: optax.MultiSteps(tx, 1),
    ],
    ids=["alone", "chain", "apply_if_finite", "MultiSteps"],
)
def test_a_report_names_its_leaves_and_is_made_of_scalars(wrap):
    params = {"a": jnp.eye(4, 2), "b": jnp.eye(5, 3), "bias": jnp.ones(3)}
    mask = cdx.where("a", "b")
    tx = wrap(cdx.constrain(optax.adam(1e-2), mask))

    def step(params, state):
        state = tx.update(params, state, params)[1]
        return cdx.report(state), cdx.report(state, params, mask)

    fields = {"bound", "step_fraction", "num_shortened", "num_long", "num_outside"}
    for scalars in jax.eval_shape(step, params, tx.init(params)):
        assert set(scalars) == {f"{f}/{leaf}" for f in fields for leaf in ("a", "b")}
        assert all(scalar.shape == () for scalar in scalars.values())
        fields |= {"residual"}


def test_the_names_are_those_of_the_leaves_whatever_their_order():
    params = [jnp.eye(3, 2)] * 11 + [{"b": jnp.ones(2), "B": jnp.eye(4, 2)}]
    tx = cdx.constrain(optax.sgd(0.1), cdx.where("1*", "2", exclude="*/b"))
    updates = [0.1 * (i > 9) * jnp.ones((3, 2)) for i in range(11)] + [params[-1]]
    _, state = tx.update(updates, tx.init(params), params)
    bounds = {k: v for k, v in cdx.report(state).items() if k.startswith("bound/")}
    assert list(bounds) == ["bound/1", "bound/2", "bound/10", "bound/11/B"]
    desired = optax.tree.get(state, "bound")
    np.testing.assert_array_equal(list(bounds.values()), desired)


def test_names_survive_a_checkpoint_of_flax_and_a_scan():
    params = {"a": jnp.eye(4, 2), "bias": jnp.ones(3)}
    tx = cdx.constrain(optax.adam(1e-2), cdx.where("a"))
    state = tx.init(params)
    state, _ = jax.lax.scan(
        lambda s, _: (tx.update(params, s, params)[1], None), state, length=2
    )
    restored = serialization.from_bytes(tx.init(params), serialization.to_bytes(state))
    assert cdx.report(restored) == cdx.report(state)
    assert "bound/a" in cdx.report(state)


def test_a_leaf_that_is_not_finite_is_told():
    x = jnp.eye(4, 2)
    tx = cdx.keep_feasible(cdx.Stiefel(B=lambda x: -x))
    # Traced, `init` cannot see that the metric is not positive definite.
    state, update = jax.jit(tx.init)(x), jax.jit(tx.update)
    for _ in range(2):
        updates, state = update(x, state, x)
        x = optax.apply_updates(x, updates)
    with pytest.warns(UserWarning, match="not finite.*B is not positive definite"):
        cdx.report(state)


def test_a_report_of_algorithm_1_has_its_weight():
    params = {"a": jnp.eye(4, 2)}
    tx = optax.chain(cdx.dissolve_gradients("auto"), optax.sgd(0.1))
    _, state = tx.update(params, tx.init(params), params)
    assert cdx.report(state, params).keys() == {"residual/a", "beta/a"}
    assert cdx.report(state)["beta/a"] > 0


def test_a_report_on_lookahead_tells_both_sets_of_weights_apart():
    params = optax.LookaheadParams.init_synced({"a": jnp.eye(4, 2)})
    tx = cdx.constrain(optax.lookahead(optax.sgd(0.1), 5, 0.5), cdx.where("a"))
    _, state = tx.update({"a": jnp.ones((4, 2))}, tx.init(params), params)
    scalars = cdx.report(state, params, cdx.where("a"))
    assert {name for name in scalars if name.startswith("bound/")} == {
        "bound/fast/a",
        "bound/slow/a",
    }


def spd(n, condition, seed):
    """A symmetric positive definite matrix of that condition number."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    b = (q * np.logspace(-np.log10(condition), 0, n)) @ q.T
    return (b + b.T) / 2


def norm(x, b=None):
    """‖xᵀBx − I‖₂ in double precision."""
    x = np.asarray(x, np.float64)
    bx = x if b is None else np.asarray(b, np.float64) @ x
    return np.linalg.norm(x.T @ bx - np.eye(x.shape[1]), 2)


CASES = {
    "p = 1": ((64, 1), jnp.float32, None, None),
    "p = 8": ((64, 8), jnp.float32, None, None),
    "p = 128": ((256, 128), jnp.float32, None, None),
    "p = 1024": ((1024, 1024), jnp.float32, None, None),
    "bfloat16": ((64, 8), jnp.bfloat16, None, None),
    "float16": ((64, 8), jnp.float16, None, None),
    "ill-conditioned B": ((40, 8), jnp.float32, 1e4, None),
    "regularizer": ((64, 8), jnp.float32, None, cdx.prox.l1(0.1)),
    "regularizer of columns": ((64, 8), jnp.float32, None, cdx.prox.l21(0.3, -2)),
    "regularizer in bfloat16": ((64, 8), jnp.bfloat16, None, cdx.prox.l1(0.1)),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case == "p = 1024" else ())
        for case in CASES
    ],
)
def test_what_is_shown_beside_a_bound_is_not_above_it(case):
    """The residual is in the norm of the bound, and both hold for ‖xᵀBx − I‖₂."""
    shape, dtype, condition, regularizer = CASES[case]
    b = None if condition is None else spd(shape[0], condition, 0)
    metric = None if b is None else jnp.asarray(b, jnp.float32)
    mask = cdx.Stiefel(B=metric)
    options = {"regularizer": regularizer, "learning_rate": 0.1}
    tx = cdx.keep_feasible(mask, **(options if regularizer else {}))
    update = jax.jit(tx.update)
    x = cdx.stiefel.random(jax.random.key(0), shape, jnp.float32, B=metric)
    x = x.astype(dtype)
    lengths = (1e-3, 10.0) if case == "p = 1024" else (0.0, 1e-4, 1e-2, 0.3, 10.0, 1e4)
    for seed, length in enumerate(lengths):
        u = jax.random.normal(jax.random.key(seed), shape, jnp.float32)
        u = (length / shape[0] ** 0.5 * u).astype(dtype)
        updates, state = update(u, tx.init(x), x)
        ends = optax.apply_updates(x, updates)
        told = cdx.report(state, ends, mask)
        residual, bound = float(told["residual/"]), float(told["bound/"])
        assert residual <= bound, length
        exact = norm(ends, None if metric is None else np.asarray(metric))
        assert exact <= bound, length
        # Rounding in single precision is what is left between the two.
        slack = 1e-6 * shape[1] ** 0.5 * (condition or 1)
        assert residual >= exact - slack, length
