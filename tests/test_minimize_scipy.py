"""The bridge to SciPy's solvers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import cdopt_jax as cdx
from tests.minimize_problems import BEST, M, quadratic, start


def test_scipy_minimises_h_to_the_same_optimum():
    h = cdx.scipy_objective(quadratic, start())
    difference = scipy.optimize.check_grad(h.value, h.gradient, h.start + 0.01)
    assert difference < 1e-6
    found = scipy.optimize.minimize(
        h.both, h.start, jac=True, method="L-BFGS-B", options={"gtol": 1e-9}
    )
    assert found.fun == pytest.approx(BEST, abs=1e-8)
    assert float(quadratic(h.restore(found.x))) == pytest.approx(BEST, abs=1e-8)


def test_hessian_products_serve_a_newton_method_and_data_are_arguments():
    def f(x, m):
        return -jnp.sum(x * (m @ x)) / 2

    h = cdx.scipy_objective(f, start(), args=(jnp.asarray(M),))
    v, d = h.start + 0.01, np.random.default_rng(0).normal(size=h.start.size)
    expected = (h.gradient(v + 1e-6 * d) - h.gradient(v - 1e-6 * d)) / 2e-6
    np.testing.assert_allclose(h.hessp(v, d), expected, atol=1e-7)
    found = scipy.optimize.minimize(
        h.both, h.start, jac=True, hessp=h.hessp, method="trust-ncg"
    )
    assert found.fun == pytest.approx(BEST, abs=1e-6)


def test_a_beta_for_which_h_is_of_no_use_is_named():
    h = cdx.scipy_objective(lambda x: 100 * quadratic(x), start(), beta=1e-3)
    found = scipy.optimize.minimize(h.both, h.start, jac=True)
    with pytest.warns(UserWarning, match="give a beta above 1.0e-03"):
        h.restore(found.x)
    with pytest.raises(ValueError, match="beta"):
        cdx.scipy_objective(quadratic, start(), beta=-1.0)


def test_the_automatic_beta_means_one_thing_and_is_in_the_result():
    """2‖∇f‖_F/√p of each leaf, at the start."""
    params = {"a": start(n=9, p=2), "b": start(n=7)}

    def f(params):
        return jnp.sum(jnp.sin(params["a"])) + 10 * jnp.sum(jnp.cos(params["b"]))

    gradients = jax.grad(f)(params)
    expected = {
        path: 2 * np.linalg.norm(g) / np.sqrt(g.shape[1])
        for path, g in gradients.items()
    }
    h = cdx.objective(f, beta="auto")
    bridge = cdx.scipy_objective(f, params)
    assert bridge.beta == pytest.approx(expected)
    for method in ("lbfgs", "newton"):
        result = cdx.minimize(f, params, method=method, max_steps=1)
        assert result.beta is not None
        # A step that strays doubles both.
        ratios = {k: float(b) / expected[k] for k, b in result.beta.items()}
        grown = {k: round(ratio, 6) for k, ratio in ratios.items()}
        assert grown in ({"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 2.0})
    assert cdx.minimize(f, params, max_steps=1).beta is None
    # The gradient of a penalty vanishes on the manifold; along x it does not.
    off = {"a": 1.1 * params["a"], "b": params["b"]}
    at = cdx.dissolve(off)
    beta = 2 * np.linalg.norm(jax.grad(f)(at)["a"]) / np.sqrt(2)
    penalty = np.linalg.norm(np.asarray(off["a"].T @ off["a"]) - np.eye(2)) ** 2 / 4
    assert float(h(off) - f(at)) == pytest.approx(beta * penalty, rel=1e-6)
