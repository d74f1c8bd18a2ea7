"""Derivatives through a step, forward and backward, against finite differences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.oracles import descend, normal, polar, spd

SHAPE = (6, 3)
B = jnp.asarray(spd(6))
WEIGHTS = normal(SHAPE, 7)
# No point is more hostile to a derivative than one where norms are exactly zero.
STARTS = {"identity": jnp.eye(*SHAPE), "random": jnp.asarray(polar(normal(SHAPE, 0)))}


def after(u: Any, x: Any, mask: Any = None) -> Any:
    tx = cdx.keep_feasible(mask)
    updates, _ = tx.update(u, tx.init(x), x)
    return jnp.sum(WEIGHTS * jnp.sin(x + updates))


@jax.jit
def derivatives(u, x, d):
    """The slope along d, by a gradient, by a directional derivative, by differences."""
    backward = jax.grad(after, (0, 1))(u, x)
    forward = jax.jvp(after, (u, x), (d, -d))[1]
    h = 1e-5
    numeric = (after(u + h * d, x - h * d) - after(u - h * d, x + h * d)) / (2 * h)
    return jnp.sum(d * (backward[0] - backward[1])), forward, numeric


@pytest.mark.parametrize("size", [0.0, 1e-4, 3e-3, 0.03, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("start", STARTS)
def test_a_step_of_any_length_can_be_differentiated_both_ways(start, size):
    u = size * normal(SHAPE, 1)
    # As large as the update, whose derivative falls with its length.
    d = max(size, 1.0) * normal(SHAPE, 2)
    backward, forward, numeric = derivatives(u, STARTS[start], d)
    np.testing.assert_allclose(backward, numeric, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(forward, numeric, rtol=1e-4, atol=1e-6)


SHORTENED = {"singular": np.eye(*SHAPE) * [-1, 1, 0], "low rank": 1e6 * np.ones(SHAPE)}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("u", SHORTENED.values(), ids=SHORTENED)
def test_where_a_step_is_shortened_derivatives_are_finite(u, start):
    backward, forward, _ = derivatives(jnp.asarray(u), STARTS[start], normal(SHAPE, 2))
    assert np.isfinite(backward)
    assert np.isfinite(forward)


def test_a_learning_rate_can_be_learned_through_several_steps():
    """The slope of the last loss in the rate, through three steps of `constrain`."""
    m = jnp.asarray(spd(6))

    def loss(x):
        return -jnp.sum(x * (m @ x))

    def last(rate):
        tx = cdx.constrain(optax.sgd(rate, momentum=0.9))
        return loss(descend(tx, jax.grad(loss), jnp.eye(*SHAPE), 3)[0][0])

    value_and_slope = jax.jit(jax.value_and_grad(last))
    for rate in (1e-3, 0.3, 3.0):
        high, low = (value_and_slope(rate * (1 + h))[0] for h in (1e-6, -1e-6))
        slope = value_and_slope(rate)[1]
        np.testing.assert_allclose(slope, (high - low) / (2e-6 * rate), rtol=1e-3)


@pytest.mark.parametrize(
    "kind", ["array", pytest.param("callable", marks=pytest.mark.slow)]
)
def test_a_step_in_a_metric_can_be_differentiated(kind):
    mask = cdx.Stiefel(B=B if kind == "array" else lambda v: B @ v)
    x, d = jnp.asarray(polar(STARTS["random"], B)), normal(SHAPE, 2)
    f = jax.jit(jax.value_and_grad(lambda t: after(t * d, x, mask)))
    for size in (1e-3, 2.0):
        numeric = (f(size + 1e-5)[0] - f(size - 1e-5)[0]) / 2e-5
        np.testing.assert_allclose(f(size)[1], numeric, rtol=1e-4)
