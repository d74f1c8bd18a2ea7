"""Every public transformation, of the table in `test_contracts`, within Optax."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.oracles import step
from tests.test_contracts import (
    assert_trees_close,
    cases,
    matrices,
    problem,
)

FREE = {"bias": True, "kernel": False}
CONSTRAINED = {"bias": False, "kernel": True}


@cases()
def test_extra_arguments_are_accepted_and_ignored(case):
    tx = case.make(matrices)
    params, grads = problem(0)
    plain = tx.update(grads, tx.init(params), params)
    with_more = tx.update(grads, tx.init(params), params, value=1.0, unheard_of=None)
    chex.assert_trees_all_equal(with_more, plain)


@cases()
def test_a_chain_hands_every_link_its_own_state(case):
    links = case.links(matrices)
    params, grads = problem(0)
    chained = optax.chain(*links)
    state, states = chained.init(params), [link.init(params) for link in links]
    for _ in range(2):
        updates, state = chained.update(grads, state, params)
        by_hand = grads
        for i, link in enumerate(links):
            by_hand, states[i] = link.update(by_hand, states[i], params)
        chex.assert_trees_all_equal((updates, state), (by_hand, tuple(states)))


@cases(quick=True)
def test_the_optimisers_count_is_still_found_by_name(case):
    tx = case.make(matrices)
    tx = tx if case.optimises else optax.chain(tx, optax.scale_by_adam())
    params, grads = problem(0)
    _, state = jax.eval_shape(tx.update, grads, tx.init(params), params)
    assert optax.tree.get(state, "count").shape == ()


@cases()
@pytest.mark.parametrize("inner_mask", [None, matrices], ids=["None", "callable"])
def test_masked_shows_it_the_constrained_leaves_only(case, inner_mask):
    tx = optax.masked(case.make(inner_mask), CONSTRAINED)
    params, grads = problem(0)
    state = tx.init(params)
    updates, _ = tx.update(grads, state, params)
    alone = case.make(None)
    kernel = params["kernel"]
    expected, _ = alone.update(grads["kernel"], alone.init(kernel), kernel)
    chex.assert_trees_all_equal(updates, grads | {"kernel": expected})


@cases()
def test_partition_gives_the_free_leaves_to_another_optimiser(case):
    constrained, free = case.optimiser(None), optax.rmsprop(1e-2)
    labels = {"bias": "free", "kernel": "constrained"}
    tx = optax.partition({"constrained": constrained, "free": free}, labels)
    params, grads = problem(0)
    together = params, tx.init(params)
    kernel = params["kernel"], constrained.init(params["kernel"])
    bias = params["bias"], free.init(params["bias"])
    for _ in range(2):
        together = step(tx)(*together, grads)
        kernel = step(constrained)(*kernel, grads["kernel"])
        bias = step(free)(*bias, grads["bias"])
    assert_trees_close(together[0], {"bias": bias[0], "kernel": kernel[0]})


@cases(quick=True)
def test_a_group_of_a_partition_may_have_no_leaves(case):
    tx = optax.partition(
        {"constrained": case.make(None), "free": optax.sgd(0.1)},
        {"bias": "free", "kernel": "free"},
    )
    params, grads = problem(0)
    updates, _ = jax.eval_shape(tx.update, grads, tx.init(params), params)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, grads)


@cases()
def test_two_half_batches_of_multisteps_are_one_step(case):
    tx = case.optimiser(matrices)
    twice = optax.MultiSteps(tx, every_k_schedule=2)
    params, grads = problem(0)
    _, noise = problem(1)
    take = jax.jit(step(twice))
    state = twice.init(params)
    halfway, state = take(params, state, optax.tree.add(grads, noise))
    chex.assert_trees_all_equal(halfway, params)
    stepped, state = take(halfway, state, optax.tree.sub(grads, noise))
    expected, inner = step(tx)(params, tx.init(params), grads)
    # MultiSteps averages with a factor in float32.
    assert_trees_close((stepped, state.inner_opt_state), (expected, inner), 1e-6)


@cases(quick=True)
def test_injected_hyperparameters_are_those_that_were_given(case):
    static = {"mask", "regularizer"} & set(case.arguments | {"mask": matrices})
    inject: Any = optax.inject_hyperparams(case.factory, static_args=static)
    injected, plain = inject(**case.arguments, mask=matrices), case.make(matrices)
    params, grads = problem(0)
    state, plain_state = injected.init(params), plain.init(params)
    given = {name for name, v in case.arguments.items() if not isinstance(v, str)}
    assert set(state.hyperparams) - {"radius"} == given & {"beta", "learning_rate"}
    for _ in range(3):
        updates, state = jax.jit(injected.update)(grads, state, params)
        expected, plain_state = plain.update(grads, plain_state, params)
        assert_trees_close(updates, expected)


@cases()
def test_a_gradient_that_is_not_finite_can_be_skipped(case):
    tx = case.optimiser(matrices)
    guarded = optax.apply_if_finite(tx, max_consecutive_errors=3)
    take = jax.jit(step(guarded))
    params, grads = problem(0)
    bad = grads | {"kernel": grads["kernel"].at[0, 0].set(jnp.nan)}
    first = take(params, guarded.init(params), grads)
    skipped = take(*first, bad)
    chex.assert_trees_all_equal(skipped[0], first[0])
    chex.assert_trees_all_equal(skipped[1].inner_state, first[1].inner_state)
    assert skipped[1].total_notfinite == 1
    second = take(*skipped, grads)
    expected = step(tx)(first[0], first[1].inner_state, grads)
    assert_trees_close((second[0], second[1].inner_state), expected)


@cases()
def test_frozen_leaves_stay_where_they_are(case):
    tx = optax.chain(case.optimiser(matrices), optax.masked(optax.set_to_zero(), FREE))
    params, grads = problem(0)
    stepped, _ = step(tx)(params, tx.init(params), grads)
    np.testing.assert_array_equal(stepped["bias"], params["bias"])
    assert not np.array_equal(stepped["kernel"], params["kernel"])
