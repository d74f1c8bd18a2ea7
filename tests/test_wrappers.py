"""Optax's wrappers around `constrain`, a row each, in one table.

Every row trains the same small problem to the same optimum, compiled once, with the
kernel orthonormal at the end.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.marks import mostly
from tests.oracles import normal, polar, spectral

STEPS, RATE = 300, 0.1
MASK = cdx.where("kernel")
A = normal((40, 8), 0)
PLANTED = {"kernel": polar(normal((8, 3), 1)), "bias": jnp.arange(3.0)}
Y = A @ PLANTED["kernel"] + PLANTED["bias"]
START = {"kernel": polar(normal((8, 3), 2)), "bias": jnp.zeros(3)}
KERNEL, BIAS = {"kernel": True, "bias": False}, {"kernel": False, "bias": True}
falls = optax.cosine_decay_schedule(RATE, STEPS)


def loss(params):
    return jnp.mean((A @ params["kernel"] + params["bias"] - Y) ** 2)


def adam():
    return cdx.constrain(optax.adam(falls), MASK)


def always(step, *args, **kwargs):
    del args, kwargs
    return step >= 0


def injected(learning_rate):
    return cdx.constrain(optax.adam(learning_rate), MASK)


ROWS: dict[str, Any] = {
    "chain": lambda: optax.chain(adam()),
    "masked": lambda: optax.chain(
        optax.masked(cdx.constrain(optax.adam(falls)), KERNEL),
        optax.masked(optax.adam(falls), BIAS),
    ),
    "partition": lambda: optax.partition(
        {"on": cdx.constrain(optax.adam(falls)), "off": optax.adam(falls)},
        {"kernel": "on", "bias": "off"},
    ),
    "MultiSteps": lambda: optax.MultiSteps(
        cdx.constrain(optax.adam(RATE), MASK), every_k_schedule=2
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(injected)(falls),
    "apply_if_finite": lambda: optax.apply_if_finite(adam(), 5),
    "lookahead": lambda: cdx.constrain(
        optax.lookahead(optax.adam(falls), 5, 0.5), MASK
    ),
    "schedule_free": lambda: cdx.constrain(
        optax.contrib.schedule_free_adamw(RATE, weight_decay=0.0), MASK
    ),
    "lbfgs": lambda: cdx.constrain(optax.lbfgs(), MASK),
    "contrib.muon": lambda: cdx.constrain(optax.contrib.muon(falls), MASK),
    "contrib.dadapt_adamw": lambda: optax.partition(
        {
            "on": cdx.constrain(optax.adam(falls)),
            "off": optax.contrib.dadapt_adamw(optax.linear_schedule(1.0, 0.0, STEPS)),
        },
        {"kernel": "on", "bias": "off"},
    ),
    "contrib.prodigy": lambda: cdx.constrain(
        optax.contrib.prodigy(optax.linear_schedule(1.0, 0.0, STEPS)), MASK
    ),
    "adamw with masked decay": lambda: cdx.constrain(
        optax.adamw(falls, weight_decay=0.1, mask=KERNEL), MASK
    ),
    "conditionally_transform": lambda: optax.transforms.conditionally_transform(
        adam(), always
    ),
    "clipping before": lambda: optax.chain(optax.clip_by_global_norm(1.0), adam()),
    "clipping after": lambda: cdx.constrain(
        optax.chain(optax.adam(falls), optax.clip_by_global_norm(0.1)), MASK
    ),
}


def train(name) -> Any:
    """The parameters, the state, and the average of the parameters at the end."""
    tx = optax.with_extra_args_support(ROWS[name]())
    params: Any = START
    if name == "lookahead":
        params = optax.LookaheadParams.init_synced(params)

    def step(carry, count):
        params, state, average = carry
        value, grads = jax.value_and_grad(loss)(fast(params))
        if name == "apply_if_finite":
            spoilt = jnp.where(count == 7, jnp.nan, 1.0)
            grads = jax.tree.map(lambda g: spoilt * g, grads)
        search = {"value": value, "grad": grads, "value_fn": loss}
        more = search if name == "lbfgs" else {}
        updates, state = tx.update(grads, state, params, **more)
        params = optax.apply_updates(params, updates)
        average = optax.incremental_update(fast(params), average, 0.1)
        return (params, state, average), None

    @jax.jit
    def run(carry):
        return jax.lax.scan(step, carry, jnp.arange(STEPS))[0]

    params, state, average = run((params, tx.init(params), START))
    return tx, params, state, average


def fast(params) -> Any:
    return params.fast if isinstance(params, optax.LookaheadParams) else params


# `test_constrain` trains with the first, `test_contracts_optax` has the second, and
# the others are optimisers and chains of Optax's own inside of what is always run.
ELSEWHERE = {"lbfgs", "masked", "contrib.dadapt_adamw", "adamw with masked decay"}
ELSEWHERE |= {"clipping before", "clipping after"}


@pytest.mark.parametrize("name", mostly(ROWS, slow=ELSEWHERE))
def test_a_wrapper_trains_to_the_optimum_on_the_manifold(name):
    tx, params, state, average = train(name)
    if name == "lookahead":
        for point in params:
            assert spectral(point["kernel"]) < 1e-5
            assert loss(point) < 1e-2
    params = fast(params)
    if name == "schedule_free":
        # What it converges with is an average of points.
        inside = optax.tree.get(state, "ScheduleFreeState")
        params = optax.contrib.schedule_free_eval_params(inside, params)
        params = cdx.project(params, MASK)
    assert loss(params) < 1e-3
    # Without a decay the last steps are as long as the first.
    constant = name in ("MultiSteps", "schedule_free")
    assert spectral(params["kernel"]) < (1e-2 if constant else 1e-5)
    if name == "apply_if_finite":
        assert state.total_notfinite == 1
    if name == "chain":
        assert_average_can_be_projected(average)
        assert_fields_are_found(state)
        assert_moments_are_found(tx, params, state)


def assert_average_can_be_projected(average):
    """An average of points of the manifold, as of an EMA, is none of them."""
    projected = cdx.project(average, MASK)
    assert spectral(projected["kernel"]) < 1e-12
    assert loss(projected) < 1e-3


def assert_fields_are_found(state):
    assert optax.tree.get(state, "num_updates") == STEPS
    assert optax.tree.get(state, "step_fraction").shape == (1,)
    assert optax.tree.get(state, "mu").keys() == START.keys()


def assert_moments_are_found(tx, params, state):
    """The moments are doubled, and the report, which is none, is left alone."""
    doubled: Any = optax.tree.map_params(tx, lambda v: 2 * v, state)
    mu = optax.tree.get(state, "mu")["kernel"]
    np.testing.assert_array_equal(optax.tree.get(doubled, "mu")["kernel"], 2 * mu)
    np.testing.assert_array_equal(
        optax.tree.get(doubled, "step_fraction"), optax.tree.get(state, "step_fraction")
    )
    assert mu.shape == params["kernel"].shape
