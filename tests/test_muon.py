"""Muon inside of `constrain`, on kernels that are not matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.oracles import gram_residual, normal, polar

CONV, HEADS = (3, 3, 2, 5), (6, 4, 3)
PARAMS = {"conv": CONV, "heads": HEADS, "free": (4, 7), "bias": (5,)}
MASK = {
    "conv": cdx.layers.conv(),
    "heads": cdx.layers.attention(),
    "free": False,
    "bias": False,
}


def tree(seed):
    """Leaves of these shapes."""
    return {k: normal(shape, seed + i) for i, (k, shape) in enumerate(PARAMS.items())}


def muon(rate):
    numbers = cdx.layers.muon_dimension_numbers(tree(0), MASK)
    return optax.contrib.muon(rate, muon_weight_dimension_numbers=numbers)


def as_matrices(kernels):
    """The same by NumPy: the convolution as one matrix, attention as one for a head."""
    conv, heads = np.asarray(kernels["conv"]), np.asarray(kernels["heads"])
    return {"conv": conv.reshape(18, 5)} | {str(h): heads[:, h] for h in range(4)}


def test_muon_sees_the_matrices_of_the_mask():
    params, grads = tree(0), tree(10)
    tx, plain = muon(0.1), optax.contrib.muon(0.1)
    moves, _ = tx.update(grads, tx.init(params), params)
    alone = jax.tree.map(jnp.asarray, as_matrices(params))
    expected, _ = plain.update(
        jax.tree.map(jnp.asarray, as_matrices(grads)), plain.init(alone), alone
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        as_matrices(moves),
        expected,
    )


def test_free_matrices_are_left_to_muon_and_the_rest_to_adam():
    numbers = cdx.layers.muon_dimension_numbers(tree(0), MASK)
    assert numbers["free"] == optax.contrib.MuonDimensionNumbers()
    assert numbers["bias"] is None


def test_the_learning_rate_is_an_angle():
    """The singular values of Muon's matrices are between 0.3 and 1.3."""
    params, rate = cdx.project(tree(0), MASK), 0.01
    tx = cdx.constrain(muon(rate), MASK)
    moves, _ = jax.jit(tx.update)(tree(10), tx.init(params), params)
    for move in as_matrices(moves).values():
        length = np.linalg.norm(move, 2)
        wide = max(1, move.shape[1] / move.shape[0]) ** 0.5
        assert 0.3 * rate * wide <= length <= 1.3 * rate * wide


def test_constrained_muon_solves_procrustes_problems_of_kernels():
    targets, start = tree(20), tree(0)
    steps = 400
    tx = cdx.constrain(muon(optax.linear_schedule(0.1, 0.0, steps)), MASK)

    def loss(params):
        return sum(jnp.sum((params[k] - targets[k]) ** 2) for k in ("conv", "heads"))

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.jit(
        lambda: jax.lax.scan(step, (start, tx.init(start)), None, steps)
    )()
    found, wanted = as_matrices(params), as_matrices(targets)
    for name, x in found.items():
        assert np.linalg.norm(gram_residual(x), 2) < 1e-5
        np.testing.assert_allclose(x, polar(wanted[name]), atol=2e-3)


def test_columns_in_blocks_are_refused_by_name():
    params = {"cell": {"kernel": jnp.ones((8, 12))}}
    mask = {"cell": {"kernel": cdx.layers.fused(3)}}
    with pytest.raises(ValueError, match=r"muon_dimension_numbers.*cell/kernel.*3 bl"):
        cdx.layers.muon_dimension_numbers(params, mask)
