"""Bad input of complex and scaled leaves: what is said, and which leaf is named."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from cdopt_jax import prox, stiefel
from tests.oracles import normal, spd

X = normal((4, 2), 0, "complex128")
REAL = normal((4, 2), 0)
PARAMS = {"net": {"w": X, "b": jnp.ones(3)}}
MASK = cdx.where("net/w")
HERMITIAN = jnp.asarray(spd(4, "complex128"))
Row = tuple[Callable[[], Any], list[str]]

TRANSFORMATIONS: dict[str, Callable[..., Any]] = {
    "dissolve_gradients": lambda mask: cdx.dissolve_gradients(1.0, mask),
    "add_penalty": lambda mask: cdx.add_penalty(1.0, mask),
    "project_gradients": cdx.project_gradients,
    "restore_feasibility": cdx.restore_feasibility,
    "proximal_step": lambda mask: cdx.proximal_step(0.1, prox.l1(0.1), mask),
    "keep_feasible": cdx.keep_feasible,
    "constrain": lambda mask: cdx.constrain(optax.sgd(0.1), mask),
}


def updated(make, params, grads, mask):
    tx = make(mask)
    return tx.update(grads, tx.init(params), params)


def gradient_rows() -> dict[str, Row]:
    """Real gradients of complex parameters, and the reverse."""
    grads = {"net": {"w": REAL, "b": jnp.ones(3)}}
    real = {"net": {"w": REAL, "b": jnp.ones(3)}}
    conjugate = ["'net/w'", "float64", "complex", "jnp.conj(jax.grad(f)(params))"]
    rows: dict[str, Row] = {}
    for name, make in TRANSFORMATIONS.items():
        rows[f"{name}, real gradients"] = (
            lambda make=make: updated(make, PARAMS, grads, MASK),
            [f"{name}: updates must be complex", *conjugate],
        )
        rows[f"{name}, complex gradients"] = (
            lambda make=make: updated(make, real, PARAMS, MASK),
            [f"{name}: updates must be real", "'net/w'", "complex128"],
        )
    rows["stationarity"] = (
        lambda: cdx.stationarity(PARAMS, grads, MASK),
        ["stationarity: grads must be complex", *conjugate],
    )
    rows["master_copies"] = (
        lambda: updated(lambda _: cdx.master_copies(optax.sgd(0.1)), PARAMS, grads, 0),
        ["master_copies: updates must be complex", *conjugate],
    )
    return rows


def metric_rows() -> dict[str, Row]:
    """A complex metric on real matrices."""
    tree, mask = {"net": {"w": REAL}}, cdx.where("*/w", spec=cdx.Stiefel(B=HERMITIAN))
    words = ["complex B", "complex128", "needs complex matrices", "float64", "B.real"]
    calls = {
        "project": lambda: cdx.project(tree, mask),
        "constrain": lambda: cdx.constrain(optax.sgd(0.1), mask).init(tree),
        "minimize": lambda: cdx.minimize(lambda x: x["net"]["w"].sum(), tree, mask),
        "describe": lambda: cdx.describe(tree, mask),
    }
    rows: dict[str, Row] = {
        f"{name}, complex B": (call, [f"{name}: ", "'net/w'", *words])
        for name, call in calls.items()
    }
    rows["stiefel, complex B"] = (
        lambda: stiefel.dissolve(REAL, B=HERMITIAN),
        ["stiefel.dissolve: ", *words],
    )
    rows["stiefel, callable B"] = (
        lambda: stiefel.dissolve(REAL, B=lambda v: HERMITIAN @ v),
        ["stiefel.dissolve: B must map", "float64", "complex128"],
    )
    rows["keep_feasible, callable B"] = (
        lambda: updated(
            cdx.keep_feasible, REAL, REAL, cdx.Stiefel(B=lambda v: HERMITIAN @ v)
        ),
        ["keep_feasible: B must map", "float64", "complex128"],
    )
    rows["not Hermitian"] = (
        lambda: cdx.Stiefel(B=HERMITIAN.at[0, 1].add(1.0)),
        ["Stiefel: B must be Hermitian", "B.conj().T"],
    )
    rows["not definite"] = (
        lambda: cdx.Stiefel(B=HERMITIAN - 2 * jnp.eye(4)),
        ["Stiefel: B must be positive definite"],
    )
    return rows


def array_rows() -> dict[str, Row]:
    return {
        "a real direction": (
            lambda: stiefel.tangent(X, REAL),
            ["stiefel.tangent: g must be a complex array", "float64"],
        ),
        "a complex direction": (
            lambda: stiefel.tangent(REAL, X),
            ["stiefel.tangent: g must be a real floating-point array", "complex128"],
        ),
        "no direction": (
            lambda: stiefel.dissolve(jnp.ones((3, 2), int)),
            ["stiefel.dissolve: x must be floating point, real or complex", "int64"],
        ),
        "rank": (
            lambda: cdx.project({"w": X.at[:, 1].set(1j * X[:, 0])}),
            ["project: ", "'w'", "rank-deficient"],
        ),
        "not finite": (
            lambda: stiefel.project(X.at[0, 0].set(1j * np.inf)),
            ["stiefel.project: ", "not finite"],
        ),
        "a value that is not real": (
            lambda: cdx.minimize(lambda x: jnp.sum(x), X),
            ["minimize: f must return a real", "complex128", "jnp.real"],
        ),
        "an objective that is not real": (
            lambda: cdx.objective(lambda x: jnp.sum(x), beta=1.0)(X),
            ["objective: f must return one real number", "complex128"],
        ),
    }


def prox_rows() -> dict[str, Row]:
    """A regularizer without a complex form, wherever it is used."""
    words = ["prox.nonnegative_l1: ", "real", "no order", "complex128"]
    r = prox.nonnegative_l1(0.1)
    return {
        "prox": (lambda: r.prox({"w": X}, 1.0), [*words, "'w'"]),
        "value": (lambda: r.value({"w": X}), [*words, "'w'"]),
        "proximal_step": (
            lambda: cdx.proximal_step(0.1, r, MASK).init(PARAMS),
            [*words, "'net/w'"],
        ),
        "constrain": (
            lambda: cdx.constrain(
                optax.sgd(0.1), MASK, regularizer=r, learning_rate=0.1
            ).init(PARAMS),
            [*words, "'net/w'"],
        ),
        "minimize": (
            lambda: cdx.minimize(
                lambda x: jnp.sum(jnp.abs(x["w"] - 1)), {"w": X}, regularizer=r
            ),
            [*words, "'w'"],
        ),
        "a proximal map that drops the imaginary part": (
            lambda: cdx.proximal_step(
                0.1, prox.Regularizer(lambda _: jnp.zeros(()), lambda x, _: x.real)
            ).init(X),
            ["the result of the proximal map must be complex", "float64"],
        ),
    }


def scale_rows() -> dict[str, Row]:
    bad = {
        "zero": 0,
        "negative": -1.0,
        "nan": np.nan,
        "infinite": np.inf,
        "bool": True,
        "complex": 1j,
        "string": "auto",
        "None": None,
        "vector": np.ones(2),
        "tree": {"w": 2.0},
        "function": math.sqrt,
    }
    rows: dict[str, Row] = {}
    for name, scale in bad.items():
        words = ["scale must be one finite number above zero", repr(scale)]
        made: Any = scale
        rows[f"Stiefel-{name}"] = (
            lambda made=made: cdx.Stiefel(scale=made),
            ["Stiefel: ", *words],
        )
        rows[f"layers-{name}"] = (
            lambda made=made: cdx.layers.dense(scale=made),
            ["layers.dense: ", *words],
        )
    rows["traced"] = (
        lambda: jax.jit(lambda c: cdx.project(REAL, cdx.Stiefel(scale=c)))(2.0),
        ["Stiefel: scale must be one finite number", "known when a program is traced"],
    )
    rows["in a mask"] = (
        lambda: cdx.project({"w": REAL, "v": REAL}, {"w": True, "v": 2.0}),
        ["project: mask must hold True, False or a Stiefel(…)", "'v'", "2.0"],
    )
    return rows


ROWS = gradient_rows() | metric_rows() | array_rows()
ROWS |= {f"prox-{name}": row for name, row in prox_rows().items()}
ROWS |= {f"scale-{name}": row for name, row in scale_rows().items()}


@pytest.mark.parametrize(("call", "words"), ROWS.values(), ids=ROWS)
def test_the_message_says_what_is_wrong_and_what_to_do(call, words):
    with pytest.raises(ValueError, match=r"\w+: ") as caught:
        call()
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    assert message.endswith(".")
    assert "\n" not in message


def test_a_complex_leaf_may_have_a_real_metric():
    b = spd(4)
    x = cdx.project(X, cdx.Stiefel(B=b))
    gram = np.asarray(x).conj().T @ b @ np.asarray(x)
    np.testing.assert_allclose(gram, np.eye(2), atol=1e-12)
