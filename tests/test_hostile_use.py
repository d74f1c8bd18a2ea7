"""What users did to `constrain`: NaN gradients, SAM, and a wrong place in the chain."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import cdopt_jax as cdx
from tests.oracles import normal, polar


def test_training_goes_on_to_the_optimum_after_one_gradient_of_nan():
    target = normal((6, 3), 0)
    x: Any = jnp.asarray(polar(normal((6, 3), 1)))
    tx = cdx.constrain(optax.adam(optax.cosine_decay_schedule(3e-2, 600)))
    state, update = tx.init(x), jax.jit(tx.update)
    for k in range(600):
        g = (x - target).at[0, 0].mul(jnp.nan if k == 20 else 1.0)
        updates, state = update(g, state, x)
        x = optax.apply_updates(x, updates)
    np.testing.assert_allclose(x, polar(target), atol=1e-3)
    assert optax.tree.get(state, "num_outside")[0] == 0


def test_sam_stays_at_the_optimum():
    a = normal((20, 20), 0)
    a = a @ a.T
    x = jnp.linalg.eigh(a)[1][:, -4:] @ polar(normal((4, 4), 1))

    def gradient(x, _=None):
        return -a @ x

    ascent = optax.chain(contrib.normalize(), optax.sgd(0.01))
    tx = cdx.constrain(contrib.sam(optax.adam(1e-2), ascent, opaque_mode=True))

    @jax.jit
    def step(y, state):
        updates, state = tx.update(gradient(y), state, y, grad_fn=gradient)
        return optax.apply_updates(y, updates), state

    y, state = x, tx.init(x)
    for _ in range(100):
        y, state = step(y, state)
    best, found = (float(jnp.trace(v.T @ a @ v)) for v in (x, y))
    assert found >= (1 - 1e-3) * best


MISPLACED = {
    "mechanize": lambda: contrib.mechanize(cdx.constrain(optax.adam(1e-2))),
    "learning rate behind": lambda: optax.chain(
        cdx.constrain(optax.scale_by_adam()), optax.scale_by_learning_rate(0.3)
    ),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_a_wrong_place_in_the_chain_is_counted_and_warned_of(name):
    tx = MISPLACED[name]()
    params: Any = {"w": jnp.asarray(polar(normal((6, 3), 0)))}
    state, update = tx.init(params), jax.jit(tx.update)
    target = normal((6, 3), 1)
    for _ in range(300):
        grads = {"w": params["w"] - target}
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    with pytest.warns(UserWarning, match=r"'w' \(\d+ times\).*last in the chain"):
        scalars = cdx.report(state, params)
    assert scalars["num_outside/w"] > 0
