"""Masks and readings that cannot work, and calls that are to show them."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.core import freeze

from tests.bad_calls import (
    CUBE,
    FUNCTIONS,
    MASK,
    PARAMS,
    TRANSFORMATIONS,
    Row,
    S,
    V,
    W,
    cdx,
    check_message,
    each_row,
    key,
)

STACKED = {"stack": {"kernel": CUBE, "bias": jnp.ones((3, 4))}}


def nnx_params(layers: int) -> Any:
    """The parameters of a model with that many layers."""
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(*(nnx.Linear(3, 3, rngs=rngs) for _ in range(layers)))
    return nnx.state(model, nnx.Param)


def nnx_mask(layers: int) -> Any:
    """A mask of such a model, leaf by leaf."""
    return jax.tree.map(lambda leaf: leaf.ndim == 2, nnx_params(layers))


def mask_rows() -> dict[str, Row]:
    listed = ["'net/b'", "'net/w'"]
    masks: dict[str, Row] = {
        "too-few": ({"net": {"w": True}}, ["structure", *listed]),
        "too-many": ({"net": {"w": True, "b": False, "c": False}}, ["structure", "c"]),
        "None-leaf": ({"net": {"w": True, "b": None}}, ["structure", *listed]),
        "other-container": ([True, False], ["structure", *listed]),
        "too-deep": ({"net": {"w": {"k": True}, "b": False}}, ["structure", *listed]),
        "False": (False, ["selects no leaf", *listed]),
        "all-False": ({"net": False}, ["selects no leaf", *listed]),
        "number": ({"net": {"w": 1, "b": 0}}, ["True, False or a Stiefel", "holds 0"]),
        "name": ({"net": {"w": "yes", "b": False}}, ["'net/w'", "holds 'yes'"]),
        "class": ({"net": {"w": cdx.Stiefel, "b": False}}, ["'net/w'", "Stiefel(…)"]),
        "array": ({"net": {"w": W > 0, "b": False}}, ["'net/w'", "True, False or"]),
    }
    rows: dict[str, Row] = {}
    for kind, (mask, words) in masks.items():
        for name in ("project", "stationarity"):
            rows[f"{name}-mask-{kind}"] = (
                lambda name=name, mask=mask: FUNCTIONS[name](PARAMS, mask),
                [f"{name}: mask", *words],
            )
        for name in ("dissolve_gradients", "constrain"):
            rows[f"{name}-mask-{kind}"] = (
                lambda name=name, mask=mask: TRANSFORMATIONS[name](mask).init(PARAMS),
                [f"{name}: mask", *words],
            )
    return rows


def function_rows() -> dict[str, Row]:
    """Functions in place of masks, and other things that are none."""
    rows: dict[str, Row] = {}

    def masked(kind, mask, *words):
        for name in ("project", "describe"):
            call = getattr(cdx, name)
            row = (
                (lambda call=call, mask=mask: call(PARAMS, mask)),
                [
                    f"{name}: mask",
                    *words,
                ],
            )
            rows[f"{name}-mask-{kind}"] = row
        rows[f"constrain-mask-{kind}"] = (
            lambda mask=mask: TRANSFORMATIONS["constrain"](mask).init(PARAMS),
            ["constrain: mask", *words],
        )

    masked("string", "*/kernel", "where('*/kernel')")
    masked("strings", ["*/w", "*/v"], "holds names", "where('*/w', '*/v')")
    masked("paths", {"net/w": True}, "paths for keys", "where({'net/w': Stiefel(…)})")
    masked("where", cdx.where, "the function where", 'where("*/kernel")')
    masked("reading", cdx.layers.dense, "the function layers.dense", "layers.dense(…)")
    masked("returns-None", lambda _: None, "returned None", "jax.tree.map")
    masked("of-path-and-leaf", lambda _path, _leaf: True, "one argument", "where(")
    masked("without-arguments", lambda: MASK, "one argument", "the parameters")
    masked("dtype", jnp.float32, "class float32", 'where("*/kernel")')
    masked("FrozenDict", freeze(MASK), "FrozenDict", "dict", "jax.tree.map")

    predicates: dict[str, Row] = {
        "one-argument": (lambda _: True, ["two arguments", "leaf.ndim == 2"]),
        "array": (lambda _, leaf: leaf > 0, ["True or False", "'net/b'"]),
    }
    for kind, (predicate, words) in predicates.items():
        rows[f"where-predicate-{kind}"] = (
            lambda predicate=predicate: cdx.project(PARAMS, cdx.where(predicate)),
            ["where: a predicate", *words],
        )

    return rows


def reading_rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    layers = cdx.layers
    readings: dict[str, Row] = {
        "conv": (lambda: layers.conv((3, 3)), ["spatial", "(3, 3)"]),
        "torch_conv": (lambda: layers.torch_conv(2, 0), ["groups", "0"]),
        "torch_linear": (lambda: layers.torch_linear(1.5), ["blocks", "1.5"]),
        "conv_transpose": (lambda: layers.conv_transpose(-1), ["spatial", "-1"]),
        "recurrent": (lambda: layers.recurrent("4"), ["gates", "'4'"]),
        "attention": (lambda: layers.attention(per_head=2), ["per_head", "2"]),
    }
    for name, (call, words) in readings.items():
        rows[f"layers-{name}"] = call, [f"layers.{name}: {words[0]} must be", words[1]]
    for axes in (3, 5):
        leaf = jnp.ones((2,) * axes)
        rows[f"constrain-guess-{axes}"] = (
            lambda leaf=leaf: cdx.constrain(optax.sgd(0.1)).init({"scan": leaf}),
            [
                "constrain: ",
                "'scan' has shape",
                "layers.dense()",
                f"layers.conv({axes - 2})",
                f"layers.torch_conv({axes - 2})",
                "layers.attention()",
                f"one matrix of {2 ** (axes - 1)} × 2",
            ],
        )
    for kind, params in {"None": None, "empty": {}, "string": "kernel"}.items():
        rows[f"describe-{kind}"] = (
            lambda params=params: cdx.describe(params),
            ["describe: params must be a tree of arrays", "nnx.state"],
        )
    return rows


ROWS: dict[str, Row] = {
    **mask_rows(),
    **function_rows(),
    **reading_rows(),
    "Stiefel-rows-str": (lambda: S(rows="a"), ["Stiefel: rows", "axis", "'a'"]),
    "Stiefel-rows-mixed": (lambda: S(rows=(0, 1.5)), ["Stiefel: rows", "(0, 1.5)"]),
    "Stiefel-columns-bool": (lambda: S(columns=True), ["Stiefel: columns", "True"]),
    **{
        f"dissolve-axes-{kind}": (
            lambda spec=spec: cdx.dissolve({"net": CUBE}, spec),
            ["dissolve:", "'net'", "(4, 3, 2)", "float64", *words],
        )
        for kind, spec, words in [
            ("beyond", S(rows=3), ["rows=3", "0 to 2"]),
            ("before", S(columns=-4), ["columns=-4", "0 to 2"]),
            ("repeated", S(rows=(0, 0)), ["rows=(0, 0)", "differ"]),
            ("repeated-by-sign", S(columns=(1, -2)), ["columns=(1, -2)", "differ"]),
            ("meeting", S(rows=(0, 2)), ["rows=(0, 2)", "rows, columns or batch"]),
        ]
    },
    "where-nothing": (lambda: cdx.where(), ["where:", 'where("*/kernel")']),
    "where-list": (lambda: cdx.where(["w"]), ["where:", "(['w'],)"]),
    "where-spec": (lambda: cdx.where("w", spec=True), ["where: spec", "Stiefel(…)"]),
    "where-unmatched": (
        lambda: cdx.project(PARAMS, cdx.where("*/w", "w*")),
        ["where:", "'w*' matches no leaf", "'net/b', 'net/w'"],
    ),
    "where-unmatched-at-init": (
        lambda: cdx.add_penalty(1.0, cdx.where("conv")).init(PARAMS),
        ["'conv' matches no leaf", "'net/b', 'net/w'"],
    ),
    "where-catches-a-stacked-bias": (
        lambda: cdx.dissolve(STACKED, cdx.where("stack/*")),
        ["where:", "'stack/*'", "'stack/bias'", "shape (3, 4)", 'exclude="*bias"'],
    ),
    "where-catches-a-scale": (
        lambda: cdx.dissolve({"w": W, "norm": {"scale": V}}, cdx.where("*")),
        ["where:", "'norm/scale'", "shape (3,)", 'exclude="*scale"'],
    ),
    "where-exclude-number": (
        lambda: cdx.where("*", exclude=3),
        ["where: exclude", 'exclude="*/bias"', "3"],
    ),
    "where-exclude-matches-nothing": (
        lambda: cdx.dissolve(PARAMS, cdx.where("net/w", exclude="head/*")),
        ["where:", "'head/*' matches no leaf", "'net/w'"],
    ),
    "where-mapping-to-True": (
        lambda: cdx.where({"*/w": True}),
        ["where: spec", "Stiefel", "True"],
    ),
    "layers-conv-on-a-dense-kernel": (
        lambda: cdx.project(PARAMS, cdx.where("net/w", spec=cdx.layers.conv())),
        ["project: the axes", "'net/w'", "shape (4, 2)", "0 to 1"],
    ),
    "layers-gates-that-do-not-divide": (
        lambda: cdx.project(PARAMS, cdx.where("net/w", spec=cdx.layers.recurrent(4))),
        ["project:", "2 columns", "4 blocks", "'net/w'", "shape (4, 2)"],
    ),
    **{
        f"Stiefel-blocks-{blocks}": (
            lambda blocks=blocks: S(blocks=blocks),
            ["Stiefel: blocks", repr(blocks)],
        )
        for blocks in (0, -1, 1.5, "2", True)
    },
    "nnx-mask-of-another-model": (
        lambda: cdx.constrain(optax.sgd(0.1), nnx_mask(2)).init(nnx_params(1)),
        ["constrain: mask", "structure", "'layers/1/kernel'", "'layers/0/kernel'"],
    ),
    "linen-variables-whole": (
        lambda: cdx.feasibility({"params": PARAMS, "batch_stats": {"mean": V}}),
        ["feasibility:", "'params', 'batch_stats'", 'variables["params"]'],
    ),
    "initializer-True": (
        lambda: cdx.initializer(spec=True),
        ["initializer: spec", "cdx.layers", "True"],
    ),
    "initializer-flat-attention": (
        lambda: cdx.initializer(cdx.layers.attention())(key, (6, 12)),
        ["initializer:", "(6, 12)", "shape=(features, heads, head_dim)"],
    ),
    "initializer-other-size": (
        lambda: cdx.initializer(shape=(4, 3))(key, (6, 12)),
        ["initializer:", "(6, 12)", "72", "(4, 3)", "12"],
    ),
    "report-of-another-state": (
        lambda: cdx.report(optax.adam(0.1).init(W), W),
        ["report:", "constrain", "update"],
    ),
    "report-of-a-mapped-state": (
        lambda: cdx.report(jax.vmap(cdx.keep_feasible().init)(jnp.ones((3, 4, 2)))),
        ["report: bound must", "shape (3, 1)", "jax.vmap(report)(state)"],
    ),
    "Stiefel-rows-float": (lambda: S(rows=1.5), ["Stiefel: rows", "axis", "1.5"]),
    "Stiefel-columns-None": (lambda: S(columns=None), ["Stiefel: columns", "axis"]),
    "mask-Stiefel-class": (lambda: cdx.dissolve(PARAMS, S), ["dissolve", "Stiefel()"]),
}


def test_an_error_inside_of_a_mask_is_told_to_be_there():
    with pytest.raises(AttributeError, match="ndim") as caught:
        cdx.constrain(optax.sgd(0.1), lambda leaf: leaf.ndim == 2).init(PARAMS)
    (note,) = caught.value.__notes__
    assert "called with the parameters" in note


def test_a_pattern_that_is_the_path_matches_whatever_it_holds():
    params = {"[w]": W, "w": V}
    assert cdx.where("[[]w]")(params) == cdx.where("[w]", exclude="w")(params)


@each_row(ROWS)
def test_the_message_says_what_is_wrong_and_what_to_do(call, words):
    check_message(call, words)


def test_a_mask_that_does_not_fit_is_told_in_the_users_words():
    with pytest.raises(ValueError, match="mask") as caught:
        cdx.dissolve(PARAMS, {"net": {"w": True}})
    assert "tree_map" not in str(caught.value)
    assert "prefix pytree" not in str(caught.value)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_mask_that_does_not_fit_is_found_before_the_first_update(name):
    tx = optax.chain(TRANSFORMATIONS[name]({"net": {"w": True}}), optax.sgd(0.1))
    for init in (tx.init, jax.jit(tx.init), lambda p: jax.eval_shape(tx.init, p)):
        with pytest.raises(ValueError, match=f"{name}: mask"):
            init(PARAMS)
