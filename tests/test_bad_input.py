"""Whatever cannot work raises a ValueError that a user can act on.

A row of the table is a call and the words its message must hold: the function, the
leaf's path, its shape and dtype, and what to do.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import freeze

import cdopt_jax

# No type checker would let these calls pass, which is the point of them.
cdx: Any = cdopt_jax
prox, stiefel = cdx.prox, cdx.stiefel

W = jnp.eye(4, 2)
V = jnp.zeros(3)
CUBE = jnp.ones((4, 3, 2))
PARAMS = {"net": {"w": W, "b": V}}
MASK = {"net": {"w": True, "b": False}}
NAN, INF = float("nan"), float("inf")
STACKED = {"stack": {"kernel": CUBE, "bias": jnp.ones((3, 4))}}
S = cdx.Stiefel
key = jax.random.key(0)


def nnx_params(layers: int) -> Any:
    """The parameters of a model with that many layers."""
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(*(nnx.Linear(3, 3, rngs=rngs) for _ in range(layers)))
    return nnx.state(model, nnx.Param)


def nnx_mask(layers: int) -> Any:
    """A mask of such a model, leaf by leaf."""
    return jax.tree.map(lambda leaf: leaf.ndim == 2, nnx_params(layers))


TRANSFORMATIONS = {
    "dissolve_gradients": lambda mask: cdx.dissolve_gradients(1.0, mask),
    "add_penalty": lambda mask: cdx.add_penalty(1.0, mask),
    "restore_feasibility": lambda mask: cdx.restore_feasibility(mask),
    "proximal_step": lambda mask: cdx.proximal_step(0.1, prox.none(), mask),
    "keep_feasible": lambda mask: cdx.keep_feasible(mask),
    "constrain": lambda mask: cdx.constrain(optax.sgd(0.1), mask),
}


def updated(name: str, params: Any, grads: Any = None, mask: Any = None) -> Any:
    """The update of a transformation that was set up on parameters that fit."""
    tx = TRANSFORMATIONS[name](mask)
    good = jax.tree.map(lambda _: W, params) if mask is None else PARAMS
    grads, state = params if grads is None else grads, tx.init(good)
    return jax.eval_shape(lambda: tx.update(grads, state, params))


FUNCTIONS = {
    "dissolve": cdx.dissolve,
    "project": cdx.project,
    "feasibility": cdx.feasibility,
    "stationarity": lambda tree, mask=None: cdx.stationarity(tree, tree, mask),
    "objective": lambda tree, mask=None: cdx.objective(jnp.sum, 1.0, mask)(tree),
}
LEAVES = {
    "scalar": (jnp.float32(1), ["shape ()", "dtype float32", "Leave it out"]),
    "vector": (V, ["shape (3,)", "dtype float64", "Stiefel(rows=0, columns=())"]),
    "integer": (W.astype(int), ["shape (4, 2)", "dtype int64", "cast it"]),
    "boolean": (W > 0, ["shape (4, 2)", "dtype bool", "Leave it out"]),
    "empty": (jnp.zeros((3, 0)), ["shape (3, 0)", "dtype float64", "Leave it out"]),
    "python-float": (1.5, ["type float", "Leave it out"]),
    "string": ("weights", ["type str", "Leave it out"]),
}
Row = tuple[Any, list[str]]


def leaf_rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for kind, (leaf, words) in LEAVES.items():
        tree = {"net": {"w": leaf}}
        for name, call in FUNCTIONS.items():
            row = (lambda call=call, tree=tree: call(tree)), [name, "'net/w'", *words]
            rows[f"{name}-{kind}"] = row
        for name, make in TRANSFORMATIONS.items():
            expected = [f"{name}:", "'net/w'", *words]
            rows[f"{name}-init-{kind}"] = (
                lambda make=make, tree=tree: make(None).init(tree),
                expected,
            )
            rows[f"{name}-update-{kind}"] = (
                lambda name=name, tree=tree: updated(name, tree),
                expected,
            )
    return rows


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


def number_rows() -> dict[str, Row]:
    wrong = {"0": 0, "negative": -1.5, "nan": NAN, "inf": INF}
    no_number = {"None": None, "str": "big", "bool": True}
    factories: dict[str, Any] = {
        "dissolve_gradients-beta": cdx.dissolve_gradients,
        "add_penalty-beta": cdx.add_penalty,
        "objective-beta": lambda beta: cdx.objective(jnp.sum, beta),
        "proximal_step-learning_rate": lambda rate: cdx.proximal_step(
            rate, prox.none()
        ),
    }
    rows: dict[str, Row] = {}
    for name, make in factories.items():
        start = f"{name.replace('-', ': ')} must be"
        for kind, value in (wrong | no_number).items():
            say = "above zero and finite" if kind in wrong else "a number"
            rows[f"{name}-{kind}"] = (
                lambda make=make, value=value: make(value),
                [f"{start} {say}", f"it is {value!r}"],
            )
    for value in (0, 1, 1.5, -0.5, NAN, "half", None, True):
        for name in ("keep_feasible", "constrain"):
            rows[f"{name}-radius-{value}"] = (
                lambda name=name, value=value: (
                    cdx.keep_feasible(radius=value)
                    if name == "keep_feasible"
                    else cdx.constrain(optax.sgd(0.1), radius=value)
                ),
                [f"{name}: radius must be a number between 0 and 1", f"{value!r}"],
            )
    return rows


def more_rows() -> dict[str, Row]:
    """What real users wrote, and what was tried on purpose."""
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
    masked("returns-None", lambda _: None, "returned None", "jax.tree.map")
    masked("of-path-and-leaf", lambda _path, _leaf: True, "one argument", "where(")
    masked("without-arguments", lambda: MASK, "one argument", "the parameters")
    masked("dtype", jnp.float32, "class float32", 'where("*/kernel")')
    masked("FrozenDict", freeze(MASK), "FrozenDict", "dict", "jax.tree.map")

    for kind, b in {"negative": -jnp.eye(4), "zero": jnp.zeros((4, 4))}.items():
        words = ["B must be positive definite"]
        rows[f"Stiefel-B-{kind}"] = (lambda b=b: S(B=b)), ["Stiefel: ", *words]
        for name in ("project", "dissolve", "residual"):
            call = getattr(stiefel, name)
            row = (lambda call=call, b=b: call(W, B=b)), [f"stiefel.{name}:", *words]
            rows[f"stiefel-{name}-B-{kind}"] = row
        rows[f"stiefel-random-B-{kind}"] = (
            lambda b=b: stiefel.random(key, (4, 2), B=b),
            ["B must be positive definite"],
        )
    singular = jnp.ones((4, 4))
    rows["stiefel-project-B-singular"] = (
        lambda: stiefel.project(W, B=singular),
        ["stiefel.project: B must be positive definite", "eigenvalue", "ε·I"],
    )
    minus = {"net": {"w": S(B=lambda x: -x), "b": False}}
    rows["project-B-callable-negative"] = (
        lambda: cdx.project(PARAMS, minus),
        ["project: B must be positive definite", "xᵀBx is -1.0e+00", "'net/w'"],
    )
    functions: dict[str, Row] = {
        "None": (lambda _: None, ["returned a NoneType"]),
        "cut": (lambda x: x[:2], ["shape (4, 2)", "returned shape (2, 2)"]),
        "integer": (lambda x: x.astype(int), ["returned shape (4, 2)", "int64"]),
        "no-arguments": (lambda: W, ["one argument, x ↦ Bx"]),
    }
    for kind, (b, words) in functions.items():
        rows[f"stiefel-B-callable-{kind}"] = (
            lambda b=b: stiefel.dissolve(W, B=b),
            ["stiefel.dissolve: B must", *words],
        )
        rows[f"constrain-B-callable-{kind}"] = (
            lambda b=b: updated(
                "constrain", PARAMS, None, {"net": {"w": S(B=b), "b": False}}
            ),
            ["B must", *words],
        )

    predicates: dict[str, Row] = {
        "one-argument": (lambda _: True, ["two arguments", "leaf.ndim == 2"]),
        "array": (lambda _, leaf: leaf > 0, ["True or False", "'net/b'"]),
    }
    for kind, (predicate, words) in predicates.items():
        rows[f"where-predicate-{kind}"] = (
            lambda predicate=predicate: cdx.project(PARAMS, cdx.where(predicate)),
            ["where: a predicate", *words],
        )

    arrays = {"negative": jnp.array(-1.0), "nan": jnp.array(NAN), "vector": jnp.ones(2)}
    for kind, value in arrays.items():
        say = "a number" if kind == "vector" else "zero or above and finite"
        rows[f"dissolve_gradients-beta-array-{kind}"] = (
            lambda value=value: cdx.dissolve_gradients(value),
            [f"dissolve_gradients: beta must be {say}"],
        )
        rows[f"proximal_step-learning_rate-array-{kind}"] = (
            lambda value=value: cdx.proximal_step(value, prox.none()),
            [f"proximal_step: learning_rate must be {say}"],
        )
        rows[f"keep_feasible-radius-array-{kind}"] = (
            lambda value=value: cdx.keep_feasible(radius=value),
            ["keep_feasible: radius must be a number between 0 and 1"],
        )
    schedules: dict[str, Row] = {
        "no-arguments": (lambda: 1.0, ["one argument", "cosine_decay_schedule"]),
        "returns-None": (lambda _: None, ["must return a number", "None"]),
        "returns-vector": (lambda _: jnp.ones(2), ["must return a number"]),
    }
    for kind, (schedule, words) in schedules.items():
        for name, make in {
            "add_penalty": cdx.add_penalty,
            "dissolve_gradients": cdx.dissolve_gradients,
            "proximal_step": lambda rate, mask: cdx.proximal_step(
                rate, prox.none(), mask
            ),
        }.items():
            rows[f"{name}-schedule-{kind}"] = (
                lambda make=make, schedule=schedule: (
                    tx := make(schedule, MASK)
                ).update(PARAMS, tx.init(PARAMS), PARAMS),
                [f"{name}: ", "schedule", *words],
            )

    for name in ("constrain", "keep_feasible", "dissolve_gradients", "add_penalty"):
        tx = TRANSFORMATIONS[name](MASK)
        rows[f"{name}-params-before-state"] = (
            lambda tx=tx: tx.update(PARAMS, PARAMS, tx.init(PARAMS)),
            [f"{name}: the state must be the", "update(updates, state, params)"],
        )
        rows[f"{name}-state-None"] = (
            lambda tx=tx: tx.update(PARAMS, None, PARAMS),
            [f"{name}: the state must be the", "it is a NoneType"],
        )
    for name in TRANSFORMATIONS:
        grads = {"net": {"w": W.tolist(), "b": V}}
        rows[f"{name}-updates-list"] = (
            lambda name=name, grads=grads: updated(name, PARAMS, grads, MASK),
            [f"{name}: updates must be arrays; 'net/w' is of type list"],
        )

    identity = prox.Regularizer
    maps: dict[str, Row] = {
        "one-argument": (lambda x: x, ["prox(x, step)"]),
        "None": (None, ["prox(x, step)", "None"]),
        "another-tree": (lambda x, _: x["net"], ["proximal map", "structure"]),
        "another-shape": (
            lambda x, _: jax.tree.map(jnp.sum, x),
            ["proximal map must have the shapes", "'net/b' has shape ()"],
        ),
    }
    for kind, (function, words) in maps.items():
        made = identity(value=lambda _: 0.0, prox=function)
        rows[f"proximal_step-prox-{kind}"] = (
            lambda made=made: cdx.proximal_step(0.1, made, MASK).init(PARAMS),
            ["proximal_step: the", *words],
        )
        rows[f"constrain-prox-{kind}"] = (
            lambda made=made: cdx.constrain(
                optax.sgd(0.1), MASK, regularizer=made, learning_rate=0.1
            ).init(PARAMS),
            ["constrain: the", *words],
        )
    named = {"net": {"w": W, "b": "name"}}
    rows["constrain-regularizer-on-a-string"] = (
        lambda: cdx.constrain(
            optax.sgd(0.1), MASK, regularizer=prox.l1(0.1), learning_rate=0.1
        ).init(named),
        ["constrain: a regularizer", "'net/b' is of type str", "Take it out"],
    )
    rows["master_copies-string"] = (
        lambda: cdx.master_copies(optax.sgd(0.1)).init(named),
        ["master_copies: the leaves must be arrays; 'net/b' is of type str"],
    )
    rows["master_copies-state-of-another-model"] = (
        lambda: (tx := cdx.master_copies(optax.sgd(0.1))).update(
            PARAMS, tx.init({"w": W}), PARAMS
        ),
        ["master_copies: the state must be that of these parameters", "tx.init"],
    )
    rows["proximal_step-tangential"] = (
        lambda: cdx.proximal_step(0.1, prox.none(), tangential="yes"),
        ["proximal_step: tangential must be True or False", "'yes'"],
    )

    objectives: dict[str, Row] = {
        "vector": (lambda p: p["net"]["b"], ["array of shape (3,)"]),
        "None": (lambda _: None, ["a NoneType"]),
        "pair": (lambda _: (0.0, 1), ["a tuple", "has_aux=True"]),
    }
    for kind, (f, words) in objectives.items():
        for beta in (1.0, "auto"):
            rows[f"objective-returns-{kind}-{beta}"] = (
                lambda f=f, beta=beta: cdx.objective(f, beta, MASK)(PARAMS),
                ["objective: f must return one real number", *words],
            )
    rows["objective-no-pair"] = (
        lambda: cdx.objective(lambda _: 0.0, 1.0, MASK, has_aux=True)(PARAMS),
        ["objective: f must return a pair", "has_aux", "a float"],
    )
    shapes = jax.eval_shape(lambda: {"w": W})
    for name in ("project", "dissolve", "feasibility"):
        rows[f"{name}-of-shapes"] = (
            lambda name=name: getattr(cdx, name)(shapes),
            [f"{name}: the parameters must have values", "'w'", "jax.eval_shape"],
        )
    for kind, x in {"None": None, "str": "x", "dict": {"w": W}}.items():
        rows[f"stiefel-project-{kind}"] = (
            lambda x=x: stiefel.project(x),
            ["stiefel.project: x must be an array", type(x).__name__],
        )
    for kind, beta in {"negative": -1.0, "nan": NAN, "other": jnp.ones(3)}.items():
        rows[f"stiefel-gradient-beta-{kind}"] = (
            lambda beta=beta: stiefel.gradient(W, W, beta),
            ["stiefel.gradient: beta must be a number of zero or above"],
        )
    rows["stiefel-axis_name"] = (
        lambda: stiefel.dissolve(W, axis_name="rows"),
        ["stiefel.dissolve: axis_name", "'rows'", "shard_map"],
    )
    draws: dict[str, Row] = {
        "negative": ((key, (-1, -2)), ["(-1, -2)", "n ≥ p ≥ 1"]),
        "float-shape": ((key, (4.0, 2.0)), ["shape must be", "(4.0, 2.0)"]),
        "seed": ((0, (4, 2)), ["key must be", "jax.random.key(0)", "it is 0"]),
        "swapped": (((4, 2), key), ["key must be", "(4, 2)"]),
        "dtype": ((key, (4, 2), "hal"), ["dtype must be", "'hal'"]),
    }
    for kind, (arguments, words) in draws.items():
        rows[f"stiefel-random-{kind}"] = (
            lambda arguments=arguments: stiefel.random(*arguments),
            ["stiefel.random: ", *words],
        )
        if kind not in ("swapped", "negative"):
            rows[f"initializer-{kind}"] = (
                lambda arguments=arguments: cdx.initializer()(*arguments),
                ["initializer: ", *words],
            )
    rows["initializer-shape"] = (
        lambda: cdx.initializer(shape=3),
        ["initializer: shape must be a tuple of whole numbers", "3"],
    )
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
    theory = cdx.theory
    bounds: dict[str, Row] = {
        "penalty_weight": (lambda: theory.penalty_weight(-1, 1), ["gradient_bound"]),
        "step_size": (lambda: theory.step_size(0), ["beta", "above zero"]),
        "proximal_step_size": (
            lambda: theory.proximal_step_size(0, 0),
            ["not both be zero"],
        ),
        "stationary_radius": (lambda: theory.stationary_radius("1", 1), ["beta"]),
        "minimizer_radius": (lambda: theory.minimizer_radius(1, NAN), ["finite"]),
        "estimate_gradient_bound": (
            lambda: theory.estimate_gradient_bound(jnp.sum, W, key=3),
            ["key must be"],
        ),
    }
    for name, (call, words) in bounds.items():
        rows[f"theory-{name}"] = call, [f"theory.{name}: ", *words]
    rows["theory-samples"] = (
        lambda: theory.estimate_gradient_bound(jnp.sum, W, key=key, samples=0),
        ["theory.estimate_gradient_bound: samples", "0"],
    )
    rows["theory-vector"] = (
        lambda: theory.estimate_gradient_bound(lambda x: x, W, key=key),
        ["theory.estimate_gradient_bound: f must return one real number", "(4, 2)"],
    )
    for kind, params in {"None": None, "empty": {}, "string": "kernel"}.items():
        rows[f"describe-{kind}"] = (
            lambda params=params: cdx.describe(params),
            ["describe: params must be a tree of arrays", "nnx.state"],
        )
    rows["report-without-mask"] = (
        lambda: cdx.report(TRANSFORMATIONS["constrain"](MASK).init(PARAMS), PARAMS),
        ["report: the state reports on 1 of 2 leaves", "report(state, params, mask)"],
    )
    rows["stationarity-grads-first"] = (
        lambda: cdx.stationarity(PARAMS, MASK, MASK),
        ["stationarity: grads must", "'net/b'"],
    )
    rows["constrain-value_fn"] = (
        lambda: (tx := TRANSFORMATIONS["constrain"](MASK)).update(
            PARAMS, tx.init(PARAMS), PARAMS, value_fn=3
        ),
        ["constrain: value_fn must be a function", "3"],
    )
    return rows


ASYMMETRIC = jnp.eye(4).at[0, 1].set(1.0)
METRICS: dict[str, Row] = {
    "not-square": (jnp.ones((4, 3)), ["(n, n)", "(4, 3)"]),
    "vector": (jnp.ones(4), ["(n, n)", "(4,)"]),
    "not-symmetric": (ASYMMETRIC, ["symmetric", "(B + B.T) / 2"]),
    "nan": (jnp.eye(4) * jnp.nan, ["finite"]),
    "complex, not Hermitian": (
        jnp.eye(4) + 1j * jnp.eye(4)[::-1],
        ["Hermitian", "B.conj().T"],
    ),
    "integer": (jnp.eye(4, dtype=int), ["floating point, real or complex", "int64"]),
}

ROWS: dict[str, Row] = {
    **leaf_rows(),
    **mask_rows(),
    **number_rows(),
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
    **{
        f"Stiefel-B-{kind}": ((lambda b=b: S(B=b)), ["Stiefel: B must", *words])
        for kind, (b, words) in METRICS.items()
    },
    **{
        f"stiefel-B-{kind}": (
            lambda b=b: stiefel.tangent(W, W, B=b),
            [
                "stiefel.tangent: B must",
                *(word.replace("n, n", "4, 4") for word in words),
            ],
        )
        for kind, (b, words) in METRICS.items()
    },
    "Stiefel-B-list": (lambda: S(B=[[1.0]]), ["Stiefel: B", "array", "callable"]),
    "mask-B-other-size": (
        lambda: cdx.dissolve(PARAMS, {"net": {"w": S(B=jnp.eye(3)), "b": False}}),
        ["dissolve:", "(4, 4)", "(3, 3)", "'net/w'", "shape (4, 2)", "a B of its own"],
    ),
    **{
        f"prox-{name}-{kind}": (
            lambda name=name, weight=weight: getattr(prox, name)(weight),
            [f"prox.{name}: weight", "≥ 0", str(weight)],
        )
        for name in ("l1", "l21", "nonnegative_l1")
        for kind, weight in [("negative", -1.0), ("nan", NAN), ("str", "much")]
    },
    "prox-elastic_net": (
        lambda: prox.elastic_net(0.5, {"net": {"w": jnp.array(-1.0)}}),
        ["prox.elastic_net: l2_weight at 'net/w'", "≥ 0", "-1.0"],
    ),
    "prox-weights-misfit": (
        lambda: prox.l1({"net": {"v": 0.5}}).prox(PARAMS, 0.1),
        ["prox.l1: weight", "structure", "'net/b', 'net/w'"],
    ),
    "prox-weights-misfit-value": (
        lambda: prox.l21([0.5]).value(PARAMS),
        ["prox.l21: weight", "structure", "'net/b', 'net/w'"],
    ),
    "prox-l21-axis": (
        lambda: prox.l21(0.5, axis=-2).prox(PARAMS, 0.1),
        ["prox.l21:", "axes (-2,)", "'net/b'", "shape (3,)", "float64", "weight 0"],
    ),
    "prox-integer-leaf": (
        lambda: prox.l1(0.5).value({"n": jnp.arange(3)}),
        ["prox.l1:", "floating-point", "'n'", "shape (3,)", "int64"],
    ),
    "proximal_step-l21-axis": (
        lambda: (tx := cdx.proximal_step(0.1, prox.l21(0.5, (0, 1)), MASK)).update(
            PARAMS, tx.init(PARAMS), PARAMS
        ),
        ["prox.l21:", "axes (0, 1)", "'net/b'", "shape (3,)", "weight 0"],
    ),
    **{
        f"proximal_step-regularizer-{kind}": (
            lambda r=r: cdx.proximal_step(0.1, r),
            ["proximal_step: regularizer", "prox.l1(1e-4)"],
        )
        for kind, r in {"factory": prox.l1, "None": None, "float": 0.1}.items()
    },
    "constrain-optimizer": (
        lambda: cdx.constrain(0.1),
        ["constrain: optimizer", "optax.adam(1e-2)", "0.1"],
    ),
    **{
        f"{name}-without-params": (
            lambda make=make: (tx := make(MASK)).update(PARAMS, tx.init(PARAMS)),
            [f"{name}:", "needs the current parameters", "(updates, state, params)"],
        )
        for name, make in TRANSFORMATIONS.items()
    },
    **{
        f"{name}-updates-of-another-structure": (
            lambda name=name: updated(name, PARAMS, {"net": {"w": W}}, MASK),
            [f"{name}:", "updates and params", "same structure"],
        )
        for name in TRANSFORMATIONS
    },
    "project-deficient": (
        lambda: cdx.project({"net": jnp.ones((4, 2))}),
        ["'net' has shape (4, 2) and dtype float64", "rank-deficient", "stiefel.rand"],
    ),
    "project-zero": (
        lambda: cdx.project({"net": 0 * W}),
        ["project:", "'net'", "rank-deficient", "(4, 2)", "stiefel.random"],
    ),
    "project-nan": (
        lambda: cdx.project({"net": W * jnp.nan}),
        ["'net' has shape (4, 2) and dtype", "not finite", "optax.apply_if_finite"],
    ),
    "project-one-of-many": (
        lambda: cdx.project({"net": jnp.stack([W, 0 * W])}, S(rows=1)),
        ["project:", "'net'", "rank-deficient", "(2, 4, 2)"],
    ),
    "stiefel-project-deficient": (
        lambda: stiefel.project(jnp.ones((4, 2))),
        ["stiefel.project:", "rank-deficient", "(4, 2)", "stiefel.random"],
    ),
    **{
        f"stiefel-{name}-{kind}": (
            lambda name=name, x=x: getattr(stiefel, name)(x),
            [f"stiefel.{name}: x must", *words],
        )
        for name in ("residual", "feasibility", "dissolve", "penalty", "penalty_grad")
        for kind, x, words in [
            ("wide", W.T, ["(2, 4)", "float64", "Transpose"]),
            ("vector", V, ["(*batch, n, p)", "(3,)", "float64"]),
            ("integer", W.astype(int), ["floating point", "(4, 2)", "int64"]),
        ]
    },
    **{
        f"stiefel-{name}-{kind}": (
            lambda name=name, d=d: getattr(stiefel, name)(W, d),
            [f"stiefel.{name}:", "of the shape of x, (4, 2)", *words],
        )
        for name in ("jvp", "vjp", "tangent")
        for kind, d, words in [
            ("mismatch", W[:3], ["shape (3, 2)", "float64"]),
            ("integer-direction", W.astype(int), ["floating-point", "int64"]),
        ]
    },
    "stiefel-gradient-mismatch": (
        lambda: stiefel.gradient(W, W.T, 1.0),
        ["stiefel.gradient: g", "(4, 2)", "(2, 4)", "float64"],
    ),
    "stiefel-random-wide": (
        lambda: stiefel.random(key, (2, 4)),
        ["stiefel.random:", "(2, 4)", "Transpose"],
    ),
    "stiefel-random-integer": (
        lambda: stiefel.random(key, (4, 2), int),
        ["stiefel.random:", "floating point", "int64"],
    ),
    "constrain-regularizer-without-learning-rate": (
        lambda: cdx.constrain(optax.sgd(0.1), regularizer=prox.l1(0.1)),
        ["constrain:", "regularizer", "learning_rate", "go together"],
    ),
    "constrain-learning-rate-without-regularizer": (
        lambda: cdx.constrain(optax.sgd(0.1), learning_rate=0.1),
        ["constrain:", "regularizer", "learning_rate", "go together"],
    ),
    "constrain-no-regularizer": (
        lambda: cdx.constrain(optax.sgd(0.1), regularizer=0.1, learning_rate=0.1),
        ["constrain: regularizer", "prox.l1", "0.1"],
    ),
    "add_penalty-beta-auto": (
        lambda: cdx.add_penalty("auto"),
        ["add_penalty: beta", "dissolve_gradients"],
    ),
    "dissolve_gradients-beta-word": (
        lambda: cdx.dissolve_gradients("automatic"),
        ["dissolve_gradients: beta", '"auto"', "'automatic'"],
    ),
    "objective-beta-schedule": (
        lambda: cdx.objective(jnp.sum, lambda _: 1.0),
        ["objective: beta", "number", "schedule"],
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
    "report-with-another-mask": (
        lambda: cdx.report(
            cdx.constrain(optax.sgd(0.1), MASK).init(PARAMS), {"a": W, "b": W}
        ),
        ["report:", "reports on 1 of 2", "mask"],
    ),
    "report-with-a-mask-of-more": (
        lambda: cdx.report(
            cdx.constrain(optax.sgd(0.1), MASK).init(PARAMS), {"a": W, "b": W}, mask=S()
        ),
        ["report:", "reports on 1", "selects 2", "mask"],
    ),
    "Stiefel-rows-float": (lambda: S(rows=1.5), ["Stiefel: rows", "axis", "1.5"]),
    "Stiefel-columns-None": (lambda: S(columns=None), ["Stiefel: columns", "axis"]),
    "mask-Stiefel-class": (lambda: cdx.dissolve(PARAMS, S), ["dissolve", "Stiefel()"]),
    "stiefel-B-list": (
        lambda: stiefel.dissolve(W, B=np.eye(4).tolist()),
        ["stiefel.dissolve: B", "array", "callable"],
    ),
    "stiefel-B-callable-of-another-shape": (
        lambda: stiefel.dissolve(W, B=lambda x: x[:2]),
        ["stiefel.dissolve: B", "(4, 2)", "(2, 2)"],
    ),
    "stationarity-grads-of-another-structure": (
        lambda: cdx.stationarity(PARAMS, {"net": {"w": W}}, MASK),
        ["stationarity:", "grads and params", "structure"],
    ),
    "stationarity-grads-of-another-shape": (
        lambda: cdx.stationarity(PARAMS, {"net": {"w": W.T, "b": V}}, MASK),
        ["stationarity:", "'net/w'", "(2, 4)", "(4, 2)"],
    ),
    **{
        f"{name}-updates-of-another-shape-{kind}": (
            lambda name=name, u=u: updated(
                name, PARAMS, {"net": {"w": u, "b": V}}, MASK
            ),
            [f"{name}:", "'net/w'", str(u.shape), "(4, 2)"],
        )
        for name in TRANSFORMATIONS
        for kind, u in {"transposed": W.T, "cut": W[:3]}.items()
    },
    "add_penalty-integer-updates": (
        lambda: updated(
            "add_penalty", PARAMS, {"net": {"w": W.astype(int), "b": V}}, MASK
        ),
        ["add_penalty:", "'net/w'", "floating", "int64"],
    ),
    **{
        f"dissolve_gradients-beta-{kind}": (
            lambda beta=beta: cdx.dissolve_gradients(beta),
            ["dissolve_gradients: beta must be"],
        )
        for kind, beta in {
            "numpy-negative": np.float32(-1),
            "list": [1.0],
            "complex": 1j,
        }.items()
    },
    "prox-l1-None": (lambda: prox.l1(None), ["prox.l1: weight", "number"]),
    **{
        f"prox-l21-axis-{kind}": (
            lambda axis=axis: prox.l21(0.5, axis),
            ["prox.l21: axis", repr(axis)],
        )
        for kind, axis in {"str": "rows", "float": 1.5, "repeated": (0, 0)}.items()
    },
    "proximal_step-weights-misfit-at-init": (
        lambda: cdx.proximal_step(0.1, prox.l1({"v": 0.5}), MASK).init(PARAMS),
        ["prox.l1: weight", "'net/b', 'net/w'"],
    ),
    "objective-no-function": (
        lambda: cdx.objective(None, 1.0),
        ["objective: f must be", "None"],
    ),
    "project-array": (
        lambda: cdx.project(jnp.ones((4, 2))),
        ["project: the array", "rank-deficient", "float64"],
    ),
    "stiefel-random-shape": (
        lambda: stiefel.random(key, 4),
        ["stiefel.random: shape", "4"],
    ),
    **more_rows(),
}


@pytest.mark.parametrize(("call", "words"), ROWS.values(), ids=ROWS)
def test_the_message_says_what_is_wrong_and_what_to_do(call, words):
    with pytest.raises(ValueError, match=r"\w+: ") as caught:
        call()
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    # Sentences: each of them ends, and no part of them is empty.
    assert message.endswith((".", "?"))
    assert not re.search(r"[^.]\.\.(?!\.)|;\.|: ;|: \.", message), message


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


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_an_error_comes_before_the_rest_of_the_chain_has_moved(name):
    called = []

    def spy(updates, params):
        del params
        called.append(updates)
        return updates

    tx = optax.chain(TRANSFORMATIONS[name](MASK), optax.stateless(spy))
    with pytest.raises(ValueError, match=f"{name}: updates and params"):
        tx.update({"net": {"w": W}}, tx.init(PARAMS), PARAMS)
    assert called == []


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_nothing_has_changed_after_an_error(name):
    tx = TRANSFORMATIONS[name](MASK)
    params = {"net": dict(PARAMS["net"])}
    state = tx.init(params)
    before = jax.tree.leaves((params, state))
    values = [np.array(leaf) for leaf in before]
    for grads, *rest in ((params,), ({"net": {"w": W}}, params)):
        with pytest.raises(ValueError, match=f"{name}:"):
            tx.update(grads, state, *rest)
    after = jax.tree.leaves((params, state))
    assert all(a is b for a, b in zip(after, before, strict=True))
    for leaf, value in zip(after, values, strict=True):
        np.testing.assert_array_equal(leaf, value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_error_is_the_same_under_jit(name):
    with pytest.raises(ValueError, match=rf"{name}: .*'w' has shape \(3,\)"):
        jax.jit(FUNCTIONS[name])({"w": V})


def test_values_are_not_checked_under_jit():
    out = jax.jit(cdx.project)({"w": jnp.ones((4, 2))})
    assert out["w"].shape == (4, 2)
