"""What a compiled step says of a leaf that it gathers in full.

On Auto axes ``init`` refuses a leaf that is split along its columns. Where ``init`` is
traced as well, only the compiler knows the layout.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import cdopt_jax as cdx
from tests.layouts import mesh_of
from tests.marks import mostly
from tests.oracles import normal

TX = cdx.constrain(optax.sgd(1e-2), cdx.layers.dense())


def started(shape: tuple[int, ...], spec: P, tx: Any = TX) -> tuple[Any, Any]:
    """A tree of one leaf in a layout, and a state, both made by one program."""
    sharding = NamedSharding(mesh_of("auto"), spec)

    def make():
        params = {"w": jnp.asarray(normal(shape, 0, "float32"))}
        return params, tx.init(params)

    return jax.jit(make, out_shardings=({"w": sharding}, None))()


def said(fn: Any, *args: Any) -> list[str]:
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jax.block_until_ready(fn(*args))
    return [str(w.message) for w in found]


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((64, 16), P(None, "b")),
        ((16, 64), P("b", None)),
        ((4, 32, 8), P("a", None, "b")),
    ],
    ids=["columns", "wide, by rows", "columns of a stack"],
)
def test_a_leaf_that_is_gathered_is_named_once_with_what_to_write(shape, spec):
    params, state = started(shape, spec)
    update = jax.jit(TX.update)
    (message,) = said(update, params, state, params)
    assert "'w'" in message
    # P("b") and P("b", None) say the same.
    assert f"Stiefel(…, sharding={str(spec).split(', None)')[0]}" in message
    assert "Explicit" in message
    assert said(update, params, state, params) == []


NOT_GATHERED = {
    "rows": ((64, 16), P("b", None)),
    "rows by both": ((64, 16), P(("a", "b"), None)),
    "wide, by columns": ((16, 64), P(None, "b")),
    "batch": ((8, 32, 8), P("b", None, None)),
    "batch and rows": ((8, 32, 8), P("a", "b", None)),
    "whole": ((64, 16), P()),
}


# One program for all leaves takes as long to compile as a program for each.
@pytest.mark.parametrize(
    "name", mostly(NOT_GATHERED, slow=("rows by both", "batch", "whole"))
)
def test_a_leaf_that_is_not_gathered_is_not_named(name):
    params, state = started(*NOT_GATHERED[name])
    assert said(jax.jit(TX.update), params, state, params) == []


def test_a_leaf_whose_layout_is_told_is_not_named():
    spec = P(None, "b")
    tx = cdx.constrain(optax.sgd(1e-2), cdx.Stiefel(sharding=spec))
    params, state = started((64, 16), spec, tx)
    assert said(jax.jit(tx.update), params, state, params) == []


def test_a_leaf_on_a_mesh_of_one_device_is_not_named():
    mesh = jax.make_mesh((1,), ("m",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P(None, "m"))
    params = {"w": jax.device_put(normal((64, 16), 0, "float32"), sharding)}
    tx = cdx.constrain(optax.sgd(1e-2))
    state = jax.jit(tx.init)(params)
    assert said(jax.jit(tx.update), params, state, params) == []


def moved(params: Any, state: Any) -> Any:
    updates: Any = TX.update(params, state, params)[0]
    return updates["w"]


def scanned(params, state):
    def body(carry, _):
        params, state = carry
        updates, state = TX.update(params, state, params)
        return (optax.apply_updates(params, updates), state), None

    ends: Any = jax.lax.scan(body, (params, state), length=2)[0][0]
    return ends["w"]


def differentiated(fn):
    return jax.grad(lambda params, state: jnp.sum(fn(params, state)), allow_int=True)


def mapped(fn):
    def both(params, state):
        twice = jax.tree.map(lambda v: jnp.stack([v, v]), params)
        return jax.vmap(fn, in_axes=(0, None))(twice, state)[1]

    return both


TRANSFORMED = {
    "scan": scanned,
    "grad": differentiated(moved),
    "vmap": mapped(moved),
    "grad of scan": differentiated(scanned),
    "vmap of scan": mapped(scanned),
    "checkpoint": differentiated(jax.checkpoint(moved)),
    "grad of jit": differentiated(jax.jit(moved)),
    "vmap of jit": mapped(jax.jit(moved)),
}


# A gradient on eight devices takes half a minute to compile, with a checkpoint as
# well; `test_meta_gradients` has gradients on one. The rest are compositions.
SLOW = {name for name in TRANSFORMED if " of " in name} | {"grad", "checkpoint"}


@pytest.mark.parametrize("name", mostly(TRANSFORMED, slow=SLOW))
def test_a_step_that_is_transformed_is_that_of_one_device(name):
    params, state = started((64, 16), P(None, "b"))
    alone = jax.device_put((params, state), jax.devices()[0])
    step = jax.jit(TRANSFORMED[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = step(params, state)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
        found,
        jax.jit(TRANSFORMED[name])(*alone),
    )


@pytest.mark.parametrize("first", ["run", "export"])
@pytest.mark.parametrize("spec", [P(), P(None, "b")], ids=str)
def test_a_step_whose_layout_is_told_can_be_exported(spec, first):
    tx = cdx.constrain(optax.sgd(1e-2), cdx.Stiefel(sharding=spec))
    params, state = started((64, 16), spec, tx)
    update = jax.jit(tx.update)
    if first == "run":
        update(params, state, params)
    exported = jax.export.export(update)(params, state, params)
    desired, _ = update(params, state, params)
    found, _ = jax.jit(exported.call)(params, state, params)
    np.testing.assert_allclose(found["w"], desired["w"], atol=1e-6)
