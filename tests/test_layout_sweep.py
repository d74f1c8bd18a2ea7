"""Every reading in every layout: the steps of one device, in the layout of the leaf.

`test_sharding` tries a few layouts in many ways; here many layouts of every layer are
tried in one way, on a 2 × 4 mesh of simulated devices. Leaves that are read alike are
one tree, and so one program.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import cdopt_jax as cdx
from cdopt_jax import layers
from tests.layouts import mesh_of
from tests.oracles import normal

SIZES = {"a": 2, "b": 4}


class Kernel(NamedTuple):
    """The shape of a leaf, and how it is read."""

    shape: tuple[int, ...]
    reading: cdx.Stiefel


unit_rows = cdx.Stiefel(rows=-1, columns=())
unit_columns = cdx.Stiefel(rows=-2, columns=())
KERNELS = {
    "dense": Kernel((32, 8), layers.dense()),
    "dense, wide": Kernel((8, 32), layers.dense()),
    "dense, square": Kernel((8, 8), layers.dense()),
    "dense, 36 rows": Kernel((36, 8), layers.dense()),
    "dense, scanned": Kernel((8, 24, 8), layers.dense()),
    "dense, wide, scanned": Kernel((4, 8, 24), layers.dense()),
    "dense, scanned twice": Kernel((2, 4, 24, 8), layers.dense()),
    "conv": Kernel((3, 3, 8, 8), layers.conv()),
    "conv, even window": Kernel((2, 4, 8, 16), layers.conv()),
    "conv, wide": Kernel((1, 1, 8, 16), layers.conv()),
    "conv, one axis, scanned": Kernel((4, 3, 8, 8), layers.conv(1)),
    "conv, scanned": Kernel((4, 3, 3, 8, 8), layers.conv()),
    "conv, scanned twice": Kernel((2, 4, 3, 3, 4, 4), layers.conv()),
    "conv, groups": Kernel((3, 3, 8, 8), layers.conv(groups=2)),
    "conv, four groups": Kernel((4, 2, 8, 16), layers.conv(groups=4)),
    "conv, depthwise": Kernel((3, 3, 1, 8), layers.conv(groups=8)),
    "conv, groups, scanned": Kernel((4, 3, 3, 8, 8), layers.conv(groups=2)),
    "conv_transpose": Kernel((3, 3, 8, 8), layers.conv_transpose()),
    "conv_transpose, wide": Kernel((1, 1, 16, 8), layers.conv_transpose()),
    "attention": Kernel((16, 8, 4), layers.attention()),
    "attention, wide": Kernel((8, 4, 16), layers.attention()),
    "attention, scanned": Kernel((4, 16, 8, 4), layers.attention()),
    "attention, scanned twice": Kernel((2, 4, 16, 4, 4), layers.attention()),
    "attention, whole": Kernel((32, 4, 4), layers.attention(per_head=False)),
    "attention, whole, wide": Kernel((8, 4, 8), layers.attention(per_head=False)),
    "attention, whole, scanned": Kernel(
        (4, 32, 4, 4), layers.attention(per_head=False)
    ),
    "attention_out": Kernel((8, 16, 4), layers.attention_out()),
    "attention_out, wide": Kernel((8, 4, 16), layers.attention_out()),
    "attention_out, scanned": Kernel((4, 8, 4, 16), layers.attention_out()),
    "attention_out, whole": Kernel((4, 8, 16), layers.attention_out(per_head=False)),
    "attention_out, whole, scanned": Kernel(
        (4, 4, 8, 16), layers.attention_out(per_head=False)
    ),
    "fused": Kernel((32, 24), layers.fused(3)),
    "fused, scanned": Kernel((4, 16, 24), layers.fused(3)),
    "recurrent": Kernel((8, 32), layers.recurrent(4)),
    "recurrent, scanned twice": Kernel((2, 4, 8, 32), layers.recurrent(4)),
    "unit vectors": Kernel((16, 8), unit_rows),
    "unit vectors, columns": Kernel((8, 16), unit_columns),
    "unit vectors, scanned": Kernel((4, 16, 8), unit_rows),
    "one unit vector": Kernel((16,), unit_rows),
    "rows out of order": Kernel((4, 8, 8), cdx.Stiefel(rows=(2, 0), columns=1)),
}
# A stack of stacks; `test_sharding` has leaves that are read in other ways.
QUICK = ("attention, scanned twice",)
# Tried on Auto axes and inside `shard_map` as well.
TOLD = (
    "dense",
    "dense, 36 rows",
    "dense, scanned twice",
    "conv, even window",
    "conv, groups, scanned",
    "conv_transpose",
    "attention, scanned",
    "attention, whole, wide",
    "attention_out, wide",
    "fused",
    "recurrent, scanned twice",
    "unit vectors, scanned",
)


def layouts(shape: tuple[int, ...]) -> list[P]:
    """All ways to split the axes by "a", by "b" and by both."""
    choices = ((), ("a",), ("b",), ("a", "b"))
    found = []
    for split in itertools.product(choices, repeat=len(shape)):
        used = list(itertools.chain(*split))
        parts = [math.prod(SIZES[name] for name in names) for names in split]
        divides = all(n % k == 0 for n, k in zip(shape, parts, strict=True))
        if used and len(set(used)) == len(used) and divides:
            found.append(P(*(names or None for names in split)))
    return found


def chosen(shape: tuple[int, ...], most: int) -> list[P]:
    """As many layouts as that, spread over all of them."""
    found = layouts(shape)
    picked = np.linspace(0, len(found) - 1, min(most, len(found)))
    return [found[round(i)] for i in picked]


def arrays(kernel: Kernel) -> tuple[Any, dict[str, Any]]:
    """A leaf near the manifold, and gradients for a step of each kind."""
    u = normal(kernel.shape, 0, "float32")
    x = cdx.project(u, kernel.reading) + 0.003 * u
    g = normal(kernel.shape, 1, "float32")
    # After a huge step the point has to be measured again.
    return x, {"short": 0.01 * g, "long": 3 * g, "huge": 1e15 * g}


# In a huge step rounding of x + u is magnified by its condition number.
TOLERANCES = {"short": 1e-6, "long": 1e-5, "huge": 1e-3}
# The bound of a long step grows with the condition number of x + u. After a huge step
# the residual is measured.
BOUNDS = {"short": 2e-5, "long": 0.1, "huge": 2e-5}


@functools.cache
def on_one_device(name: str) -> dict[str, Any]:
    """The updates and states of the steps."""
    x, gradients = arrays(KERNELS[name])
    tx = cdx.constrain(optax.sgd(1.0), KERNELS[name].reading)
    update = jax.jit(tx.update)
    steps = {length: update(g, tx.init(x), x) for length, g in gradients.items()}
    assert steps["short"][1].guard.num_long[0] == 0
    assert steps["long"][1].guard.num_long[0] == 1
    return jax.device_get(steps)


def split_alike(leaf: Any, specs: list[P], mesh: Any) -> dict[str, Any]:
    """A tree with a leaf for each layout."""
    shardings = {str(spec): NamedSharding(mesh, spec) for spec in specs}
    return {name: jax.device_put(leaf, s) for name, s in shardings.items()}


def told(kernel: Kernel, specs: list[P]) -> dict[str, cdx.Stiefel]:
    """A mask that says how each leaf is split."""
    reading = kernel.reading
    return {str(s): dataclasses.replace(reading, sharding=s) for s in specs}


def residual(leaf: Any, reading: cdx.Stiefel) -> float:
    """‖xᵀx − I‖₂ of the worst matrix in a leaf, in double precision."""
    x = np.asarray(leaf, np.float64)
    axes = range(x.ndim)
    columns = [a % x.ndim for a in np.ravel(reading.columns).astype(int)]
    rest = [a for a in axes if a not in columns]
    rows = rest if reading.rows is None else np.ravel(reading.rows).astype(int)
    rows = [a % x.ndim for a in rows]
    batch = [a for a in rest if a not in rows]
    n, p = (math.prod(x.shape[a] for a in part) for part in (rows, columns))
    stack = x.transpose(*batch, *rows, *columns).reshape(-1, n, p)
    matrices = [m for x in stack for m in np.split(x, reading.blocks, axis=1)]
    tall = [m.T if m.shape[0] < m.shape[1] else m for m in matrices]
    norms = [np.linalg.norm(m.T @ m - np.eye(m.shape[1]), 2) for m in tall]
    return float(max(norms))


def check(name: str, specs: list[P], mesh: Any, update: Any, tx: Any) -> None:
    """Every leaf takes the steps of one device, and stays in its layout."""
    x, gradients = arrays(KERNELS[name])
    params = split_alike(x, specs, mesh)
    state = tx.init(params)
    for length, g in gradients.items():
        updates, after = update(split_alike(g, specs, mesh), state, params)
        desired, after_one = on_one_device(name)[length]
        for spec, u in updates.items():
            error = np.abs(np.asarray(u) - desired).max()
            assert error <= TOLERANCES[length], (length, spec, error)
            # P() and P(None, None) say the same.
            assert u.sharding.is_equivalent_to(params[spec].sharding, x.ndim)
        # Inside `shard_map` a device chooses the way to a point by its own matrices,
        # and the bound depends on the way.
        ends: Any = optax.apply_updates(params, updates)
        for spec, bound in zip(sorted(ends), after.guard.bound, strict=True):
            true = residual(ends[spec], KERNELS[name].reading)
            assert true <= bound <= BOUNDS[length], (length, spec, true, bound)
        for field in ("step_fraction", "num_shortened", "num_long", "num_outside"):
            found = np.asarray(getattr(after.guard, field))
            # A fraction comes from a sum, whose order depends on the layout.
            np.testing.assert_allclose(
                found, getattr(after_one.guard, field)[0], rtol=1e-6
            )


SWEEP = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in KERNELS
]


@pytest.mark.parametrize("ambient", [False, True], ids=["alone", "set_mesh"])
@pytest.mark.parametrize("name", SWEEP)
def test_on_explicit_axes_every_layout_takes_the_steps_of_one_device(name, ambient):
    """Under ``jax.set_mesh``, arrays that are made inside a step have a layout, too."""
    kernel = KERNELS[name]
    tx = cdx.constrain(optax.sgd(1.0), kernel.reading)
    specs = chosen(kernel.shape, 3 if name in QUICK else 6)
    on_one_device(name)
    mesh = mesh_of("explicit")
    with jax.set_mesh(mesh) if ambient else contextlib.nullcontext():
        check(name, specs, mesh, jax.jit(tx.update), tx)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
def test_on_auto_axes_every_layout_that_is_told_takes_the_steps_of_one_device(name):
    kernel = KERNELS[name]
    specs = chosen(kernel.shape, 5)
    tx = cdx.constrain(optax.sgd(1.0), told(kernel, specs))
    check(name, specs, mesh_of("auto"), jax.jit(tx.update), tx)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
def test_inside_shard_map_every_layout_takes_the_steps_of_one_device(name):
    kernel = KERNELS[name]
    specs = chosen(kernel.shape, 5)
    tx = cdx.constrain(optax.sgd(1.0), told(kernel, specs))
    mesh = mesh_of("auto")
    tree = {str(spec): spec for spec in specs}
    update = jax.shard_map(
        tx.update, mesh=mesh, in_specs=(tree, P(), tree), out_specs=(tree, P())
    )
    check(name, specs, mesh, jax.jit(update), tx)
