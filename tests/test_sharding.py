"""Leaves on a mesh: the same results, in the same layout.

Every layout is tried on eight simulated devices, on Explicit axes, on Auto axes and
inside `shard_map`. What moves meanwhile is in `test_traffic`.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import cdopt_jax as cdx
from cdopt_jax import stiefel
from tests.layouts import (
    CASES,
    KINDS,
    TRANSFORMS,
    arrays,
    mesh_of,
    placed,
    reading,
)
from tests.marks import mostly
from tests.oracles import normal, polar, transpose

TOL = 1e-6
# By default steps are compared in one layout; the others take minutes.
QUICK = {("complex", "explicit")}


def slow_but(quick: Any, *cases: Any) -> list[Any]:
    """Cases of a test, all but the quick ones marked as slow."""
    return [
        pytest.param(*case, marks=() if case in quick else pytest.mark.slow)
        for case in cases
    ]


def assert_same(actual: Any, desired: Any) -> None:
    def close(a, d):
        np.testing.assert_allclose(np.asarray(a), np.asarray(d), rtol=0, atol=TOL)

    jax.tree.map(close, actual, desired)


def all_steps(mask: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The states of every transformation, and their updates and new states."""
    made = {name: make(mask) for name, make in TRANSFORMS.items()}

    def init(x):
        return {name: tx.init(x) for name, tx in made.items()}

    def update(g, states, x):
        return {name: tx.update(g, states[name], x) for name, tx in made.items()}

    return init, update


@functools.cache
def on_one_device(layout: str) -> Any:
    case = CASES[layout]
    init, update = all_steps(reading(case, told=False))
    x, g = arrays(case)
    return jax.device_get(jax.jit(update)(g, init(x), x))


@pytest.mark.parametrize(
    ("layout", "kind"), slow_but(QUICK, *itertools.product(CASES, KINDS))
)
def test_a_step_is_that_of_one_device_and_keeps_its_layout(layout, kind):
    case = CASES[layout]
    init, update = all_steps(reading(case, told=kind == "auto"))
    x, g = placed(arrays(case), case, mesh_of(kind))
    found = jax.jit(update)(g, init(x), x)
    assert_same(found, on_one_device(layout))
    for updates, _ in found.values():
        # P() and P(None, None) say the same.
        assert updates.sharding.is_equivalent_to(x.sharding, x.ndim)
    moments = optax.tree.get(found["constrain"][1], "mu")
    assert moments.sharding.is_equivalent_to(x.sharding, x.ndim)


def mapped(layout: str) -> tuple[Any, Any]:
    """All steps inside of `shard_map`, and their arguments."""
    case = CASES[layout]
    init, update = all_steps(reading(case, told=True))
    x, g = arrays(case)
    args = placed((g, init(x), x), case, mesh_of("explicit"))
    specs = jax.tree.map(lambda a: jax.typeof(a).sharding.spec, args)
    out = {name: (specs[0], state) for name, state in specs[1].items()}
    steps = jax.shard_map(
        update, mesh=mesh_of("explicit"), in_specs=specs, out_specs=out
    )
    return steps, args


# Those that the next test runs, and those whose like is here.
ALIKE = {"rows-by-two-axes", "columns-of-rows-that-do-not-divide", "complex", "rows"}
ALIKE |= {"wide-by-rows", "conv-inputs", "complex-batch", "batch", "replicated"}


@pytest.mark.parametrize("layout", mostly(CASES, slow=ALIKE))
def test_every_layout_can_be_stepped_inside_shard_map(layout):
    steps, args = mapped(layout)
    found = jax.eval_shape(steps, *args)
    assert {updates.shape for updates, _ in found.values()} == {CASES[layout].shape}


@pytest.mark.parametrize(
    "layout",
    slow_but(
        {("columns-of-rows-that-do-not-divide",), ("complex",)},
        *((n,) for n in CASES),
    ),
)
def test_inside_shard_map_a_step_is_that_of_one_device(layout):
    steps, args = mapped(layout)
    assert_same(jax.jit(steps)(*args), on_one_device(layout))


@pytest.mark.parametrize("kind", slow_but({("explicit",)}, ("explicit",), ("auto",)))
def test_a_long_step_is_that_of_one_device(kind):
    case = CASES["rows-and-columns"]
    x, u = arrays(case)
    tx = cdx.keep_feasible(reading(case, told=False))
    desired, state = jax.jit(tx.update)(30 * u, tx.init(x), x)
    assert state.num_long[0]
    tx = cdx.keep_feasible(reading(case, told=kind == "auto"))
    x, u = placed((x, u), case, mesh_of(kind))
    found, _ = jax.jit(tx.update)(30 * u, tx.init(x), x)
    np.testing.assert_allclose(found, desired, atol=5e-6)


ONE = ("residual", "feasibility", "dissolve", "penalty", "penalty_grad", "project")


def of_point(name: str) -> Callable[..., Any]:
    return lambda x, _, **keywords: getattr(stiefel, name)(x, **keywords)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: of_point(name) for name in ONE},
    "jvp": stiefel.jvp,
    "vjp": stiefel.vjp,
    "tangent": stiefel.tangent,
    "gradient": lambda x, d, **k: stiefel.gradient(x, d, 2.0, **k),
}
MATRICES = ("columns", "rows-and-columns", "batch-and-rows", "complex-batch")


@pytest.mark.parametrize(
    ("layout", "kind"),
    slow_but(
        {("columns", "auto"), ("complex-batch", "explicit")},
        *itertools.product(MATRICES, KINDS),
    ),
)
def test_array_functions_are_those_of_one_device(layout, kind):
    case = CASES[layout]
    x, d = arrays(case)
    everything = jax.jit(lambda x, d: {n: f(x, d) for n, f in FUNCTIONS.items()})
    desired = everything(x, d)
    x, d = placed((x, d), case, mesh_of(kind))
    for found in (everything(x, d), {n: f(x, d) for n, f in FUNCTIONS.items()}):
        assert_same(found, desired)
        for name in ("dissolve", "project", "gradient", "jvp"):
            # On Auto axes it is the compiler's choice.
            assert kind == "auto" or found[name].sharding == x.sharding


def test_array_functions_sum_over_the_axes_that_split_the_rows():
    x, d = arrays(CASES["rows"])
    desired = {n: f(x, d) for n, f in FUNCTIONS.items()}
    split, whole = P("b", None), P()
    out = {n: split if v.shape == x.shape else whole for n, v in desired.items()}
    summed = jax.shard_map(
        lambda x, d: {n: f(x, d, axis_name="b") for n, f in FUNCTIONS.items()},
        mesh=mesh_of("auto"),
        in_specs=(split, split),
        out_specs=out,
    )
    assert_same(jax.jit(summed)(x, d), desired)


@pytest.mark.parametrize(
    ("layout", "kind"),
    slow_but(
        {("conv-outputs", "auto"), ("batch", "explicit")},
        *itertools.product(("conv-outputs", "batch"), KINDS),
    ),
)
def test_tree_functions_are_those_of_one_device(layout, kind):
    case = CASES[layout]
    x, g = arrays(case)
    mask = reading(case, told=False)

    def everything(x, g):
        return (
            cdx.dissolve(x, mask),
            cdx.project(x, mask),
            cdx.feasibility(x, mask),
            cdx.stationarity(x, g, mask),
            jax.grad(cdx.objective(lambda x: jnp.sum(x * g), mask, beta="auto"))(x),
        )

    desired = jax.jit(everything)(x, g)
    x, g = placed((x, g), case, mesh_of(kind))
    assert_same(jax.jit(everything)(x, g), desired)


def test_a_leaf_on_auto_axes_that_no_trace_could_see_is_refused():
    case = CASES["columns"]
    x, _ = placed(arrays(case), case, mesh_of("auto"))
    for name, make in TRANSFORMS.items():
        with pytest.raises(ValueError, match=rf"{name}: .*'w'.*sharding=P.*Explicit"):
            make(None).init({"w": x})


def test_a_metric_meets_split_rows():
    n = 64
    a = np.random.default_rng(0).standard_normal((n, n))
    b = jnp.asarray(a @ a.T / n + np.eye(n), jnp.float32)
    x = stiefel.random(jax.random.key(0), (n, 16), jnp.float32, B=b)
    u = normal(x.shape, 1, "float32")
    desired = stiefel.gradient(x, u, 2.0, B=b)
    mesh = mesh_of("explicit")
    x, u = (jax.device_put(v, NamedSharding(mesh, P("b", None))) for v in (x, u))
    for spec in (P(), P("b", None), P(None, "b")):
        laid = jax.device_put(b, NamedSharding(mesh, spec))
        found = jax.jit(lambda x, u, b: stiefel.gradient(x, u, 2.0, B=b))(x, u, laid)
        np.testing.assert_allclose(found, desired, atol=2e-5)
    other = jax.device_put(b, NamedSharding(mesh, P("a", None)))
    with pytest.raises(ValueError, match=r"B is laid out as .*split by"):
        stiefel.gradient(x, u, 2.0, B=other)


def test_what_cannot_be_laid_out_says_so():
    x = jnp.eye(8, 4)
    mesh = mesh_of("auto")
    split = jax.device_put(x, NamedSharding(mesh, P("a", None)))
    for spec, words in {
        P("nowhere", None): "'nowhere' is not one",
        P(None, None, "a"): "an entry for each axis",
    }.items():
        with pytest.raises(ValueError, match=words):
            cdx.keep_feasible(cdx.Stiefel(sharding=spec)).init(split)
    spec_by_name: Any = "a"
    with pytest.raises(ValueError, match=r"sharding must be a jax\.sharding"):
        cdx.Stiefel(sharding=spec_by_name)
    wide = jax.device_put(
        jnp.ones((4, 32)), NamedSharding(mesh_of("explicit"), P(None, "b"))
    )
    with pytest.raises(ValueError, match="cut into blocks"):
        cdx.keep_feasible(cdx.Stiefel(blocks=4)).init(wide)


def test_models_sharded_by_rows_and_by_columns_train_as_on_one_device():
    """Tensor-parallel: the first kernel by columns, the second by rows."""
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal((16, 32)), jnp.float32) for _ in "ab")
    params = {
        name: jnp.asarray(polar(normal(shape, i)), jnp.float32)
        for i, (name, shape) in enumerate({"up": (64, 32), "down": (64, 32)}.items())
    }
    params["up"] = transpose(params["up"])
    tx = cdx.constrain(optax.adam(1e-2))

    @jax.jit
    def train(params):
        def loss(params):
            hidden = jnp.tanh(a @ params["up"])
            if jax.typeof(params["down"]).sharding.mesh.empty:
                out = hidden @ params["down"]
            else:
                spec = jax.typeof(params["down"]).sharding
                whole = NamedSharding(spec.mesh, P(None, None))
                out = jnp.einsum(
                    "ij,jk->ik", hidden, params["down"], out_sharding=whole
                )
            return jnp.mean((out - b) ** 2)

        def step(carry, _):
            params, state = carry
            updates, state = tx.update(jax.grad(loss)(params), state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, tx.init(params)), length=5)[0]

    desired, _ = train(params)
    mesh = jax.make_mesh((8,), ("model",), (AxisType.Explicit,))
    specs = {"up": P(None, "model"), "down": P("model", None)}
    laid = {
        k: jax.device_put(v, NamedSharding(mesh, specs[k])) for k, v in params.items()
    }
    found, state = train(laid)
    assert_same(found, desired)
    assert {k: v.sharding.spec for k, v in found.items()} == specs
    chex.assert_trees_all_equal(
        jax.tree.map(lambda v: v.sharding.spec, optax.tree.get(state, "mu")), specs
    )
