"""`describe`: the table of a mask."""

import flax.linen as nn
import jax
import jax.numpy as jnp

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
