"""Leaves on a mesh: the same results, in the same layout.

Every layout is tried on eight simulated devices, on Explicit axes, on Auto axes and
inside `shard_map`. What moves meanwhile is in `test_traffic`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import cdopt_jax as cdx
from cdopt_jax import stiefel
from tests.oracles import normal, polar, transpose

if not hasattr(jax, "shard_map"):
    pytest.skip("Explicit axes came later", allow_module_level=True)

KINDS = {"explicit": AxisType.Explicit, "auto": AxisType.Auto}
TOL = 1e-6


class Case(NamedTuple):
    """A leaf, how it is read, and how it lies on a 2 × 4 mesh."""

    shape: tuple[int, ...]
    spec: P
    rows: Any = None


CASES = {
    "rows": Case((64, 16), P("b", None)),
    "rows-by-two-axes": Case((64, 16), P(("a", "b"), None)),
    "columns": Case((64, 16), P(None, "b")),
    "columns-of-rows-that-do-not-divide": Case((62, 16), P(None, "b")),
    "rows-and-columns": Case((64, 16), P("a", "b")),
    "replicated": Case((64, 16), P()),
    "wide-by-rows": Case((16, 64), P("b", None)),
    "wide-by-columns": Case((16, 64), P(None, "b")),
    "batch": Case((8, 32, 16), P("b", None, None), -2),
    "batch-and-rows": Case((8, 32, 16), P("a", "b", None), -2),
    "batch-and-columns": Case((8, 32, 16), P("a", None, "b"), -2),
    "conv-inputs": Case((3, 3, 16, 8), P(None, None, "b", None)),
    "conv-outputs": Case((3, 3, 16, 8), P(None, None, None, "b")),
    "conv-both": Case((3, 3, 16, 8), P(None, None, "a", "b")),
}
# The others are near relatives of these, and take minutes.
QUICK = ("columns-of-rows-that-do-not-divide", "batch-and-rows")
each_layout = pytest.mark.parametrize(
    "layout",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
each_kind = pytest.mark.parametrize("kind", KINDS)

TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "dissolve_gradients": lambda mask: cdx.dissolve_gradients("auto", mask),
    "add_penalty": lambda mask: cdx.add_penalty(2.0, mask),
    "restore_feasibility": cdx.restore_feasibility,
    "keep_feasible": cdx.keep_feasible,
    "proximal_step": lambda mask: cdx.proximal_step(
        0.1, cdx.prox.l1(0.01), mask, tangential=True
    ),
    "constrain": lambda mask: cdx.constrain(optax.adam(0.1), mask),
}


def mesh_of(kind: str) -> Any:
    return jax.make_mesh((2, 4), ("a", "b"), axis_types=(KINDS[kind],) * 2)


def arrays(case: Case) -> tuple[Any, Any]:
    """A leaf near the manifold, and a gradient."""
    x = normal(case.shape, 0, "float32")
    point = cdx.project(x, cdx.Stiefel(rows=case.rows))
    return point + 0.003 * x, 0.03 * normal(case.shape, 1, "float32")


def reading(case: Case, *, told: bool) -> cdx.Stiefel:
    return cdx.Stiefel(rows=case.rows, sharding=case.spec if told else None)


def placed(tree: Any, case: Case, mesh: Any) -> Any:
    """What has the leaf's shape in the leaf's layout, and the rest on every device."""

    def put(leaf):
        spec = case.spec if jnp.shape(leaf) == case.shape else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


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


@each_kind
@each_layout
def test_a_step_is_that_of_one_device_and_keeps_its_layout(layout, kind):
    case = CASES[layout]
    init, update = all_steps(reading(case, told=kind == "auto"))
    x, g = placed(arrays(case), case, mesh_of(kind))
    found = jax.jit(update)(g, init(x), x)
    assert_same(found, on_one_device(layout))
    for updates, _ in found.values():
        # P() and P(None, None) say the same.
        assert updates.sharding.is_equivalent_to(x.sharding, x.ndim)
    moments = found["constrain"][1].optimizer[0].mu
    assert moments.sharding.is_equivalent_to(x.sharding, x.ndim)


@each_layout
def test_inside_shard_map_a_step_is_that_of_one_device(layout):
    case = CASES[layout]
    init, update = all_steps(reading(case, told=True))
    x, g = arrays(case)
    args = placed((g, init(x), x), case, mesh_of("explicit"))
    specs = jax.tree.map(lambda a: jax.typeof(a).sharding.spec, args)
    out = {name: (specs[0], state) for name, state in specs[1].items()}
    mapped = jax.shard_map(
        update, mesh=mesh_of("explicit"), in_specs=specs, out_specs=out
    )
    assert_same(jax.jit(mapped)(*args), on_one_device(layout))


@each_kind
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
MATRICES = ("columns", "rows-and-columns", "batch-and-rows")


@each_kind
@pytest.mark.parametrize("layout", MATRICES)
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
    mapped = jax.shard_map(
        lambda x, d: {n: f(x, d, axis_name="b") for n, f in FUNCTIONS.items()},
        mesh=mesh_of("auto"),
        in_specs=(split, split),
        out_specs=out,
    )
    assert_same(jax.jit(mapped)(x, d), desired)


@each_kind
@pytest.mark.parametrize("layout", ["conv-outputs", "batch"])
def test_tree_functions_are_those_of_one_device(layout, kind):
    case = CASES[layout]
    x, g = arrays(case)
    mask = reading(case, told=False)

    def everything(x, g):
        return (
            cdx.dissolve(x, mask),
            cdx.project(x, mask),
            cdx.feasibility(x, mask),
            cdx.stationarity(g, x, mask),
            jax.grad(cdx.objective(lambda x: jnp.sum(x * g), "auto", mask))(x),
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
    mesh = jax.make_mesh((8,), ("model",))
    specs = {"up": P(None, "model"), "down": P("model", None)}
    laid = {
        k: jax.device_put(v, NamedSharding(mesh, specs[k])) for k, v in params.items()
    }
    found, state = train(laid)
    assert_same(found, desired)
    assert {k: v.sharding.spec for k, v in found.items()} == specs
    chex.assert_trees_all_equal(
        jax.tree.map(lambda v: v.sharding.spec, state.optimizer[0].mu), specs
    )
