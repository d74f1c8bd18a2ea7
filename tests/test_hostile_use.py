"""What users did to `constrain`, and what was done to it on purpose.

NaN gradients, SAM, a wrong place in the chain, one bad leaf among good ones; and the
counter of misuse, which ordinary training must leave at zero.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import cdopt_jax as cdx
from tests.marks import mostly
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


X = {k: jnp.asarray(polar(normal((6, 3), i))) for i, k in enumerate("abcd")}
U = {k: 0.3 * normal((6, 3), i + 9) for i, k in enumerate("abcd")}
# What leaf "b" is and is told to do.
BAD: dict[str, tuple[Any, Any]] = {
    "NaN": (X["b"], U["b"].at[1, 1].set(jnp.nan)),
    "infinite": (X["b"], U["b"].at[0, 0].set(-jnp.inf)),
    "to zero": (X["b"], -X["b"]),
    "to deficient rank": (X["b"], -X["b"] + jnp.ones((6, 3))),
    "huge": (X["b"], 1e200 * U["b"]),
    "from zero": (0 * X["b"], 0 * U["b"]),
    "from afar": (1e9 * X["b"], U["b"]),
    "from NaN": (jnp.nan * X["b"], U["b"]),
}


GUARD: Any = cdx.keep_feasible()
UPDATES: dict[str, Any] = {"jit": jax.jit(GUARD.update), "eager": GUARD.update}


@pytest.mark.parametrize("how", UPDATES)
@pytest.mark.parametrize("name", BAD)
def test_one_bad_leaf_changes_nothing_for_those_it_is_computed_with(name, how):
    update = UPDATES[how]
    without = {k: X[k] for k in "acd"}
    x, u = BAD[name]
    params, grads = X | {"b": x}, U | {"b": u}
    alone, lone = update({k: U[k] for k in "acd"}, GUARD.init(without), without)
    updates, state = update(grads, GUARD.init(params), params)
    for k in "acd":
        # Beside a long step, a short one is corrected further.
        np.testing.assert_allclose(updates[k], alone[k], atol=5e-6)
    others = np.array([0, 2, 3])
    for field in ("step_fraction", "num_shortened", "num_outside"):
        found, desired = (np.asarray(getattr(s, field)) for s in (state, lone))
        np.testing.assert_array_equal(found[others], desired)
    assert np.all(state.bound[others] < 1e-5)
    end = np.asarray(x + updates["b"])
    if name in ("NaN", "infinite"):
        np.testing.assert_allclose(end, x, atol=1e-14)
        assert state.step_fraction[1] == 0
    if name != "from NaN":
        assert np.linalg.norm(end.T @ end - np.eye(3), 2) <= state.bound[1] < 0.5


def test_an_eager_loop_with_a_bad_gradient_is_the_compiled_loop():
    tx: Any = cdx.constrain(optax.adam(3e-2))

    def ends(update) -> Any:
        params: Any = X
        state = tx.init(params)
        for k in range(6):
            grads = jax.tree.map(lambda x, u: x - u, params, U)
            if k == 2:
                grads["c"] = grads["c"].at[0].set(jnp.nan)
            updates, state = update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params, state

    (eager, one), (compiled, other) = ends(tx.update), ends(jax.jit(tx.update))
    for k, x in eager.items():
        np.testing.assert_allclose(x, compiled[k], atol=1e-12)
    np.testing.assert_array_equal(one.guard.num_outside, 0)
    np.testing.assert_array_equal(other.guard.num_outside, 0)


def ill_conditioned(n: int, condition: float) -> np.ndarray:
    q = polar(normal((n, n), 5))
    return np.asarray((q * jnp.logspace(0, -np.log10(condition), n)) @ q.T)


ADAM = optax.adam(3e-2)
MASK = cdx.where("w")
SPARSE: dict[str, Any] = {"regularizer": cdx.prox.l1(1e-2), "learning_rate": 0.1}
ILL = cdx.Stiefel(B=jnp.asarray(ill_conditioned(12, 1e4), jnp.float32))
ORDINARY: dict[str, tuple[Any, str]] = {
    "plain": (cdx.constrain(ADAM, MASK), "float32"),
    "long steps": (cdx.constrain(optax.adam(1.0), MASK), "float32"),
    "MultiSteps": (optax.MultiSteps(cdx.constrain(ADAM, MASK), 3), "float32"),
    "apply_if_finite": (optax.apply_if_finite(cdx.constrain(ADAM, MASK), 9), "float32"),
    "lookahead": (cdx.constrain(optax.lookahead(ADAM, 5, 0.5), MASK), "float32"),
    "schedule_free": (
        cdx.constrain(contrib.schedule_free_adamw(3e-2), MASK),
        "float32",
    ),
    "regularizer": (cdx.constrain(optax.sgd(0.1), MASK, **SPARSE), "float32"),
    "master_copies": (cdx.master_copies(cdx.constrain(ADAM, MASK)), "bfloat16"),
    "bfloat16": (cdx.constrain(ADAM, MASK), "bfloat16"),
    "float16": (cdx.constrain(ADAM, MASK), "float16"),
    "regularizer in bfloat16": (
        cdx.constrain(optax.sgd(0.1), MASK, **SPARSE),
        "bfloat16",
    ),
    "ill-conditioned B": (cdx.constrain(ADAM, cdx.where("w", spec=ILL)), "float32"),
}


# What these do to a step is done by others, or by `test_wrappers`.
ALIKE = {"plain", "apply_if_finite", "schedule_free", "float16"}
ALIKE |= {"regularizer in bfloat16"}


@pytest.mark.parametrize("name", mostly(ORDINARY, slow=ALIKE))
def test_ordinary_training_is_never_counted_as_misuse(name):
    tx, dtype = ORDINARY[name]
    # Not on the manifold, which is no misuse at the start.
    params: Any = {"w": normal((12, 4), 0, dtype), "b": jnp.zeros(4, dtype)}
    inputs, outputs = normal((64, 12), 1, dtype), normal((64, 4), 2, dtype)
    if name == "lookahead":
        params = optax.LookaheadParams.init_synced(params)

    def loss(params, batch):
        x, y = (jax.lax.dynamic_slice_in_dim(a, batch, 8) for a in (inputs, outputs))
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    def step(carry, k):
        params, state = carry
        at = params.fast if name == "lookahead" else params
        grads = jax.grad(loss)(at, 8 * (k % 8))
        # A gradient that is not finite, once, is ordinary as well.
        spoilt = jnp.where(k == 20, jnp.nan, 1)
        grads = jax.tree.map(lambda g: g * spoilt.astype(g.dtype), grads)
        grads["b"] = jnp.nan_to_num(grads["b"])
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    start = params, tx.init(params)
    (params, state), _ = jax.jit(
        lambda carry: jax.lax.scan(step, carry, jnp.arange(80))
    )(start)
    np.testing.assert_array_equal(optax.tree.get(state, "num_outside"), 0)
    assert optax.tree.get(state, "num_updates") >= 26
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
