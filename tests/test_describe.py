"""`describe`: the table of a mask."""

import re

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


def test_without_a_mask_every_leaf_is_shown_with_what_it_would_be_read_as():
    model = nnx.state(nnx.MultiHeadAttention(2, 6, rngs=nnx.Rngs(0)), nnx.Param)
    lines = cdx.describe({"attention": model, "conv": jnp.ones((3, 3, 2, 5))})
    table, ways = lines.split("\nseveral ways: ")
    head, *rest = table.splitlines()
    rows = {line.split()[0]: line for line in rest}
    assert "would be read as" in head
    assert len(rows) == 1 + len(jax.tree.leaves(model))
    assert rows["attention/query/kernel"].endswith("several ways")
    assert rows["attention/query/bias"].endswith("no matrix")
    assert "18 × 5, as a convolution" in rows["conv"]
    # Whoever writes what the text says gets a mask that works.
    proposed = re.findall(r"layers\.\w+\([\w.]*\)", ways)
    assert len(proposed) == 6
    for text in proposed:
        spec = eval(text.replace("(k)", "(1)"), {"layers": cdx.layers})
        assert "free" not in cdx.describe({"kernel": jnp.ones((2, 5, 3))}, spec)


def test_a_module_of_equinox_is_shown_with_its_functions():
    module = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0))
    rows = {line.split()[0]: line for line in cdx.describe(module).splitlines()}
    assert "8 × 4" in rows["layers/0/weight"]
    assert rows["activation"].endswith("no array")
