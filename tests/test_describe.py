"""`describe`: the table of a mask."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

import cdopt_jax as cdx


def test_describe_tells_what_the_mask_does():
    words = jnp.zeros((1, 5, 6))
    layer = nn.MultiHeadDotProductAttention(2)
    params = layer.init(jax.random.key(0), words, words)["params"]
    per_head = cdx.layers.attention()
    mask = cdx.where({"query/kernel": per_head, "out/kernel": cdx.layers.dense()})
    params = cdx.project(params, mask)
    lines = cdx.describe(params, mask).splitlines()
    rows = {line.split()[0]: line for line in lines}
    assert len(lines) == 1 + len(jax.tree.leaves(params))
    assert "(6, 2, 3)" in rows["query/kernel"]
    assert "6 × 3" in rows["query/kernel"]
    assert "columns" in rows["query/kernel"]
    assert "3 × 6" in rows["out/kernel"]
    assert "rows" in rows["out/kernel"]
    assert "free" in rows["key/bias"]
    assert float(rows["query/kernel"].split()[-1]) < 1e-5


def test_describe_needs_shapes_only():
    shapes = jax.eval_shape(lambda: {"kernel": jnp.ones((4, 2))})
    assert "unknown" in cdx.describe(shapes, cdx.where("kernel"))


def test_without_a_mask_every_leaf_is_shown_with_what_it_could_be_read_as():
    model = nnx.state(nnx.MultiHeadAttention(2, 6, rngs=nnx.Rngs(0)), nnx.Param)
    lines = cdx.describe(model).splitlines()
    rows = {line.split()[0]: line for line in lines}
    assert "could be read as" in lines[0]
    assert len(lines) == 1 + len(jax.tree.leaves(model))
    assert "dense(), conv(1), torch_conv(1), attention()" in rows["query/kernel"]
    assert rows["query/bias"].endswith("no matrix")


def test_each_reading_that_is_proposed_is_one():
    """Whoever writes what the table says gets a mask that works."""
    params = {"kernel": jnp.ones((2, 5, 3))}
    *_, row = cdx.describe(params).splitlines()
    proposed = row.split("(2, 5, 3)")[1].removesuffix("of layers").split(",")
    assert len(proposed) == 5
    for text in proposed:
        spec = eval(f"cdx.layers.{text.strip()}", {"cdx": cdx})
        assert "free" not in cdx.describe(params, spec)


def test_a_module_of_equinox_is_shown_with_its_functions():
    module = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0))
    rows = {line.split()[0]: line for line in cdx.describe(module).splitlines()}
    assert "8 × 4" in rows["layers/0/weight"]
    assert rows["activation"].endswith("no array")
