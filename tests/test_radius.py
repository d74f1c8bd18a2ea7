"""The invariant: inside the radius before a step, inside after it, for every update."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import cdopt_jax as cdx
from tests.oracles import metric_of, near, normal, polar, spectral, symmetric, transpose

RADII = (1e-8, 1e-6, 1e-3, 0.5, 0.99, 1 - 1e-6)


def low_rank(x, size):
    *batch, n, p = x.shape
    a, b = normal((*batch, n, 1), 3, x.dtype), normal((*batch, 1, p), 4, x.dtype)
    return size * a @ b


# Updates from a point x and a random matrix z of its shape.
UPDATES = {
    "minus x": lambda x, _: -x,
    "minus 2x": lambda x, _: -2 * x,
    "nearly minus x": lambda x, z: 1e-7 * z - x,
    "normal": lambda x, z: x @ symmetric(transpose(x) @ z),
    "normal, inward": lambda x, z: -1e3 * x @ (transpose(x) @ z @ transpose(z) @ x),
    "low rank": lambda x, _: low_rank(x, 1.0),
    "low rank, huge": lambda x, _: low_rank(x, 1e6),
    "low rank, from minus x": lambda x, _: low_rank(x, 1.0) - x,
    "a zero column": lambda x, z: (0.1 * z).at[..., 0].set(-x[..., 0]),
    "nothing": lambda _, z: 0 * z,
    "tiny": lambda _, z: 1e-6 * z,
    "small": lambda _, z: 1e-2 * z,
    "medium": lambda _, z: z,
    "large": lambda _, z: 1e8 * z,
    "square overflows": lambda _, z: 1e30 * z,
    "one entry": lambda _, z: (0 * z).at[..., 0, 0].set(1e12),
    "another phase": lambda x, _: -(1 + 1j) * x if jnp.iscomplexobj(x) else -x,
}

SHAPES = ((1, 1), (7, 1), (6, 6), (20, 4), (5, 8, 3))
DTYPES = ("float32", "float64", "bfloat16", "complex64", "complex128")
METRICS = ("none", "array", "callable")
# By default every shape, every dtype and every metric occurs; the rest are slow.
QUICK = {(0, 1, 1), (1, 4, 0), (2, 3, 0), (3, 0, 1), (3, 2, 2), (4, 1, 2), (4, 0, 0)}
each_setting = pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        pytest.param(
            SHAPES[s],
            DTYPES[d],
            METRICS[m],
            id=f"{SHAPES[s]}-{DTYPES[d]}-{METRICS[m]}",
            marks=() if (s, d, m) in QUICK else pytest.mark.slow,
        )
        for s in range(5)
        for d in range(5)
        for m in range(3)
    ],
)


def starts(shape, radius, b, dtype):
    """A point of the manifold, and one near the edge of the radius."""
    wide = np.result_type(dtype, np.float64)
    x = polar(normal(shape, 0, wide), b)
    yield x
    p = shape[-1]
    values, v = np.linalg.eigh(symmetric(np.asarray(normal((p, p), 1, wide))))
    edge = np.sqrt(1 + 0.9 * radius * values / np.abs(values).max())
    yield x @ (v * edge) @ v.conj().T


@each_setting
def test_no_finite_update_leaves_the_radius(shape, dtype, kind):
    wide = "float32" if dtype == "bfloat16" else dtype
    B, b = metric_of(kind, shape[-2], wide)
    b = None if kind == "none" else b

    @jax.jit
    def step(x, u, radius):
        tx = cdx.keep_feasible(cdx.Stiefel(rows=-2, columns=-1, B=B), radius=radius)
        updates, state = tx.update(u, tx.init(x), x)
        return optax.apply_updates(x, updates), state

    # What rounding may add: of the arithmetic, and of the point where it is stored.
    eps, p = float(jnp.finfo(wide).eps), shape[-1]
    slack = 64 * eps * p**0.5 + (0.02 * p**0.5 if dtype == "bfloat16" else 0)
    failed = []
    for radius in RADII if dtype in ("float64", "complex128") else RADII[1:]:
        for k, start in enumerate(starts(shape, radius, b, wide)):
            x = jnp.asarray(start, dtype)
            for seed, (name, update) in enumerate(UPDATES.items()):
                u = update(x.astype(wide), normal(shape, seed, wide)).astype(dtype)
                y, state = step(x, u, radius)
                after, bound = spectral(y, b), float(state.bound[0])
                kept = after <= max(radius, spectral(x, b)) + slack
                # The sums in float64 here are rounded too.
                told = after <= bound * (1 + 1e-6) + 1e-15
                if not (kept and told and 0 <= state.step_fraction[0] <= 1):
                    failed.append((name, radius, k, after, bound))
    assert not failed, sorted({name for name, *_ in failed})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_low_rank_updates_of_every_size_stay_in_a_small_radius(dtype):
    """Somewhere between long steps and singular points lies every condition number."""
    tx = cdx.keep_feasible(radius=0.02)
    update = jax.jit(tx.update)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        x = jnp.asarray(polar(rng.standard_normal((20, 4))), dtype)
        rank = rng.integers(1, 4)
        a, b = rng.standard_normal((20, rank)), rng.standard_normal((rank, 4))
        u = jnp.asarray(10 ** rng.uniform(1, 8) * a @ b, dtype)
        updates, state = update(u, tx.init(x), x)
        y: Any = optax.apply_updates(x, updates)
        assert spectral(y) <= state.bound[0] <= 0.02, seed


@pytest.mark.slow
def test_the_radius_may_be_above_99_percent_with_a_thousand_columns():
    n, p, radius = 1040, 1030, 0.99
    x = near(n, p, 0, 0.985, "shrunk").astype("float32")
    tx = cdx.keep_feasible(radius=radius)
    step = jax.jit(tx.update)
    state = tx.init(x)
    for size in (1e-3, 1.0):
        updates, state = step(size * normal((n, p), 1, "float32"), state, x)
        x = jnp.asarray(optax.apply_updates(x, updates))
        assert spectral(x) <= state.bound[0] <= radius


def test_rows_on_eight_devices_stay_in_the_radius_with_updates_of_a_thousand():
    mesh = jax.make_mesh((8,), ("m",), (AxisType.Explicit,))
    rows = NamedSharding(mesh, P("m", None))
    tx = cdx.keep_feasible()
    update = jax.jit(tx.update)
    rng = np.random.default_rng(0)
    unit = cdx.stiefel.random(jax.random.key(0), (64, 1), jnp.float32)
    for _ in range(150):
        # The whole update is along x, and nearly all of it has to cancel.
        c = rng.uniform(1e3, 6e3) * rng.choice([-1, 1])
        x = unit * np.float32(np.sqrt(1 + rng.uniform(-0.45, 0.45) / c))
        x = jax.device_put(x, rows)
        u, state = update(np.float32(c) * x, tx.init(x), x)
        y: Any = optax.apply_updates(x, u)
        assert spectral(y) <= state.bound[0] <= 1e-4
