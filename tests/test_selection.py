"""Which leaves a mask selects, and how a `Stiefel` reads each of them as matrices.

The oracle is NumPy: the axes moved and reshaped by hand, then XᵀX − I. Selection needs
shapes only, so most tests here run no computation at all.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn, nnx
from hypothesis import given, settings, strategies as st

import cdopt_jax as cdx
from tests.oracles import assert_close, gram_residual, plain_dissolve, spd, tall

TOL = 1e-12  # float64, products of a few entries of order one


def gram_distance(x: np.ndarray, b: np.ndarray | None = None) -> float:
    """The largest ‖XᵀBX − I‖ in a stack of tall matrices."""
    e = gram_residual(x, 1.0 if b is None else b)
    return float(np.linalg.norm(e, axis=(-2, -1)).max())


def chosen(tree: Any, mask: Any) -> set[str]:
    """The paths of the constrained leaves."""
    return set(jax.eval_shape(functools.partial(cdx.feasibility, mask=mask), tree))


def shaped(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


READINGS = {
    "conv-kernel": ((3, 3, 2, 4), cdx.Stiefel(), lambda a: a.reshape(18, 4)),
    "wide-conv-kernel": ((1, 2, 2, 5), cdx.Stiefel(), lambda a: a.reshape(4, 5).T),
    "wide": ((2, 5), cdx.Stiefel(), lambda a: a.T),
    "query-per-head": (
        (6, 4, 3),
        cdx.Stiefel(rows=0, columns=2),
        lambda a: a.transpose(1, 0, 2),
    ),
    "query-all-heads": (
        (12, 2, 3),
        cdx.Stiefel(rows=0, columns=(1, 2)),
        lambda a: a.reshape(12, 6),
    ),
    "out-all-heads": ((4, 3, 6), cdx.Stiefel(rows=(0, 1)), lambda a: a.reshape(12, 6)),
    "out-per-head": ((4, 3, 6), cdx.Stiefel(rows=1), lambda a: a.swapaxes(1, 2)),
    "scanned": ((3, 5, 2), cdx.Stiefel(rows=-2), lambda a: a),
    "scanned-twice": (
        (2, 3, 2, 2, 2),
        cdx.Stiefel(rows=(2, 3)),
        lambda a: a.reshape(6, 4, 2),
    ),
    "batch-last": (
        (5, 2, 3),
        cdx.Stiefel(rows=0, columns=1),
        lambda a: np.moveaxis(a, 2, 0),
    ),
    "unit-rows": ((4, 3), cdx.Stiefel(rows=-1, columns=()), lambda a: a[..., None]),
    "unit-vector": ((5,), cdx.Stiefel(rows=0, columns=()), lambda a: a[:, None]),
    "unit-tensor": ((2, 3), cdx.Stiefel(columns=()), lambda a: a.reshape(6, 1)),
    "one-by-one": ((1, 1), cdx.Stiefel(), lambda a: a),
}


@pytest.mark.parametrize(
    ("shape", "spec", "as_matrices"), READINGS.values(), ids=READINGS.keys()
)
def test_a_leaf_is_read_as_its_matrices(shape, spec, as_matrices):
    for seed in (0, 1, 2):
        x = np.random.default_rng(seed).standard_normal(shape)
        found = cdx.feasibility({"x": jnp.asarray(x)}, {"x": spec})
        assert_close(found["x"], gram_distance(as_matrices(x)), TOL)


def test_projection_makes_the_matrices_of_every_reading_orthonormal():
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(row[0]) for name, row in READINGS.items()}
    mask = {name: row[1] for name, row in READINGS.items()}
    projected = jax.jit(functools.partial(cdx.project, mask=mask))(params)
    for name, (shape, _, as_matrices) in READINGS.items():
        assert projected[name].shape == shape
        assert gram_distance(as_matrices(np.asarray(projected[name]))) < TOL


def test_the_order_of_the_row_axes_is_the_order_of_the_metric():
    x, b = np.random.default_rng(0).standard_normal((2, 3, 4)), np.asarray(spd(6))
    for rows in ((0, 1), (1, 0)):
        found = cdx.feasibility(jnp.asarray(x), cdx.Stiefel(rows=rows, B=b))
        matrix = x.transpose(*rows, 2).reshape(6, 4)
        assert_close(found[""], gram_distance(matrix, b), TOL)


@st.composite
def axes_of_a_leaf(draw):
    """A shape, and a partition of its axes into batch, rows and columns."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple))
    ndim = len(shape)
    order = draw(st.permutations(range(ndim)))
    first, last = sorted(draw(st.tuples(*[st.integers(0, ndim)] * 2)))
    signs = draw(st.tuples(*[st.sampled_from((0, ndim))] * ndim))
    batch, rows, columns = order[:first], order[first:last], order[last:]
    spec = cdx.Stiefel(
        rows=tuple(a - signs[a] for a in rows),
        columns=tuple(a - signs[a] for a in columns),
    )
    return shape, spec, (batch, rows, columns)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(axes_of_a_leaf())
def test_any_axes_are_read_and_written_back(drawn):
    shape, spec, (batch, rows, columns) = drawn
    x = np.random.default_rng(0).standard_normal(shape)
    n, p = (int(np.prod([shape[a] for a in axes])) for axes in (rows, columns))

    def matrices(leaf):
        moved = np.moveaxis(leaf, (*sorted(batch), *rows, *columns), range(len(shape)))
        return tall(moved.reshape(-1, n, p))

    x /= max(n, p) ** 0.5
    dissolved = np.asarray(cdx.dissolve(jnp.asarray(x), spec))
    assert_close(matrices(dissolved), plain_dissolve(matrices(x)), TOL)


def test_specs_are_equal_when_axes_and_metric_are_the_same():
    b = jnp.eye(3)
    assert cdx.Stiefel(rows=0, B=b) == cdx.Stiefel(rows=0, B=b)
    assert len({cdx.Stiefel(rows=0, B=b), cdx.Stiefel(rows=0, B=b)}) == 1
    assert cdx.Stiefel(rows=0) != cdx.Stiefel(rows=1)
    assert cdx.Stiefel(B=b) != cdx.Stiefel()
    assert cdx.Stiefel() != "Stiefel()"


TREE = {
    "conv": {"kernel": shaped(2, 2, 3, 4), "bias": shaped(4)},
    "head": {"kernel": shaped(4, 6)},
    "scale": shaped(),
}
KERNELS = {"conv/kernel", "head/kernel"}
MATRICES_ONLY = {"a": shaped(3, 2), "b": [shaped(2, 2), shaped(1, 2, 3, 4)]}
MASKS = {
    "None": (MATRICES_ONLY, None, {"a", "b/0", "b/1"}),
    "True": (MATRICES_ONLY, True, {"a", "b/0", "b/1"}),
    "Stiefel": (MATRICES_ONLY, cdx.Stiefel(rows=-2), {"a", "b/0", "b/1"}),
    "callable-to-True": (MATRICES_ONLY, lambda _: True, {"a", "b/0", "b/1"}),
    "prefix-of-a-list": (MATRICES_ONLY, {"a": False, "b": True}, {"b/0", "b/1"}),
    "bools": (
        TREE,
        {
            "conv": {"kernel": True, "bias": False},
            "head": {"kernel": np.True_},
            "scale": False,
        },
        KERNELS,
    ),
    "prefix": (TREE, {"conv": False, "head": True, "scale": False}, {"head/kernel"}),
    "Stiefel-and-False": (
        TREE,
        {"conv": False, "head": cdx.Stiefel(rows=1, columns=0), "scale": False},
        {"head/kernel"},
    ),
    "callable": (
        TREE,
        lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree),
        KERNELS,
    ),
    "array": (shaped(3, 2), True, {""}),
}


@pytest.mark.parametrize(("tree", "mask", "paths"), MASKS.values(), ids=MASKS.keys())
def test_a_mask_selects(tree, mask, paths):
    assert chosen(tree, mask) == paths


class Layer(NamedTuple):
    kernel: Any
    bias: Any


PATTERNS = {
    "exact": (TREE, ["head/kernel"], {"head/kernel"}),
    "one-level": (TREE, ["*/kernel"], KERNELS),
    "star-crosses-levels": (TREE, ["c*l"], {"conv/kernel"}),
    "several": (TREE, ["conv/k*", "head/*"], KERNELS),
    "overlapping": (TREE, ["*kernel", "head/kernel"], KERNELS),
    "question-mark": (TREE, ["?ead/kernel"], {"head/kernel"}),
    "class": (TREE, ["[!h]*/kernel"], {"conv/kernel"}),
    "deep": ({"a": {"b": {"kernel": shaped(3, 2)}}}, ["*kernel"], {"a/b/kernel"}),
    "list": ([shaped(3, 2), {"w": shaped(3, 2)}], ["1/w"], {"1/w"}),
    "tuple": ((shaped(3), shaped(3, 2)), ["1"], {"1"}),
    "NamedTuple": ({"l": Layer(shaped(3, 2), shaped(2))}, ["*/kernel"], {"l/kernel"}),
    "array": (shaped(3, 2), [""], {""}),
    "array-by-star": (shaped(3, 2), ["*"], {""}),
}


@pytest.mark.parametrize(
    ("tree", "patterns", "paths"), PATTERNS.values(), ids=PATTERNS.keys()
)
def test_where_selects_by_path(tree, patterns, paths):
    assert chosen(tree, cdx.where(*patterns)) == paths


def test_where_distinguishes_upper_and_lower_case():
    tree = {"Kernel": shaped(3, 2), "kernel": shaped(3, 2)}
    assert chosen(tree, cdx.where("k*")) == {"kernel"}


def test_where_passes_its_spec_on():
    tree = {"query": {"kernel": shaped(6, 2, 3), "bias": shaped(2, 3)}}
    spec = cdx.Stiefel(rows=0, columns=2)
    mask = cdx.where("*/kernel", spec=spec)(tree)
    assert mask == {"query": {"kernel": spec, "bias": False}}


class Network(nn.Module):
    """Each kind of kernel that Linen has; one of them in a partitioning box."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3))(x).reshape(2, -1, 4)
        x = nn.MultiHeadDotProductAttention(num_heads=2)(x)
        boxed = nn.with_partitioning(nn.initializers.orthogonal(), (None, "m"))
        return nn.Dense(3, kernel_init=boxed)(x)


def test_where_finds_the_kernels_of_a_linen_module():
    images = shaped(2, 4, 4, 3)
    params = jax.eval_shape(Network().init, jax.random.key(0), images)["params"]
    attention = "MultiHeadDotProductAttention_0"
    inner = {f"{attention}/{name}/kernel" for name in ("query", "key", "value", "out")}
    kernels = inner | {"Conv_0/kernel", "Dense_0/kernel"}
    stacks = cdx.layers.dense()
    assert chosen(params, cdx.where("*/kernel", spec=stacks)) == kernels
    assert chosen(params, cdx.where(f"{attention}/*/kernel", spec=stacks)) == inner
    assert chosen({"params": params}, cdx.where("*/Dense_0/kernel")) == {
        "params/Dense_0/kernel"
    }


class Values(nnx.Module):
    """A module with a submodule called value, which no box must be taken for."""

    def __init__(self, rngs: nnx.Rngs):
        self.value = nnx.Linear(6, 3, rngs=rngs)
        self.out = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.out(self.value(x))


def test_an_nnx_leaf_has_one_name_at_init_and_at_update():
    model = Values(nnx.Rngs(0))
    names, structures = [], []

    def mask(tree):
        names.append(chosen(tree, cdx.where("*kernel")))
        structures.append(jax.tree.structure(tree))
        return cdx.where("value/kernel")(tree)

    optimizer = nnx.Optimizer(model, cdx.dissolve_gradients(1.0, mask), wrt=nnx.Param)
    grads = jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param))
    optimizer.update(model, grads)
    assert structures[0] != structures[-1]
    assert all(found == {"value/kernel", "out/kernel"} for found in names)


def test_where_names_the_leaves_of_an_nnx_state():
    _, state = nnx.split(Values(nnx.Rngs(0)))
    assert chosen(state, cdx.where("value/kernel")) == {"value/kernel"}
    assert chosen(nnx.to_pure_dict(state), cdx.where("value/*l")) == {"value/kernel"}


def equinox_arrays() -> Any:
    equinox = pytest.importorskip("equinox")
    mlp = equinox.nn.MLP(4, 2, width_size=5, depth=1, key=jax.random.key(0))
    return equinox.filter(mlp, equinox.is_array)


def test_where_finds_the_weights_of_an_equinox_module():
    weights = {"layers/0/weight", "layers/1/weight"}
    assert chosen(equinox_arrays(), cdx.where("*weight")) == weights


def test_a_tree_of_bools_may_be_a_callable_module():
    params = equinox_arrays()
    mask = jax.tree.map(lambda leaf: leaf.ndim > 1, params)
    assert chosen(params, mask) == {"layers/0/weight", "layers/1/weight"}


def test_where_takes_several_readings_exclusions_and_predicates():
    words = jnp.zeros((1, 5, 6))
    layer = nn.MultiHeadDotProductAttention(2)
    params = layer.init(jax.random.key(0), words, words)["params"]
    per_head, out = cdx.layers.attention(), cdx.layers.attention_out()
    mask = cdx.where({"*/kernel": per_head}, exclude="out/*")(params)
    assert mask["query"]["kernel"] == per_head
    assert mask["out"]["kernel"] is False
    assert mask["query"]["bias"] is False
    first = cdx.where({"out/kernel": out, "*/kernel": per_head})(params)
    assert first["out"]["kernel"] == out
    assert first["value"]["kernel"] == per_head

    def tall(path, leaf):
        return path.endswith("kernel") and leaf.shape[0] == 6

    chosen = cdx.where(tall, spec=per_head, exclude=lambda path, _: "value" in path)
    assert cdx.feasibility(params, chosen).keys() == {"query/kernel", "key/kernel"}


def test_a_mask_serves_as_a_static_argument():
    a, b = (cdx.where("*/kernel", exclude="out/*") for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
