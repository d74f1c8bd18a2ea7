"""`report`: what the transformations did, as scalars with names."""

import jax
import jax.numpy as jnp
import optax
import pytest

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
        return cdx.report(tx.update(params, state, params)[1], params, mask)

    scalars = jax.eval_shape(step, params, tx.init(params))
    fields = {"residual", "bound", "step_fraction", "num_shortened", "num_long"}
    fields |= {"num_outside"}
    assert set(scalars) == {f"{f}/{leaf}" for f in fields for leaf in ("a", "b")}
    assert all(scalar.shape == () for scalar in scalars.values())


def test_a_report_of_algorithm_1_has_its_weight():
    params = {"a": jnp.eye(4, 2)}
    tx = optax.chain(cdx.dissolve_gradients("auto"), optax.sgd(0.1))
    _, state = tx.update(params, tx.init(params), params)
    assert cdx.report(state, params).keys() == {"residual/a", "beta/a"}
    assert cdx.report(state, params)["beta/a"] > 0


def test_a_report_on_lookahead_tells_both_sets_of_weights_apart():
    params = optax.LookaheadParams.init_synced({"a": jnp.eye(4, 2)})
    tx = cdx.constrain(optax.lookahead(optax.sgd(0.1), 5, 0.5), cdx.where("a"))
    _, state = tx.update({"a": jnp.ones((4, 2))}, tx.init(params), params)
    scalars = cdx.report(state, params, cdx.where("a"))
    assert {name for name in scalars if name.startswith("bound/")} == {
        "bound/fast/a",
        "bound/slow/a",
    }
