"""Whatever cannot work raises a ValueError that a user can act on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.bad_calls import (
    FUNCTIONS,
    INF,
    MASK,
    NAN,
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
    prox,
    stiefel,
    updated,
)

LEAVES = {
    "scalar": (jnp.float32(1), ["shape ()", "dtype float32", "Leave it out"]),
    "vector": (V, ["shape (3,)", "dtype float64", "Stiefel(rows=0, columns=())"]),
    "integer": (W.astype(int), ["shape (4, 2)", "dtype int64", "cast it"]),
    "boolean": (W > 0, ["shape (4, 2)", "dtype bool", "Leave it out"]),
    "empty": (jnp.zeros((3, 0)), ["shape (3, 0)", "dtype float64", "Leave it out"]),
    "python-float": (1.5, ["type float", "Leave it out"]),
    "string": ("weights", ["type str", "Leave it out"]),
}


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


def number_rows() -> dict[str, Row]:
    wrong = {"0": 0, "negative": -1.5, "nan": NAN, "inf": INF}
    no_number = {"None": None, "str": "big", "bool": True}
    factories: dict[str, Any] = {
        "dissolve_gradients-beta": cdx.dissolve_gradients,
        "add_penalty-beta": cdx.add_penalty,
        "objective-beta": lambda beta: cdx.objective(jnp.sum, beta=beta),
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
    for name, make in TRANSFORMATIONS.items():
        rows[f"{name}-B-callable-negative"] = (
            lambda make=make: make(minus).init(PARAMS),
            [f"{name}: B must be positive definite", "xᵀBx is -1.0e+00", "'net/w'"],
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
            [f"{name}: the state must be the", "its type is NoneType"],
        )
    for name in TRANSFORMATIONS:
        grads = {"net": {"w": W.tolist(), "b": V}}
        rows[f"{name}-updates-list"] = (
            lambda name=name, grads=grads: updated(name, PARAMS, grads, MASK),
            [f"{name}: updates must be arrays; 'net/w' is of type list"],
        )

    rows["master_copies-string"] = (
        lambda: cdx.master_copies(optax.sgd(0.1)).init({"net": {"w": W, "b": "name"}}),
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
                lambda f=f, beta=beta: cdx.objective(f, MASK, beta=beta)(PARAMS),
                ["objective: f must return one real number", *words],
            )
    rows["objective-no-pair"] = (
        lambda: cdx.objective(lambda _: 0.0, MASK, beta=1.0, has_aux=True)(PARAMS),
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
    **number_rows(),
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
    "add_penalty-beta-auto": (
        lambda: cdx.add_penalty("auto"),
        ["add_penalty: beta", "dissolve_gradients"],
    ),
    "dissolve_gradients-beta-word": (
        lambda: cdx.dissolve_gradients("automatic"),
        ["dissolve_gradients: beta", '"auto"', "'automatic'"],
    ),
    "objective-beta-schedule": (
        lambda: cdx.objective(jnp.sum, beta=lambda _: 1.0),
        ["objective: beta", "number", "schedule"],
    ),
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
    "objective-no-function": (
        lambda: cdx.objective(None, beta=1.0),
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


@each_row(ROWS)
def test_the_message_says_what_is_wrong_and_what_to_do(call, words):
    check_message(call, words)


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
