"""Layouts of a leaf on a mesh of eight simulated devices, for tests of every kind."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import cdopt_jax as cdx
from tests.oracles import normal

KINDS = {"explicit": AxisType.Explicit, "auto": AxisType.Auto}


class Case(NamedTuple):
    """A leaf, how it is read, and how it lies on a 2 × 4 mesh."""

    shape: tuple[int, ...]
    spec: P
    rows: Any = None
    dtype: str = "float32"
    scale: float = 1.0


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
    "complex": Case((62, 16), P("a", "b"), dtype="complex64"),
    "complex-batch": Case((8, 32, 16), P("a", None, "b"), -2, dtype="complex64"),
    "scaled": Case((62, 16), P("a", "b"), scale=0.7),
}
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
    x = normal(case.shape, 0, case.dtype)
    point = cdx.project(x, cdx.Stiefel(rows=case.rows, scale=case.scale))
    return point + 0.003 * x, 0.03 * normal(case.shape, 1, case.dtype)


def reading(case: Case, *, told: bool) -> cdx.Stiefel:
    sharding = case.spec if told else None
    return cdx.Stiefel(rows=case.rows, sharding=sharding, scale=case.scale)


def placed(tree: Any, case: Case, mesh: Any) -> Any:
    """What has the leaf's shape in the leaf's layout, and the rest on every device."""

    def put(leaf):
        spec = case.spec if jnp.shape(leaf) == case.shape else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)
