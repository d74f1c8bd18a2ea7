"""The readings by layer and the initializers, on the kernels of real Flax layers."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import cdopt_jax as cdx
from tests.oracles import gram_residual, transpose

KEY = jax.random.key(0)
IMAGE = jnp.zeros((1, 7, 7, 4))
WORDS = jnp.zeros((1, 5, 6))


def linen(module, *inputs):
    return module.init(KEY, *inputs)["params"]


def recurrent(cell):
    carry = cell.initialize_carry(KEY, (1, 3))
    return linen(cell, carry, jnp.zeros((1, 3)))


def nnx_params(make):
    return nnx.state(make(nnx.Rngs(0)), nnx.Param)


def by_rows(kernel):
    """All axes but the last, in order, as rows."""
    return [kernel.reshape(-1, kernel.shape[-1])]


def columns_cut(count):
    def cut(kernel):
        return np.split(kernel.reshape(-1, kernel.shape[-1]), count, axis=1)

    return cut


def heads(kernel):
    return [kernel[:, h] for h in range(kernel.shape[1])]


LAYERS: dict[str, tuple[Any, str, Any, Any]] = {
    "dense": (
        lambda: linen(nn.Dense(3), WORDS),
        "kernel",
        cdx.layers.dense(),
        by_rows,
    ),
    "dense, wide": (
        lambda: linen(nn.Dense(9), WORDS),
        "kernel",
        cdx.layers.dense(),
        by_rows,
    ),
    "embedding": (
        lambda: linen(nn.Embed(11, 4), jnp.zeros((1,), int)),
        "embedding",
        cdx.layers.embedding(),
        by_rows,
    ),
    "conv": (
        lambda: linen(nn.Conv(8, (3, 3)), IMAGE),
        "kernel",
        cdx.layers.conv(),
        by_rows,
    ),
    "conv, of sequences": (
        lambda: linen(nn.Conv(8, (3,)), WORDS),
        "kernel",
        cdx.layers.conv(spatial=1),
        by_rows,
    ),
    "conv, grouped": (
        lambda: linen(nn.Conv(8, (3, 3), feature_group_count=2), IMAGE),
        "kernel",
        cdx.layers.conv(groups=2),
        columns_cut(2),
    ),
    "conv, depthwise": (
        lambda: linen(nn.Conv(8, (3, 3), feature_group_count=4), IMAGE),
        "kernel",
        cdx.layers.conv(groups=4),
        columns_cut(4),
    ),
    "conv, transposed": (
        lambda: linen(nn.ConvTranspose(3, (3, 3)), IMAGE),
        "kernel",
        cdx.layers.conv_transpose(),
        lambda k: [k.transpose(0, 1, 3, 2).reshape(-1, k.shape[2])],
    ),
    "attention, per head": (
        lambda: linen(nn.MultiHeadDotProductAttention(2), WORDS, WORDS),
        "query/kernel",
        cdx.layers.attention(),
        heads,
    ),
    "attention, whole": (
        lambda: linen(nn.MultiHeadDotProductAttention(2), WORDS, WORDS),
        "key/kernel",
        cdx.layers.attention(per_head=False),
        lambda k: [k.reshape(k.shape[0], -1)],
    ),
    "attention, out per head": (
        lambda: linen(nn.MultiHeadDotProductAttention(2), WORDS, WORDS),
        "out/kernel",
        cdx.layers.attention_out(),
        list,
    ),
    "attention, out whole": (
        lambda: linen(nn.MultiHeadDotProductAttention(2), WORDS, WORDS),
        "out/kernel",
        cdx.layers.attention_out(per_head=False),
        by_rows,
    ),
    "recurrent, Linen": (
        lambda: recurrent(nn.GRUCell(5)),
        "hn/kernel",
        cdx.layers.recurrent(),
        by_rows,
    ),
    "recurrent, NNX LSTM": (
        lambda: nnx_params(lambda r: nnx.OptimizedLSTMCell(3, 5, rngs=r)),
        "dense_h/kernel",
        cdx.layers.recurrent(gates=4),
        columns_cut(4),
    ),
    "recurrent, NNX GRU": (
        lambda: nnx_params(lambda r: nnx.GRUCell(3, 5, rngs=r)),
        "dense_i/kernel",
        cdx.layers.recurrent(gates=3),
        columns_cut(3),
    ),
    "fused queries, keys and values": (
        lambda: linen(nn.Dense(12), WORDS),
        "kernel",
        cdx.layers.fused(3),
        columns_cut(3),
    ),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def kernel_of(params, path):
    found = {
        jax.tree_util.keystr(where, simple=True, separator="/"): leaf
        for where, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    return np.asarray(found.get(path, found.get(f"{path}/value")))


def assert_orthonormal(matrices, tolerance=1e-5):
    for m in matrices:
        m = m if m.shape[0] >= m.shape[1] else transpose(m)
        assert np.linalg.norm(gram_residual(m)) <= tolerance


@each_layer
def test_a_layer_is_read_as_its_matrices(name):
    build, path, spec, as_matrices = LAYERS[name]
    params, mask = build(), cdx.where(path, spec=spec)
    before = kernel_of(params, path)
    after = kernel_of(cdx.project(params, mask), path)
    assert after.shape == before.shape
    assert_orthonormal(as_matrices(after))
    # Nearest of all: no other reading could have moved it less.
    for m, moved in zip(as_matrices(before), as_matrices(after), strict=True):
        u, _, vt = np.linalg.svd(m, full_matrices=False)
        np.testing.assert_allclose(moved, u @ vt, atol=1e-5)


@each_layer
def test_an_initializer_is_on_the_manifold_of_its_reading(name):
    build, path, spec, as_matrices = LAYERS[name]
    shape = kernel_of(build(), path).shape
    init = cdx.initializer(spec)
    kernel = jax.jit(lambda key: init(key, shape, jnp.float32))(KEY)
    assert kernel.shape == shape
    assert_orthonormal(as_matrices(np.asarray(kernel)))
    assert not np.array_equal(kernel, init(jax.random.key(1), shape))


@pytest.mark.parametrize("name", ["conv, grouped", "recurrent, NNX GRU"])
def test_a_step_keeps_a_layer_on_the_manifold_and_others_where_they_were(name):
    build, path, spec, as_matrices = LAYERS[name]
    params, mask = build(), cdx.where(path, spec=spec)
    tx = cdx.constrain(optax.sgd(0.1), mask)
    params = cdx.project(params, mask)
    grads = jax.tree.map(jnp.ones_like, params)
    updates, state = tx.update(grads, tx.init(params), params)
    stepped = optax.apply_updates(params, updates)
    assert_orthonormal(as_matrices(kernel_of(stepped, path)), 0.5)
    assert cdx.report(state, params, mask)[f"step_fraction/{path}"] == 1


def test_an_initializer_serves_as_kernel_init_in_linen_and_nnx():
    init = cdx.initializer(cdx.layers.conv(groups=2))
    layer = nn.Conv(8, (3, 3), feature_group_count=2, kernel_init=init)
    assert_orthonormal(columns_cut(2)(np.asarray(linen(layer, IMAGE)["kernel"])))
    made = nnx.Conv(
        4, 8, (3, 3), feature_group_count=2, kernel_init=init, rngs=nnx.Rngs(0)
    )
    assert_orthonormal(columns_cut(2)(np.asarray(made.kernel[...])))


@pytest.mark.parametrize("features", [6, 12])
def test_an_initializer_serves_attention_which_asks_for_flat_kernels(features):
    inits: dict[str, Any] = {
        "kernel_init": cdx.initializer(cdx.layers.attention(), shape=(6, 4, 3)),
        "out_kernel_init": cdx.initializer(
            cdx.layers.attention_out(), shape=(4, 3, features)
        ),
    }
    sizes: dict[str, Any] = {
        "num_heads": 4,
        "qkv_features": 12,
        "out_features": features,
    }
    params: Any = linen(nn.MultiHeadDotProductAttention(**sizes, **inits), WORDS, WORDS)
    for part in ("query", "key", "value"):
        assert_orthonormal(heads(np.asarray(params[part]["kernel"])))
    assert_orthonormal(list(np.asarray(params["out"]["kernel"])))
    made = nnx.MultiHeadAttention(
        in_features=6, decode=False, rngs=nnx.Rngs(0), **sizes, **inits
    )
    assert_orthonormal(heads(np.asarray(made.query.kernel[...])))
    assert_orthonormal(list(np.asarray(made.out.kernel[...])))


def test_an_initializer_knows_the_metric():
    b = np.diag(np.arange(1.0, 7.0))
    x = cdx.initializer(cdx.Stiefel(B=jnp.asarray(b)))(KEY, (6, 2), jnp.float64)
    assert np.linalg.norm(gram_residual(np.asarray(x), b)) <= 1e-12


def test_layers_in_front_of_a_kernel_are_a_stack():
    """As scan and vmap over layers put them there."""
    params = {"kernel": jax.random.normal(KEY, (3, 6, 4))}
    for spec in (cdx.layers.dense(), cdx.layers.fused(2)):
        projected = cdx.project(params, cdx.where("kernel", spec=spec))["kernel"]
        for layer in projected:
            cut = columns_cut(spec.blocks)(np.asarray(layer))
            assert_orthonormal(cut)
