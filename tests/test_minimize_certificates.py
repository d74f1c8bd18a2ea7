"""Certificates of the solver: what it says of a point is true of the point."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

import cdopt_jax as cdx
from tests.marks import mostly
from tests.minimize_problems import N, P, farthest, start, variance

DIAGONAL = jnp.linspace(1, 10, 50)
EIGENVALUES = -float(np.sum(np.asarray(DIAGONAL)[-3:]))


def diagonal(x, scale=1.0):
    return -scale * jnp.sum(DIAGONAL.astype(x.dtype)[:, None] * x * x)


def single(shape, seed=0):
    return cdx.stiefel.random(jax.random.key(seed), shape, jnp.float32)


@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1e-5, 3.0, 1e25])
def test_a_factor_in_front_of_the_objective_changes_nothing(scale):
    plain = cdx.minimize(diagonal, single((50, 3)), args=(jnp.float32(1),))
    scaled = cdx.minimize(diagonal, single((50, 3)), args=(jnp.float32(scale),))
    assert bool(plain.converged)
    assert bool(scaled.converged)
    assert int(scaled.steps) == int(plain.steps)
    np.testing.assert_allclose(scaled.value / scale, plain.value, rtol=1e-4)
    assert float(plain.value) == pytest.approx(EIGENVALUES, rel=1e-4)


def test_a_power_of_two_in_front_of_f_and_r_changes_no_bit():
    data = jnp.asarray(np.random.default_rng(0).normal(size=(20, 40)))

    def scaled(x, data, c):
        return c * variance(x, data)

    ends = [
        cdx.minimize(
            scaled, start(n=40), args=(data, c), regularizer=cdx.prox.l1(0.5 * c)
        )
        for c in (1.0, 2.0**-40, 2.0**40)
    ]
    for end in ends[1:]:
        np.testing.assert_array_equal(end.params, ends[0].params)
        assert int(end.steps) == int(ends[0].steps)


@pytest.mark.parametrize(
    "method",
    # Every method leaves it by the same first step.
    mostly(["auto", "tangential", "lbfgs", "newton"], slow=["lbfgs", "newton"]),
)
def test_a_saddle_is_left(method):
    result = cdx.minimize(diagonal, jnp.eye(50, 3), method=method)
    assert float(result.value) == pytest.approx(EIGENVALUES, abs=1e-6)
    assert result.converged


@pytest.mark.parametrize("traced", [False, True])
def test_a_solution_stays_where_it_is(traced):
    x0 = jnp.eye(50)[:, -3:]

    def solve(x):
        return cdx.minimize(diagonal, x, max_steps=200)

    result = (jax.jit(solve) if traced else solve)(x0)
    assert result.converged
    assert int(result.steps) == 0
    np.testing.assert_allclose(result.params, x0, atol=1e-12)


def test_a_run_that_cannot_meet_its_tolerance_says_so_and_takes_no_subgradients():
    result = cdx.minimize(diagonal, single((50, 3)), tol=1e-12)
    assert result.method == "proximal"
    assert not result.converged
    assert "no step lowers" in result.message
    assert float(result.value) == pytest.approx(EIGENVALUES, rel=1e-6)


@pytest.mark.parametrize("weight", [None, 0.02])
def test_an_objective_that_is_nearly_linear_is_solved(weight):
    g = 5 * jax.random.normal(jax.random.key(0), (60, 4), jnp.float64)
    d = jnp.linspace(0, 1, 60)[:, None]

    def f(x):
        return jnp.sum(g * x) + 1e-3 * jnp.sum(d * x * x)

    r = None if weight is None else cdx.prox.l1(weight)
    result = cdx.minimize(f, start(n=60, p=4), regularizer=r)
    assert result.converged
    assert int(result.steps) < 100
    x = result.params
    assert farthest(x, jax.grad(f)(x), weight or 0.0, 1e-7) < 1e-5


def test_random_problems_with_a_regularizer_converge():
    """Of 150 of these, eight stalled with residuals up to 21."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        weight = 10 ** rng.uniform(-2, 0.3)
        data = jnp.asarray(rng.normal(size=(20, 40)))
        result = cdx.minimize(
            variance,
            start(seed, n=40, p=4),
            args=(data,),
            regularizer=cdx.prox.l1(weight),
        )
        assert result.converged, result.message
        x = result.params
        g = jax.grad(variance)(x, data)
        scale = float(jnp.linalg.norm(g))
        assert farthest(x, g, weight, 1e-6) < 1e-5 * scale
        assert float(result.value) <= result.history.value.min() + 1e-4 * scale


def test_a_strong_regularizer_is_no_trap():
    """From a random start alone the run ends at a vertex."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(40, 3)) * np.sqrt([9, 6, 4]) @ rng.normal(size=(3, 200))
    data = jnp.asarray(data + 0.5 * rng.normal(size=(40, 200)))
    weight = 30.0
    options = {"args": (data,), "regularizer": cdx.prox.l1(weight)}
    auto = cdx.minimize(variance, start(n=200), **options)
    direct = cdx.minimize(variance, start(n=200), method="proximal", **options)
    assert auto.method == "continuation"
    assert auto.converged
    assert float(auto.value) < float(direct.value)


def ill_conditioned(condition, n=60):
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    metric = (q * np.geomspace(1 / condition, 1, n)) @ q.T
    return (metric + metric.T) / 2


@pytest.mark.parametrize(
    "regularized", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_no_loop_is_without_end(regularized):
    """In single precision A does not bring a candidate to the manifold."""
    metric = ill_conditioned(1e8, 100)
    root = np.linalg.cholesky(metric + 1e-12 * np.eye(100))
    rng = np.random.default_rng(1)
    x0 = np.linalg.solve(root.T, np.linalg.qr(rng.standard_normal((100, 3)))[0])
    b = jnp.asarray(metric, jnp.float32)
    regularizer = cdx.prox.l1(0.1) if regularized else None
    with pytest.warns(UserWarning, match="x0 is not on the manifold"):
        result = cdx.minimize(
            lambda x: jnp.sum(x[0]),
            jnp.asarray(x0, jnp.float32),
            cdx.Stiefel(B=lambda x: b @ x),
            regularizer=regularizer,
            max_steps=2,
        )
    assert int(result.steps) <= 2


def test_feasibility_is_that_of_the_parameters():
    metric = jnp.asarray(ill_conditioned(1e6), jnp.float32)
    c = jnp.asarray(np.random.default_rng(2).normal(size=(60, 60)), jnp.float32)
    x0 = cdx.stiefel.project(single((60, 3)), B=metric)
    result = cdx.minimize(
        lambda x: -jnp.sum((c @ x) ** 2), x0, cdx.Stiefel(B=metric), max_steps=30
    )

    def truth(x):
        x, b = np.asarray(x, np.float64), np.asarray(metric, np.float64)
        return np.linalg.norm(x.T @ b @ x - np.eye(3))

    assert truth(result.params) > 1e-5
    assert float(result.feasibility) == pytest.approx(truth(result.params), rel=1e-3)
    assert truth(result.projected) < 1e-4
    assert truth(result.projected) < 0.1 * truth(result.params)


def test_a_regularizer_with_a_metric_converges():
    """Sparse discriminants: the eigenvectors of SciPy are a start, not a rival."""
    rng = np.random.default_rng(0)
    n = 40
    z, m = rng.standard_normal((30, n)), rng.standard_normal((10, n))
    a, b = m.T @ m / 10, z.T @ z / 30 + 1e-2 * np.eye(n)
    assert np.linalg.cond(b) > 400
    v = scipy.linalg.eigh(a, b)[1][:, -3:]
    weight = 0.05

    def f(x):
        return -jnp.sum(x * (jnp.asarray(a) @ x))

    result = cdx.minimize(
        f,
        cdx.stiefel.random(jax.random.key(0), (n, 3), B=jnp.asarray(b)),
        cdx.Stiefel(B=jnp.asarray(b)),
        regularizer=cdx.prox.l1(weight),
    )
    assert result.converged
    assert float(result.value) < float(f(v) + weight * np.abs(v).sum())
    assert float(result.feasibility) < 1e-8


def test_no_certificate_for_a_point_off_the_manifold():
    """With such a B, xᵀBx cannot be formed in single precision."""
    metric = jnp.asarray(ill_conditioned(1e8), jnp.float32)
    c = jnp.asarray(np.random.default_rng(2).normal(size=(60, 60)), jnp.float32)
    x0 = cdx.stiefel.random(jax.random.key(0), (60, 3), jnp.float32, B=metric)
    result = cdx.minimize(lambda x: -jnp.sum((c @ x) ** 2), x0, cdx.Stiefel(B=metric))
    assert float(result.feasibility) > 1e-2
    assert not result.converged
    assert "B is too ill-conditioned" in result.message


@pytest.mark.parametrize(
    "method", mostly(["continuation", "proximal"], slow=["continuation"])
)
def test_a_proximal_point_that_is_certified_is_near(method):
    """A long stepsize makes ‖y − x‖/η small where y is far from x."""
    a = np.random.default_rng(1).standard_normal((16, 16))
    a = a * np.geomspace(1, 1e-3, 16)[:, None]
    a = jnp.asarray((a + a.T) / 2, jnp.float32)
    result = cdx.minimize(
        lambda x, a: jnp.sum(x * a[:, :3]),
        single((16, 3), 1),
        args=(a,),
        regularizer=cdx.prox.l1(0.3),
        method=method,
    )
    assert result.converged
    far = jnp.linalg.norm(result.proximal - result.params)
    assert float(far) <= 4e-4 * np.sqrt(3)


def test_a_start_where_the_gradient_is_huge_does_not_loosen_the_certificate():
    def steep(x):
        return jnp.sum(jnp.exp(20 * x))

    x0 = single((16, 3))
    found = cdx.minimize(steep, x0)
    truth = cdx.minimize(steep, cdx.project(x0.astype(jnp.float64)))
    assert found.converged
    assert truth.converged
    assert float(found.value) == pytest.approx(float(truth.value), rel=1e-3)


@pytest.mark.parametrize("method", mostly(["auto", "newton"], slow=["newton"]))
def test_f_may_return_another_precision(method):
    def f(x):
        return jnp.sum(np.linspace(1, 2, 50)[:, None] * x.astype(jnp.float64) ** 2)

    result = cdx.minimize(f, single((50, 3)), method=method)
    assert result.converged
    assert result.params.dtype == jnp.float32
    assert float(result.value) == pytest.approx(3 * 1 + 3 / 49, rel=1e-3)


@pytest.mark.parametrize("weight", [0.5, 50.0])
def test_a_saddle_is_left_with_a_regularizer(weight):
    """A saddle of f at which r has a vertex is a local minimum, but a poor one."""
    result = cdx.minimize(diagonal, jnp.eye(50, 3), regularizer=cdx.prox.l1(weight))
    assert result.converged
    assert float(result.value) == pytest.approx(EIGENVALUES + 3 * weight, rel=1e-6)


def test_the_best_point_is_returned():
    """Adam at a high rate rises again."""
    result = cdx.minimize(
        diagonal, start(n=50), method=optax.adam(0.3), max_steps=200, tol=1e-300
    )
    assert float(result.value) <= result.history.value.min() + 1e-9
    assert float(diagonal(result.params)) == pytest.approx(float(result.value))


def test_a_phase_that_is_certified_is_no_end_where_the_callback_stops_the_run():
    # Without r ten steps are enough, and the run is stopped before r counts.
    m = jnp.asarray(np.diag(np.arange(N, 0.0, -1.0)))
    seen = []

    def callback(info):
        seen.append(info.step)
        return True

    result = cdx.minimize(
        lambda x: jnp.sum((x - m[:, :P]) ** 2),
        start(),
        method="continuation",
        regularizer=cdx.prox.l1(5.0),
        callback=callback,
    )
    assert len(seen) == 1
    assert not result.converged
    assert "stopped by the callback" in result.message
    full = cdx.minimize(
        lambda x: jnp.sum((x - m[:, :P]) ** 2),
        result,
        regularizer=cdx.prox.l1(5.0),
    )
    assert full.converged
    assert float(full.value) < float(result.value) - 1e-3
