"""Master copies: the optimiser sees single precision, the model its rounding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.oracles import SEEDS, normal, step

each_half = pytest.mark.parametrize(
    "half", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)]
)
OPTIMISERS = {
    "sgd": optax.sgd(0.1),
    "sgd-far-too-fast": optax.sgd(1e3),
    "adam": optax.adam(1e-2),
    "lion": optax.lion(1e-2),
    "adamw": optax.adamw(1e-1, weight_decay=0.1),
    "constrain": cdx.constrain(optax.adam(1e-2), cdx.where("kernel")),
    "proximal": cdx.proximal_step(1e-3, cdx.prox.l1(0.3), cdx.where("kernel")),
}


def tree(seed: int, dtype: Any) -> dict[str, Any]:
    """A kernel on the manifold and a bias, in one dtype, and a scale in float32."""
    kernel = cdx.stiefel.random(jax.random.key(seed), (12, 4), dtype)
    bias, scale = normal((2, 4), seed, dtype)
    return {"kernel": kernel, "bias": bias, "scale": scale.astype(jnp.float32)}


def gradients(seed: int, params: Any) -> Any:
    """Normal ones, each entry of another order of magnitude."""
    rng = np.random.default_rng(seed)

    def of(x):
        size = 10 ** rng.uniform(-6, 1, x.shape)
        return jnp.asarray(size * rng.standard_normal(x.shape), x.dtype)

    return jax.tree.map(of, params)


def run(tx: Any, params: Any, grads: Any) -> Any:
    """The parameters and the state after a step with each of a stack of gradients."""
    take = step(tx)

    def body(carry, g):
        return take(*carry, g), None

    return jax.lax.scan(body, (params, tx.init(params)), grads)[0]


def bits(x):
    return np.asarray(x).tobytes()


def assert_rounded(params, copies):
    """Each parameter is its copy rounded; those in float32 have none."""
    for name, x in params.items():
        copy = copies[name]
        if x.dtype == jnp.float32:
            assert copy is None
        else:
            assert copy.dtype == jnp.float32
            assert bits(copy.astype(x.dtype)) == bits(x)


@each_half
@pytest.mark.parametrize("name", OPTIMISERS)
def test_after_every_step_each_parameter_is_its_copy_rounded(name, half):
    tx: Any = cdx.master_copies(OPTIMISERS[name])
    take = jax.jit(step(tx))
    for seed in SEEDS:
        params = tree(seed, half)
        state = tx.init(params)
        assert_rounded(params, state.copies)
        for k in range(5):
            params, state = take(params, state, gradients(10 * seed + k, params))
            assert_rounded(params, state.copies)
            assert jnp.isfinite(params["kernel"]).all()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_also_where_an_entry_shrinks_beyond_all_precision(wrap):
    to = normal((100,), 0, "float32") * 10.0 ** jnp.arange(-30, 20, 0.5, "float32")
    for seed in SEEDS:
        x = jax.random.permutation(jax.random.key(seed), to).astype(jnp.bfloat16)
        tx: Any = cdx.master_copies(optax.sgd(1.0))
        away = x.astype(jnp.float32) - to
        y, state = wrap(step(tx))(x, tx.init(x), away)
        assert bits(y) == bits(state.copies.astype(y.dtype))
        exact = np.float64(x) - np.float64(away)
        size = np.maximum(np.abs(np.float64(x)), np.abs(exact))
        assert (np.abs(state.copies - exact) <= 2.0**-22 * size).all()


@each_half
def test_half_precision_updates_could_not_do_it(half):
    x, y = jnp.asarray(1, half), jnp.asarray(1e-3, half)
    assert optax.apply_updates(x, y - x) != y
    tx: Any = cdx.master_copies(optax.sgd(1.0))
    updates, _ = tx.update(x - y.astype("float32"), tx.init(x), x)
    assert updates.dtype == jnp.float32
    assert optax.apply_updates(x, updates) == y


def test_the_copies_move_as_single_precision_parameters_would():
    optimiser = optax.adam(1e-2)
    tx: Any = cdx.master_copies(optimiser)
    params = tree(0, "bfloat16")
    state = tx.init(params)
    single = jax.tree.map(jnp.float32, params)
    expected = optimiser.init(single)
    for k in range(20):
        grads = gradients(k, params)
        params, state = step(tx)(params, state, grads)
        grads = jax.tree.map(jnp.float32, grads)
        single, expected = step(optimiser)(single, expected, grads)
    for name in ("kernel", "bias"):
        np.testing.assert_allclose(state.copies[name], single[name], rtol=0, atol=1e-6)


@each_half
def test_steps_too_short_for_half_precision_add_up(half):
    x, grads = jnp.ones(3, half), jnp.ones((1000, 3), half)
    alone, _ = run(optax.sgd(1e-4), x, grads)
    assert (alone == 1).all()
    copied, _ = run(cdx.master_copies(optax.sgd(1e-4)), x, grads)
    np.testing.assert_allclose(copied, 0.9, rtol=4e-3)


def test_leaves_with_the_precision_are_the_optimisers_own():
    optimiser = optax.adam(1e-2)
    params = {"a": normal((3,), 0, "float32"), "b": normal((3,), 1), "n": jnp.arange(2)}
    grads = jax.tree.map(lambda x: x / 3 if x.dtype != jnp.int64 else x, params)
    grads["a"] = grads["a"].astype(jnp.bfloat16)
    tx: Any = cdx.master_copies(optimiser)
    state = tx.init(params)
    assert not jax.tree.leaves(state.copies)
    updates, state = tx.update(grads, state, params)
    expected: Any
    expected, _ = optimiser.update(grads, optimiser.init(params), params)
    assert not jax.tree.leaves(state.copies)
    for name, update in expected.items():
        assert updates[name].dtype == update.dtype
        assert bits(updates[name]) == bits(update)


def test_the_copies_may_have_any_wider_dtype():
    x = normal((4,), 0, "float32")
    tx: Any = cdx.master_copies(optax.sgd(0.1), jnp.float64)
    y, state = step(tx)(x, tx.init(x), jnp.ones_like(x))
    assert state.copies.dtype == jnp.float64
    assert bits(state.copies.astype(y.dtype)) == bits(y)
    assert tx.init(normal((4,), 0)).copies is None


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_copy_follows_its_parameter_where_that_was_changed_and_only_there(wrap):
    tx: Any = cdx.master_copies(optax.sgd(1e-3))
    x = normal((50,), 0, "bfloat16")
    x, state = step(tx)(x, tx.init(x), normal((50,), 1, "bfloat16"))
    before = state.copies
    changed = x.at[::5].set(normal((10,), 2, "bfloat16")).at[1].set(jnp.nan)
    _, state = wrap(step(tx))(changed, state, jnp.zeros_like(x))
    where = np.arange(50) % 5 == 0
    where[1] = True
    expected = np.where(where, changed.astype("float32"), before)
    np.testing.assert_array_equal(state.copies, expected)
    assert (expected != x.astype("float32"))[~where].any()


def test_an_update_of_zero_leaves_copies_as_they_are():
    tx: Any = cdx.master_copies(optax.sgd(0.1))
    x = normal((1000,), 0, "float16")
    x, state = step(tx)(x, tx.init(x), gradients(0, x))
    y, after = step(tx)(x, state, jnp.zeros_like(x))
    assert bits(y) == bits(x)
    assert bits(after.copies) == bits(state.copies)


@each_half
def test_exact_zeros_of_a_proximal_map_stay(half):
    tx: Any = cdx.master_copies(cdx.proximal_step(0.1, cdx.prox.l1(2.0)))
    x = cdx.stiefel.random(jax.random.key(0), (12, 4), half)
    y, state = step(tx)(x, tx.init(x), normal((12, 4), 0, half))
    zeros = np.asarray(y == 0)
    assert zeros.sum() >= 5
    assert (np.asarray(state.copies == 0) == zeros).all()


@each_half
def test_constrained_copies_are_orthonormal_to_single_precision(half):
    tx: Any = cdx.master_copies(cdx.constrain(optax.adam(1e-2)))
    x = cdx.stiefel.random(jax.random.key(0), (64, 16), half)
    y, state = run(tx, x, normal((50, 64, 16), 0, half))
    assert cdx.stiefel.feasibility(state.copies) < 1e-5
    perfect = cdx.stiefel.project(state.copies).astype(half)
    floor = cdx.stiefel.feasibility(perfect)
    assert cdx.stiefel.feasibility(y) <= 1.01 * floor
    scalars = cdx.report(state, y)
    assert {"residual/", "bound/", "step_fraction/"} <= set(scalars)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.1,), r"^master_copies: optimizer must be an Optax optimiser, .* 0.1"),
        (
            (optax.sgd(1), jnp.int32),
            r"^master_copies: dtype must be .* jnp\.float32\); it is .*int32",
        ),
        ((optax.sgd(1), "wide"), "^master_copies: dtype must be .* it is 'wide'"),
    ],
)
def test_what_cannot_be_is_said_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        cdx.master_copies(*arguments)


def test_double_precision_must_be_switched_on():
    jax.config.update("jax_enable_x64", val=False)
    try:
        with pytest.raises(ValueError, match="float64, which JAX has switched off; wr"):
            cdx.master_copies(optax.sgd(1), jnp.float64)
    finally:
        jax.config.update("jax_enable_x64", val=True)


def test_a_state_of_other_parameters_is_refused():
    tx: Any = cdx.master_copies(optax.sgd(0.1))
    params = {"w": jnp.ones((3, 2), jnp.bfloat16)}
    single = {"w": jnp.ones((3, 2), jnp.float32)}
    with pytest.raises(ValueError, match="needs the current parameters"):
        tx.update(params, tx.init(params))
    with pytest.raises(ValueError, match=r"must be the MasterState .* is a EmptyState"):
        tx.update(params, optax.EmptyState(), params)
    others = (single, {"v": params["w"]}, {"w": params["w"][0]})
    for other in others:
        with pytest.raises(ValueError, match=r"a copy of each .* are 'w'\. Write"):
            tx.update(params, tx.init(other), params)
    with pytest.raises(ValueError, match=r"those leaves are none\. Write"):
        tx.update(single, tx.init(params), single)
    with pytest.raises(ValueError, match="updates must have the shapes of params"):
        tx.update({"w": params["w"][0]}, tx.init(params), params)
