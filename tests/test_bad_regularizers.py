"""Regularizers that cannot work: weights, axes, steps and proximal maps."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.bad_calls import (
    INF,
    MASK,
    NAN,
    PARAMS,
    Row,
    W,
    cdx,
    check_message,
    each_row,
    prox,
)


def map_rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
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
    return rows


INITS: dict[str, Any] = {
    "proximal_step": lambda r: cdx.proximal_step(0.1, r, MASK).init(PARAMS),
    "keep_feasible": lambda r: cdx.keep_feasible(
        MASK, regularizer=r, learning_rate=0.1
    ).init(PARAMS),
    "constrain": lambda r: cdx.constrain(
        optax.sgd(0.1), MASK, regularizer=r, learning_rate=0.1
    ).init(PARAMS),
}

ROWS: dict[str, Row] = {
    **map_rows(),
    **{
        f"prox-{name}-{kind}": (
            lambda name=name, weight=weight: getattr(prox, name)(weight),
            [f"prox.{name}: weight must be", "≥ 0", told],
        )
        for name in ("l1", "l21", "nonnegative_l1")
        for kind, (weight, told) in {
            "negative": (-1.0, "it is -1.0"),
            "nan": (NAN, "it is nan"),
            "infinite": (INF, "it is inf"),
            "str": ("much", "it is 'much'"),
            "bool": (True, "it is True"),
            "complex": (1j, "it is 1j"),
            "array-of-bool": (W > 0, "it is of dtype bool"),
            "array-with-nan": (W.at[1, 1].set(NAN), "it holds nan"),
        }.items()
    },
    **{
        f"{name}-weight-{kind}": (
            lambda init=init, r=r: init(r),
            [f"prox.{r_name}: {label} must be a number", "'net/w'", *words],
        )
        for name, init in INITS.items()
        for kind, r_name, r, label, words in [
            (
                "rows",
                "l1",
                prox.l1({"net": {"w": jnp.ones(4), "b": 0}}),
                "weight",
                ["(4, 2), the shape of the leaf", "has shape (4,)"],
            ),
            (
                "axes",
                "nonnegative_l1",
                prox.nonnegative_l1({"net": {"w": jnp.ones((1, 4, 2)), "b": 0}}),
                "weight",
                ["(4, 2), the shape of the leaf", "has shape (1, 4, 2)"],
            ),
            (
                "second",
                "elastic_net",
                prox.elastic_net(0.1, {"net": {"w": jnp.ones(3), "b": 0}}),
                "l2_weight",
                ["(4, 2), the shape of the leaf", "l2_weight has shape (3,)"],
            ),
            (
                "groups",
                "l21",
                prox.l21({"net": {"w": jnp.ones(2), "b": 0}}),
                "weight",
                ["(4, 1), the shape of the groups", "has shape (2,)"],
            ),
        ]
    },
    **{
        f"prox-step-{kind}": (
            lambda step=step: prox.l1(0.5).prox(PARAMS, step),
            ["prox.l1: step must be", words],
        )
        for kind, (step, words) in {
            "negative": (-0.1, "zero or above and finite; it is -0.1"),
            "nan": (NAN, "zero or above and finite; it is nan"),
            "str": ("long", "a number; it is 'long'"),
            "None": (None, "a number; it is None"),
            "bool": (True, "a number; it is True"),
            "vector": (jnp.ones(2), "a number"),
        }.items()
    },
    "prox-l21-one-axis-twice": (
        lambda: prox.l21(0.5, (0, -2)).value({"w": W}),
        ["prox.l21:", "(0, -2)", "must differ", "'w' has shape (4, 2)", "weight 0"],
    ),
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
        ["prox.l1:", "floating point", "'n'", "weight 0", "shape (3,)", "int64"],
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
    "prox-l1-None": (lambda: prox.l1(None), ["prox.l1: weight", "number"]),
    **{
        f"prox-l21-axis-{kind}": (
            lambda axis=axis: prox.l21(0.5, axis),
            ["prox.l21: axis", repr(axis)],
        )
        for kind, axis in {
            "str": "rows",
            "float": 1.5,
            "bool": True,
            "bools": (0, True),
            "none": (),
            "None": None,
            "list": [0, 1],
            "repeated": (0, 0),
        }.items()
    },
    "proximal_step-weights-misfit-at-init": (
        lambda: cdx.proximal_step(0.1, prox.l1({"v": 0.5}), MASK).init(PARAMS),
        ["prox.l1: weight", "'net/b', 'net/w'"],
    ),
}


@each_row(ROWS)
def test_the_message_says_what_is_wrong_and_what_to_do(call, words):
    check_message(call, words)
