"""Where a run may start, and what may happen to the parameters between two steps."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import cdopt_jax as cdx
from tests.oracles import normal, polar, spd, spectral

N, COLUMNS = 24, 4
RANDOM = normal((N, COLUMNS), 0)
UNIT_ROWS = cdx.Stiefel(rows=-1, columns=())
METRIC = jnp.asarray(spd(N), jnp.float32)

STARTS = {
    "zeros": 0 * RANDOM,
    "ones": 0 * RANDOM + 1,
    "equal columns": 0 * RANDOM + RANDOM[:, :1],
    "a zero column": RANDOM.at[:, 1].set(0),
    "a single entry": (0 * RANDOM).at[2, 1].set(1.0),
    "rank two": RANDOM.at[:, 2:].set(RANDOM[:, :2]),
    "denormals": 1e-39 * RANDOM,
    "1e-30": 1e-30 * RANDOM,
    "30": 30 * RANDOM,
    "1e8": 1e8 * RANDOM,
    "1e30": 1e30 * RANDOM,
    "one huge entry": RANDOM.at[0, 0].set(1e30),
    "singular values from 1e-3 to 10": polar(RANDOM) * np.geomspace(1e-3, 10, COLUMNS),
}
# The rounding of a point of the manifold, of which ‖E‖₂ has twice as much.
NEAR = {"float32": 1e-5, "bfloat16": 2e-2}


@functools.cache
def updates_of(name: str) -> tuple[Any, Any, Any]:
    """A transformation, its update as it is and compiled."""
    tx: Any = {
        "plain": cdx.constrain(optax.sgd(0.1)),
        "metric": cdx.constrain(optax.sgd(0.1), cdx.Stiefel(B=METRIC)),
        "rows": cdx.constrain(optax.sgd(0.1), UNIT_ROWS),
    }[name]
    return tx.init, tx.update, jax.jit(tx.update)


def three_updates(x, name, *, compiled):
    """The last point, and all bounds beside what they bound."""
    init, update, jitted = updates_of(name)
    state, told = init(x), []
    b = METRIC if name == "metric" else None
    for seed in range(3):
        grads = (0.01 * normal(x.shape, seed)).astype(x.dtype)
        u, state = (jitted if compiled else update)(grads, state, x)
        x = jnp.asarray(optax.apply_updates(x, u))
        matrices = x[..., None] if name == "rows" else x
        told.append((spectral(matrices, b), float(optax.tree.get(state, "bound")[0])))
    return x, told


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("start", STARTS)
def test_any_start_is_on_the_manifold_after_three_updates(start, dtype, compiled):
    x, told = three_updates(STARTS[start].astype(dtype), "plain", compiled=compiled)
    assert jnp.isfinite(x).all()
    assert told[-1][0] <= NEAR[dtype]
    # Until it is there, the report says so.
    assert all(left <= bound for left, bound in told)
    assert told[-1][1] <= 0.5


@pytest.mark.parametrize("start", STARTS)
def test_any_start_is_so_in_a_metric(start):
    x, told = three_updates(STARTS[start].astype("float32"), "metric", compiled=True)
    assert jnp.isfinite(x).all()
    assert told[-1][0] <= NEAR["float32"]
    assert all(left <= bound for left, bound in told)
    assert told[-1][1] <= 0.5


@pytest.mark.parametrize("compiled", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("row", [0.0, 1e-39, 1e30], ids=["zero", "denormal", "huge"])
def test_so_is_a_row_of_padding_among_unit_vectors(row, compiled):
    x = jnp.eye(6, 4, dtype=jnp.float32).at[0].set(row)
    x = x.at[4:, 0].set(1.0)
    _, told = three_updates(x, "rows", compiled=compiled)
    assert told[-1][0] <= NEAR["float32"]
    assert all(left <= bound for left, bound in told)


LAYOUTS = {
    "rows": ((64, 16), P("b", None)),
    "columns": ((64, 16), P(None, "b")),
    "columns, with rows that do not divide": ((30, 16), P(None, "b")),
    "rows and columns": ((64, 16), P("a", "b")),
}
SLOW = {("rows", "explicit"), ("columns", "shard_map")}
SLOW |= {("rows and columns", "explicit"), ("rows and columns", "shard_map")}


@pytest.mark.parametrize(
    ("layout", "inside"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in SLOW else ())
        for case in itertools.product(LAYOUTS, ("explicit", "shard_map"))
    ],
)
def test_zeros_on_many_devices_become_orthonormal_columns(layout, inside):
    shape, spec = LAYOUTS[layout]
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(jnp.zeros(shape, jnp.float32), NamedSharding(mesh, spec))
    told = spec if inside == "shard_map" else None
    tx = cdx.keep_feasible(cdx.Stiefel(sharding=told))
    state = tx.init(x)
    update: Any = tx.update
    if inside == "shard_map":
        whole = jax.tree.map(lambda _: P(), state)
        update = jax.shard_map(
            update, mesh=mesh, in_specs=(spec, whole, spec), out_specs=(spec, whole)
        )
        state = jax.device_put(state, NamedSharding(mesh, P()))
    updates, state = jax.jit(update)(x, state, x)
    y = np.asarray(updates)
    assert spectral(y) <= NEAR["float32"]
    assert spectral(y) <= state.bound[0]


# The leading eigenvectors of M are sought.
Q = polar(normal((N, N), 1))
M = (Q * np.geomspace(1, 1e-2, N)) @ Q.T


def loss(x):
    return -jnp.sum(x * (M @ x))


def adam(radius):
    rate = optax.cosine_decay_schedule(0.05, 400)
    return cdx.constrain(optax.adam(rate), radius=radius)


@jax.jit
def adam_steps(x, state, count, radius):
    def step(_, carry):
        x, state = carry
        updates, state = adam(radius).update(jax.grad(loss)(x), state, x)
        return optax.apply_updates(x, updates), state

    return jax.lax.fori_loop(0, count, step, (x, state))


@pytest.mark.parametrize("radius", [0.5, 0.01])
@pytest.mark.parametrize("factor", [100.0, 1e-3, 0.0])
def test_parameters_replaced_between_steps_do_not_keep_adam_from_converging(
    factor, radius
):
    best = -np.linalg.eigvalsh(M)[-COLUMNS:].sum()
    x = jnp.asarray(polar(RANDOM))
    x, state = adam_steps(x, adam(radius).init(x), 3, radius)
    x, state = adam_steps(factor * normal(x.shape, 9), state, 3, radius)
    assert spectral(x) <= 1e-5
    x, state = adam_steps(x, state, 394, radius)
    assert loss(x) <= best * (1 - 1e-3)
