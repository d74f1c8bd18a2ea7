"""Derivatives of solutions against finite differences of those of NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

import cdopt_jax as cdx
from tests.marks import mostly

RNG = np.random.default_rng(0)
TIGHT = 1e-13
STEP = 1e-5


def symmetric(n):
    a = RNG.normal(size=(n, n))
    return a + a.T


def central(f):
    return (f(STEP) - f(-STEP)) / (2 * STEP)


def quadratic(x, m):
    return -jnp.sum(x * (m @ x)) / 2


def random(n, p, B=None):
    return cdx.stiefel.random(jax.random.key(0), (n, p), jnp.float64, B=B)


def test_the_derivative_of_a_leading_subspace_is_that_of_the_eigenvectors():
    m, change, w = (
        np.diag(np.arange(1.0, 9)),
        0.3 * symmetric(8),
        RNG.normal(size=(8, 8)),
    )

    def loss(t):
        x = cdx.minimize(
            quadratic, random(8, 3), args=(m + t * change,), tol=TIGHT
        ).projected
        return jnp.sum(w * (x @ x.T))

    def exact(t):
        v = np.linalg.eigh(m + t * change)[1][:, -3:]
        return np.sum(w * (v @ v.T))

    expected = central(exact)
    assert abs(expected) > 1e-3
    assert float(jax.grad(loss)(0.0)) == pytest.approx(expected, rel=1e-6)
    _, forward = jax.jvp(loss, (0.0,), (1.0,))
    assert float(forward) == pytest.approx(expected, rel=1e-6)
    assert float(jax.jit(jax.grad(loss))(0.0)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("method", mostly(["tangential", "newton"], slow=["newton"]))
def test_the_derivative_of_a_procrustes_solution_is_that_of_finite_differences(method):
    # Square, so that the solution is the polar factor of aᵀb.
    a, b = RNG.normal(size=(12, 5)), RNG.normal(size=(12, 5))
    by_a, by_b = RNG.normal(size=a.shape), RNG.normal(size=b.shape)
    w = RNG.normal(size=(5, 5))

    def f(x, a, b):
        return jnp.sum((a @ x - b) ** 2)

    def exact(t):
        u, _, v = np.linalg.svd((a + t * by_a).T @ (b + t * by_b))
        return np.sum(w * (u @ v))

    u, _, v = np.linalg.svd(a.T @ b)

    def loss(t):
        data = (a + t * by_a, b + t * by_b)
        # From nearby: orthogonal matrices have two components.
        x0 = cdx.stiefel.project(jnp.asarray(u @ v) + 0.05 * w)
        found = cdx.minimize(f, x0, args=data, tol=TIGHT, method=method, max_steps=300)
        return jnp.sum(w * found.projected)

    assert float(jax.grad(loss)(0.0)) == pytest.approx(central(exact), rel=1e-5)


def test_the_derivative_of_generalized_eigenvectors_is_that_of_scipy():
    m = symmetric(8)
    m = m @ m
    r = RNG.normal(size=(8, 8))
    b = r @ r.T / 8 + np.eye(8)
    by_m, by_b, w = symmetric(8), symmetric(8), RNG.normal(size=(8, 8))

    def loss(t, u):
        mask = cdx.Stiefel(B=jnp.asarray(b) + u * by_b)
        x0 = random(8, 2, B=b)
        x = cdx.minimize(quadratic, x0, mask, args=(m + t * by_m,), tol=TIGHT).projected
        return jnp.sum(w * (x @ x.T))

    def exact(t, u):
        v = scipy.linalg.eigh(m + t * by_m, b + u * by_b)[1][:, -2:]
        return np.sum(w * (v @ v.T))

    by_t, by_u = jax.grad(loss, (0, 1))(0.0, 0.0)
    assert float(by_t) == pytest.approx(central(lambda t: exact(t, 0)), rel=1e-5)
    assert float(by_u) == pytest.approx(central(lambda u: exact(0, u)), rel=1e-5)


def test_the_least_value_has_the_derivative_of_its_eigenvalue():
    m = np.diag(np.arange(1.0, 9))
    change = symmetric(8)

    def least(t):
        return cdx.minimize(quadratic, random(8, 1), args=(m + t * change,)).value

    expected = central(lambda t: -np.linalg.eigvalsh(m + t * change)[-1] / 2)
    assert float(jax.grad(least)(0.0)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"regularizer": cdx.prox.l1(0.1)}, "regularizer"),
        ({"method": "geometric"}, "'geometric'"),
        ({"method": optax.adam(0.1)}, "'optax'"),
    ],
    ids=["regularizer", "subgradients", "optax"],
)
def test_what_has_no_derivative_says_so(options, words):
    def loss(t):
        x = cdx.minimize(quadratic, random(8, 3), args=(t * np.eye(8),), **options)
        return x.projected.sum()

    with pytest.raises(ValueError, match="minimize: a solution") as caught:
        jax.grad(loss)(1.0)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("project", False),
        ("dissolve", True),
        pytest.param("project", True, marks=pytest.mark.slow),
        pytest.param("dissolve", False, marks=pytest.mark.slow),
    ],
)
def test_the_derivative_with_respect_to_a_metric_is_that_of_finite_differences(
    name, called
):
    rng = np.random.default_rng(0)
    x, w = 0.3 * rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    r, s = rng.normal(size=(2, 5, 5))
    b, change = jnp.asarray(r @ r.T + np.eye(5)), jnp.asarray(s + s.T)
    fn = getattr(cdx.stiefel, name)

    def loss(t):
        metric = b + t * change
        return jnp.sum(w * fn(x, B=(lambda v: metric @ v) if called else metric))

    expected = central(loss)
    assert abs(expected) > 1e-3
    assert float(jax.grad(loss)(0.0)) == pytest.approx(float(expected), rel=1e-6)
    assert float(jax.jvp(loss, (0.0,), (1.0,))[1]) == pytest.approx(float(expected))
    bent = central(jax.grad(loss))
    assert float(jax.hessian(loss)(0.0)) == pytest.approx(float(bent), rel=1e-6)
