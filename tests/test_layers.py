"""The readings by layer and the initializers, on the kernels of real Flax layers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import cdopt_jax as cdx
from tests.oracles import gram_residual, normal, polar, spectral, tall

KEY = jax.random.key(0)
IMAGE = jnp.zeros((1, 7, 7, 4))
WORDS = jnp.zeros((1, 5, 6))
INPUT = jnp.zeros((1, 3))


def linen(module, *inputs):
    return module.init(KEY, *inputs)["params"]


def recurrent(cell):
    return linen(cell, cell.initialize_carry(KEY, INPUT.shape), INPUT)


def attention():
    return linen(nn.MultiHeadDotProductAttention(2), WORDS, WORDS)


def nnx_params(make):
    return nnx.state(make(nnx.Rngs(0)), nnx.Param)


def by_rows(kernel):
    """All axes but the last, in order, as rows."""
    return [kernel.reshape(-1, kernel.shape[-1])]


def columns_cut(count):
    return lambda kernel: np.split(by_rows(kernel)[0], count, axis=1)


def heads(kernel):
    return [kernel[:, h] for h in range(kernel.shape[1])]


def equinox(module):
    """The arrays of a module, as a tree of parameters."""
    return eqx.filter(module, eqx.is_array)


def rows_cut(blocks):
    """The parts of a matrix one above the other, each transposed."""
    return lambda k: [part.T for part in np.split(k, blocks)]


class Layer(NamedTuple):
    """A layer's parameters, its kernel's path, and how that is read."""

    build: Callable[[], Any]
    path: str
    spec: cdx.Stiefel
    as_matrices: Callable[[Any], Any]


LAYERS = {
    "dense": Layer(
        lambda: linen(nn.Dense(3), WORDS), "kernel", cdx.layers.dense(), by_rows
    ),
    "dense, wide": Layer(
        lambda: linen(nn.Dense(9), WORDS), "kernel", cdx.layers.dense(), by_rows
    ),
    "embedding": Layer(
        lambda: linen(nn.Embed(11, 4), jnp.zeros((1,), int)),
        "embedding",
        cdx.layers.embedding(),
        by_rows,
    ),
    "conv": Layer(
        lambda: linen(nn.Conv(8, (3, 3)), IMAGE), "kernel", cdx.layers.conv(), by_rows
    ),
    "conv, of sequences": Layer(
        lambda: linen(nn.Conv(8, (3,)), WORDS),
        "kernel",
        cdx.layers.conv(spatial=1),
        by_rows,
    ),
    "conv, grouped": Layer(
        lambda: linen(nn.Conv(8, (3, 3), feature_group_count=2), IMAGE),
        "kernel",
        cdx.layers.conv(groups=2),
        columns_cut(2),
    ),
    "conv, depthwise": Layer(
        lambda: linen(nn.Conv(8, (3, 3), feature_group_count=4), IMAGE),
        "kernel",
        cdx.layers.conv(groups=4),
        columns_cut(4),
    ),
    "conv, transposed": Layer(
        lambda: linen(nn.ConvTranspose(3, (3, 3)), IMAGE),
        "kernel",
        cdx.layers.conv_transpose(),
        lambda k: [k.transpose(0, 1, 3, 2).reshape(-1, k.shape[2])],
    ),
    "attention, per head": Layer(
        attention, "query/kernel", cdx.layers.attention(), heads
    ),
    "attention, whole": Layer(
        attention,
        "key/kernel",
        cdx.layers.attention(per_head=False),
        lambda k: [k.reshape(k.shape[0], -1)],
    ),
    "attention, out per head": Layer(
        attention, "out/kernel", cdx.layers.attention_out(), list
    ),
    "attention, out whole": Layer(
        attention, "out/kernel", cdx.layers.attention_out(per_head=False), by_rows
    ),
    "recurrent, Linen": Layer(
        lambda: recurrent(nn.GRUCell(5)), "hn/kernel", cdx.layers.recurrent(), by_rows
    ),
    "recurrent, NNX LSTM": Layer(
        lambda: nnx_params(lambda r: nnx.OptimizedLSTMCell(3, 5, rngs=r)),
        "dense_h/kernel",
        cdx.layers.recurrent(gates=4),
        columns_cut(4),
    ),
    "recurrent, NNX GRU": Layer(
        lambda: nnx_params(lambda r: nnx.GRUCell(3, 5, rngs=r)),
        "dense_i/kernel",
        cdx.layers.recurrent(gates=3),
        columns_cut(3),
    ),
    "torch, linear": Layer(
        lambda: equinox(eqx.nn.Linear(6, 3, key=KEY)),
        "weight",
        cdx.layers.torch_linear(),
        lambda k: [k.T],
    ),
    "torch, GRU": Layer(
        lambda: equinox(eqx.nn.GRUCell(6, 5, key=KEY)),
        "weight_ih",
        cdx.layers.torch_linear(blocks=3),
        rows_cut(3),
    ),
    "torch, attention per head": Layer(
        lambda: equinox(eqx.nn.MultiheadAttention(2, 6, key=KEY)),
        "query_proj/weight",
        cdx.layers.torch_linear(blocks=2),
        rows_cut(2),
    ),
    "torch, conv": Layer(
        lambda: equinox(eqx.nn.Conv2d(4, 8, 3, key=KEY)),
        "weight",
        cdx.layers.torch_conv(),
        lambda k: [k.reshape(k.shape[0], -1).T],
    ),
    "torch, conv of sequences": Layer(
        lambda: equinox(eqx.nn.Conv1d(4, 8, 3, key=KEY)),
        "weight",
        cdx.layers.torch_conv(1),
        lambda k: [k.reshape(k.shape[0], -1).T],
    ),
    "torch, grouped conv": Layer(
        lambda: equinox(eqx.nn.Conv2d(4, 8, 3, groups=2, key=KEY)),
        "weight",
        cdx.layers.torch_conv(groups=2),
        lambda k: rows_cut(2)(k.reshape(k.shape[0], -1)),
    ),
    "fused queries, keys and values": Layer(
        lambda: linen(nn.Dense(12), WORDS),
        "kernel",
        cdx.layers.fused(3),
        columns_cut(3),
    ),
}
MASK = {name: layer.spec for name, layer in LAYERS.items()}


def shape_of(layer: Layer) -> tuple[int, ...]:
    """The shape of the kernel that the mask finds in the layer."""
    params = jax.eval_shape(layer.build)
    mask = cdx.where(layer.path, spec=layer.spec)(params)
    (found,) = (
        leaf.shape
        for leaf, spec in zip(
            jax.tree.leaves(params), jax.tree.leaves(mask), strict=True
        )
        if spec
    )
    return found


@pytest.fixture(scope="module")
def shapes():
    return {name: shape_of(layer) for name, layer in LAYERS.items()}


def assert_orthonormal(matrices, tolerance=1e-5):
    for m in matrices:
        assert spectral(tall(m)) <= tolerance


def test_each_layer_is_read_as_its_matrices(shapes):
    before = {name: normal(shape, 0) for name, shape in shapes.items()}
    after = jax.jit(lambda kernels: cdx.project(kernels, MASK))(before)
    for name, layer in LAYERS.items():
        assert after[name].shape == shapes[name]
        pairs = (layer.as_matrices(np.asarray(k[name])) for k in (before, after))
        # Nearest of all: no other reading could have moved it less.
        for m, moved in zip(*pairs, strict=True):
            np.testing.assert_allclose(moved, polar(m), atol=1e-12, err_msg=name)


def test_each_initializer_is_on_the_manifold_of_its_reading(shapes):
    @jax.jit
    def draw(key):
        return {n: cdx.initializer(MASK[n])(key, s) for n, s in shapes.items()}

    kernels, others = draw(KEY), draw(jax.random.key(1))
    for name, layer in LAYERS.items():
        assert kernels[name].shape == shapes[name]
        assert_orthonormal(layer.as_matrices(np.asarray(kernels[name])))
        assert not np.array_equal(kernels[name], others[name])


def test_a_step_keeps_layers_on_the_manifold():
    names = ("conv, grouped", "recurrent, NNX GRU")
    params = {name: LAYERS[name].build() for name in names}
    paths = {name: f"{name}/{LAYERS[name].path}" for name in names}
    mask = cdx.where({paths[name]: LAYERS[name].spec for name in names})
    params = cdx.project(params, mask)
    tx = cdx.constrain(optax.sgd(0.1), mask)
    grads = jax.tree.map(jnp.ones_like, params)
    updates, state = jax.jit(tx.update)(grads, tx.init(params), params)
    stepped: Any = optax.apply_updates(params, updates)
    kernels = {
        "conv, grouped": stepped["conv, grouped"]["kernel"],
        "recurrent, NNX GRU": stepped["recurrent, NNX GRU"]["dense_i"]["kernel"][...],
    }
    told = cdx.report(state, params, mask)
    for name in names:
        kernel = np.asarray(kernels[name])
        assert_orthonormal(LAYERS[name].as_matrices(kernel), 1e-4)
        assert told[f"step_fraction/{paths[name]}"] == 1


def test_an_initializer_serves_as_kernel_init_in_linen_and_nnx():
    init = cdx.initializer(cdx.layers.conv(groups=2))
    layer = nn.Conv(8, (3, 3), feature_group_count=2, kernel_init=init)
    assert_orthonormal(columns_cut(2)(np.asarray(linen(layer, IMAGE)["kernel"])))
    made = nnx.Conv(
        4, 8, (3, 3), feature_group_count=2, kernel_init=init, rngs=nnx.Rngs(0)
    )
    assert_orthonormal(columns_cut(2)(np.asarray(made.kernel[...])))


@pytest.mark.parametrize("features", [pytest.param(6, marks=pytest.mark.slow), 12])
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


def test_a_group_of_a_convolution_of_equinox_is_a_matrix_of_its_own():
    """An oracle in the layer itself: what each group computes of its own channels."""
    layer: Any = eqx.nn.Conv2d(4, 6, 3, groups=2, use_bias=False, key=KEY)
    mask = cdx.where("weight", spec=cdx.layers.torch_conv(groups=2))
    layer = cdx.project(layer, mask)
    for group in range(2):
        # One pixel at a time, the centre of the output sees one entry of the kernel.
        pixels = jnp.eye(2 * 9).reshape(18, 2, 3, 3)
        image = jnp.zeros((18, 4, 3, 3)).at[:, 2 * group : 2 * group + 2].set(pixels)
        seen = jax.vmap(layer)(image)[:, 3 * group : 3 * group + 3, 0, 0]
        np.testing.assert_allclose(seen.T @ seen, np.eye(3), atol=1e-6)


def test_layers_in_front_of_a_kernel_are_a_stack():
    """As scan and vmap over layers put them there."""
    params = {"kernel": jax.random.normal(KEY, (3, 6, 4))}
    for spec in (cdx.layers.dense(), cdx.layers.fused(2)):
        projected = cdx.project(params, cdx.where("kernel", spec=spec))["kernel"]
        for layer in projected:
            assert_orthonormal(columns_cut(spec.blocks)(np.asarray(layer)))
