"""Points of the solver brought back to the manifold, where an SVD says they belong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cdopt_jax as cdx
from cdopt_jax._math.products import Form
from cdopt_jax._minimize.manifold import EDGE, Manifold
from tests.minimize_problems import METRIC, N, P, quadratic, start
from tests.oracles import assert_close, gram_residual, polar


def at_a_distance(distance, dtype, b):
    """A matrix with ‖E‖ of that size, of which both signs are among the eigenvalues."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(N, P))
    if np.issubdtype(dtype, np.complexfloating):
        a = a + 1j * rng.normal(size=(N, P))
    turn = np.linalg.qr(rng.normal(size=(P, P)))[0]
    sizes = np.sqrt(1 + distance * np.array([1.0, -0.6, -1.0]))
    return jnp.asarray(polar(a, b) @ (turn * sizes) @ turn.T, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("distance", [0.0, 5e-3, 0.1, 0.4])
@pytest.mark.parametrize("kind", ["none", "array"])
def test_restoring_keeps_the_polar_factor(dtype, distance, kind):
    b = METRIC.astype(dtype) if kind == "array" else None
    manifold = Manifold([Form(B=None if b is None else jnp.asarray(b)), None])
    free = jnp.ones(3)
    a = at_a_distance(distance, np.dtype(dtype), b)
    measured = manifold.measure([a, free])
    assert distance <= measured[0].distance * (1 + 1e-5) + 1e-6
    assert measured[0].distance < EDGE
    (x, same), (image, nothing) = manifold.restore(measured)
    rounding = 1e-5 if dtype == "float32" else 1e-13
    # A takes what is left to its third power, from 1e-2 at most.
    assert np.linalg.norm(gram_residual(x, 1.0 if b is None else b)) <= 3e-6 + rounding
    assert_close(x, polar(a, b), 3e-6 + rounding)
    assert same is free
    assert nothing is None
    if b is None:
        assert image is None
    else:
        assert_close(image, b @ np.asarray(x), rounding)


@pytest.mark.parametrize("distance", [0.0, 0.1, 0.4, 0.9])
@pytest.mark.parametrize("kind", ["none", "array"])
def test_the_projection_is_the_polar_factor_near_and_far(distance, kind):
    b = METRIC if kind == "array" else None
    manifold = Manifold([Form(B=None if b is None else jnp.asarray(b))])
    a = at_a_distance(distance, np.dtype("float64"), b)
    (x,) = jax.jit(manifold.project)([a])
    assert_close(x, polar(a, b), 1e-13)


def test_a_start_on_the_manifold_costs_few_applications_of_the_metric():
    """Of any matrix the projection applies B 21 times, at the start and at the end.

    One of the applications is that of the piece that is queued behind the last.
    """
    applied = []

    def metric(x):
        jax.debug.callback(lambda: applied.append(1))
        return jnp.asarray(METRIC) @ x

    cdx.minimize(
        quadratic,
        start(B=METRIC),
        cdx.Stiefel(B=metric),
        method="proximal",
        max_steps=1,
    )
    jax.effects_barrier()
    assert 0 < len(applied) <= 16
