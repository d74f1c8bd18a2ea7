"""Master copies under JAX's transformations, in Flax, and with Optax's wrappers."""

from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import cdopt_jax as cdx
from tests.oracles import normal, step
from tests.test_master import assert_rounded, bits, gradients, run, tree

pytestmark = pytest.mark.slow  # a minute


def test_under_vmap_each_member_of_a_batch_is_as_alone():
    tx: Any = cdx.master_copies(optax.adam(1e-1))
    x, g = normal((2, 3, 6, 2), 0, "bfloat16")
    state = jax.vmap(tx.init)(x)
    y, state = jax.vmap(step(tx))(x, state, g)
    for i in range(3):
        alone, its = step(tx)(x[i], tx.init(x[i]), g[i])
        assert bits(alone) == bits(y[i])
        assert bits(its.copies) == bits(state.copies[i])


def test_a_train_state_carries_and_stores_them():
    params = tree(0, "bfloat16")
    tx: Any = cdx.master_copies(cdx.constrain(optax.adam(1e-2), cdx.where("kernel")))
    train = TrainState.create(apply_fn=lambda: None, params=params, tx=tx)
    take = jax.jit(lambda train, grads: train.apply_gradients(grads=grads))
    train = take(train, gradients(0, params))
    stored = flax.serialization.to_bytes(train)
    empty = TrainState.create(apply_fn=lambda: None, params=params, tx=tx)
    restored = flax.serialization.from_bytes(empty, stored)
    one, other = (take(t, gradients(1, params)) for t in (train, restored))
    assert_rounded(one.params, one.opt_state.copies)
    assert jax.tree.map(bits, one.params) == jax.tree.map(bits, other.params)
    copies = (jax.tree.map(bits, t.opt_state.copies) for t in (one, other))
    assert len(set(map(str, copies))) == 1


def test_an_nnx_optimizer_takes_them():
    model = nnx.Linear(8, 4, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    tx: Any = cdx.master_copies(cdx.constrain(optax.adam(1e-2), cdx.where("kernel")))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    x = normal((5, 8), 0, "bfloat16")

    @nnx.jit
    def take(model, optimizer):
        grads = nnx.grad(lambda m: jnp.sum(m(x) ** 2))(model)
        optimizer.update(model, grads)

    for _ in range(3):
        take(model, optimizer)
    copy = optimizer.opt_state.copies["kernel"][...]
    assert copy.dtype == jnp.float32
    assert bits(copy.astype(jnp.bfloat16)) == bits(model.kernel[...])


WRAPPED = {
    "MultiSteps": cdx.master_copies(
        optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation()
    ),
    "apply_if_finite": cdx.master_copies(optax.apply_if_finite(optax.sgd(0.1), 3)),
    "chain": optax.chain(optax.clip(1.0), cdx.master_copies(optax.sgd(0.1))),
    "masked": optax.masked(cdx.master_copies(optax.sgd(0.1)), {"bias": True}),
    "inject": optax.inject_hyperparams(
        lambda learning_rate: cdx.master_copies(optax.sgd(learning_rate))
    )(learning_rate=optax.linear_schedule(0.1, 0.0, 10)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_optaxs_wrappers_go_with_it(name):
    tx = WRAPPED[name]
    params = {"bias": normal((4,), 0, "bfloat16")}
    end, state = run(tx, params, {"bias": normal((6, 4), 1, "bfloat16")})
    assert_rounded(end, optax.tree.get(state, "copies"))
    assert (end["bias"] != params["bias"]).all()


def test_lookahead_has_copies_of_both_sets():
    tx: Any = cdx.master_copies(optax.lookahead(optax.sgd(0.1), 2, 0.5))
    params: Any = optax.LookaheadParams.init_synced({"w": normal((4,), 0, "bfloat16")})
    state = tx.init(params)
    for k in range(4):
        params, state = step(tx)(params, state, {"w": normal((4,), k, "bfloat16")})
    for x, copy in zip(params, state.copies, strict=True):
        assert_rounded(x, copy)


def test_a_line_search_sees_the_copies():
    seen = []

    def value(x):
        seen.append(x.dtype)
        return jnp.sum((x.astype("float32") - 1) ** 2)

    tx: Any = cdx.master_copies(optax.lbfgs())
    x = normal((4,), 0, "bfloat16")
    state = tx.init(x)
    for _ in range(2):
        v, g = jax.value_and_grad(value)(x)
        seen.clear()
        updates, state = tx.update(g, state, x, value=v, grad=g, value_fn=value)
        assert seen
        assert jnp.bfloat16 not in seen
        x = optax.apply_updates(x, updates)
    np.testing.assert_allclose(state.copies, 1, atol=1e-2)
