"""Every public transformation against what JAX asks of a pure function."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import pytest
from flax.core import FrozenDict

from tests.oracles import step
from tests.test_contracts import (
    Case,
    assert_trees_close,
    cases,
    matrices,
    problem,
)

traces: Counter[Case] = Counter()


@functools.cache
def compiled(case: Case) -> Callable[..., Any]:
    """The optimiser's step, compiled once for all the tests that only run it."""
    take = step(case.optimiser(matrices))

    def counted(*args):
        traces[case] += 1
        return take(*args)

    return jax.jit(counted)


@cases()
def test_compiled_and_eager_steps_agree(case):
    tx = case.optimiser(matrices)
    for seed in (0, 1, 2):
        params, grads = problem(seed)
        args = params, tx.init(params), grads
        assert_trees_close(compiled(case)(*args), step(tx)(*args))


@cases(quick=True)
def test_a_step_is_traced_once_and_keeps_every_type(case):
    params, grads = problem(0)
    carried = params, case.optimiser(matrices).init(params)
    types = jax.tree.map(jax.typeof, carried)
    for _ in range(3):
        carried = compiled(case)(*carried, grads)
        assert jax.tree.map(jax.typeof, carried) == types
    assert traces[case] == 1


@cases(quick=True)
def test_updates_have_the_type_of_the_gradients(case):
    tx = case.make(matrices)
    for dtype in (jnp.bfloat16, jnp.float32, jnp.float64):
        params, grads = problem(0, dtype)
        updates, _ = jax.eval_shape(tx.update, grads, tx.init(params), params)
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, grads)


@cases()
def test_scan_takes_the_steps_of_a_loop(case):
    params, _ = problem(0)
    grads = [problem(seed)[1] for seed in range(5)]
    looped = start = params, case.optimiser(matrices).init(params)
    for g in grads:
        looped = compiled(case)(*looped, g)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *grads)
    scanned, _ = jax.lax.scan(
        lambda c, g: (compiled(case)(*c, g), None), start, stacked
    )
    assert_trees_close(scanned, looped)


@cases()
def test_vmap_steps_an_ensemble_as_a_loop_does(case):
    tx = case.optimiser(matrices)
    members = [problem(seed) for seed in (0, 1, 2)]
    params, grads = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    together = jax.jit(jax.vmap(step(tx)))(params, jax.vmap(tx.init)(params), grads)
    for i, (p, g) in enumerate(members):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        assert_trees_close(one, compiled(case)(p, tx.init(p), g))


@cases(quick=True)
def test_init_needs_shapes_only(case):
    tx = case.optimiser(matrices)
    params, _ = problem(0)
    concrete = tx.init(params)
    shapes = jax.eval_shape(lambda: params)
    for state in (jax.eval_shape(tx.init, params), tx.init(shapes)):
        chex.assert_trees_all_equal_shapes_and_dtypes(state, concrete)


@cases(quick=True)
def test_buffers_may_be_donated(case):
    tx = case.optimiser(matrices)
    params, grads = problem(0)
    state = tx.init(params)
    kept = compiled(case)(params, state, grads)
    taken = jax.jit(step(tx), donate_argnums=(0, 1))(params, state, grads)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    assert_trees_close(taken, kept)


class Layer(NamedTuple):
    bias: Any
    kernel: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Block:
    bias: Any
    kernel: Any


TREES = {
    "list": lambda tree: list(tree.values()),
    "nested": lambda tree: {"a": [tree["bias"], (tree["kernel"],)], "b": {}},
    "NamedTuple": lambda tree: Layer(**tree),
    "dataclass": lambda tree: Block(**tree),
    "FrozenDict": FrozenDict,
    "array": lambda tree: tree["kernel"],
}


@cases()
@pytest.mark.parametrize("build", TREES.values(), ids=TREES.keys())
def test_any_tree_is_stepped_leaf_by_leaf(case, build):
    tx = case.make(matrices)
    params, grads = problem(0)
    expected, _ = tx.update(grads, tx.init(params), params)
    tree = build(params)
    updates, _ = tx.update(build(grads), tx.init(tree), tree)
    assert_trees_close(updates, build(expected))
