"""The solver over complex points, against NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
import scipy.optimize

import cdopt_jax as cdx
from tests.marks import mostly
from tests.oracles import inner, normal, polar, spd, symmetric

N, P = 12, 3
H = np.asarray(symmetric(np.asarray(normal((N, N), 5, "complex128"))))
TARGET = np.asarray(normal((N, P), 6, "complex128"))
DATA = np.asarray(normal((40, N), 7, "complex128")) * np.geomspace(1, 0.1, N)


def energy(x, h):
    return jnp.sum((x.conj() * (h @ x)).real)


def distance(x, target):
    return jnp.sum(jnp.abs(x - target) ** 2)


def start(seed=0, n=N, p=P, **keywords):
    return cdx.stiefel.random(jax.random.key(seed), (n, p), jnp.complex128, **keywords)


# How far from the optimum each method may end after 400 steps.
METHODS = {
    "auto": 1e-12,
    "proximal": 1e-12,
    "tangential": 1e-12,
    "lbfgs": 1e-12,
    "newton": 1e-12,
    "sampling": 1e-10,
    "geometric": 1e-8,
    "polyak": 1e-2,
    "normalized": 1e-2,
    "diminishing": 0.2,
}


@pytest.mark.parametrize(
    "method", mostly(METHODS, slow=METHODS.keys() - {"tangential", "proximal"})
)
def test_every_method_finds_least_eigenvalues_and_the_polar_factor(method):
    least = np.linalg.eigvalsh(H)[:P].sum()
    eigen = cdx.minimize(energy, start(), args=(H,), method=method, max_steps=400)
    assert eigen.value.dtype == jnp.float64
    assert -1e-12 <= float(eigen.value) - least <= METHODS[method]
    nearest = polar(TARGET)
    best = float(distance(nearest, TARGET))
    close = cdx.minimize(
        distance, start(), args=(TARGET,), method=method, max_steps=400
    )
    assert -1e-12 <= float(close.value) - best <= METHODS[method]
    if METHODS[method] <= 1e-8:
        # "lbfgs" may end where values differ by rounding alone.
        for found in (eigen, close):
            assert float(found.stationarity) <= 2 * float(found.tolerance)
        np.testing.assert_allclose(close.projected, nearest, atol=1e-4)
    assert float(eigen.feasibility) < 1e-10


def test_an_optimiser_sees_the_direction_of_steepest_ascent():
    tx = optax.adam(optax.cosine_decay_schedule(0.05, 400))
    found = cdx.minimize(energy, start(), args=(H,), method=tx, max_steps=400)
    assert float(found.value) == pytest.approx(np.linalg.eigvalsh(H)[:P].sum())


@pytest.mark.parametrize(
    "metric", mostly(["Hermitian", "real", "callable"], slow=["real", "callable"])
)
def test_generalised_eigenvalues_are_those_of_scipy(metric):
    b = spd(N, None if metric == "real" else "complex128")
    B = (lambda v: b @ v) if metric == "callable" else b
    mask = cdx.Stiefel(B=B)
    found = cdx.minimize(energy, start(B=b), mask, args=(H,), tol=1e-9)
    expected = scipy.linalg.eigh(H, b, eigvals_only=True)[:P].sum()
    assert bool(found.converged)
    assert float(found.value) == pytest.approx(expected, abs=1e-9)
    x = np.asarray(found.projected)
    np.testing.assert_allclose(x.conj().T @ b @ x, np.eye(P), atol=1e-12)


def test_single_precision_with_a_metric_is_projected_in_double():
    b = spd(N, "complex128").astype("complex64")
    mask = cdx.Stiefel(B=b)
    x0 = start(B=b).astype("complex64")
    found = cdx.minimize(energy, x0, mask, args=(H.astype("complex64"),))
    assert found.projected.dtype == jnp.complex64
    expected = scipy.linalg.eigh(H, b, eigvals_only=True)[:P].sum()
    assert float(found.value) == pytest.approx(expected, abs=1e-4)
    assert float(found.feasibility) < 1e-5


@pytest.mark.parametrize(
    "method", mostly(["auto", "newton", "sampling"], slow=["newton", "sampling"])
)
def test_real_and_complex_leaves_are_minimised_together(method):
    target = {"u": TARGET, "w": np.asarray(normal((6, 2), 1)), "b": np.ones(3)}
    target["c"] = np.ones(2) * (1 + 2j)
    x0 = {"u": start(), "w": jnp.eye(6, 2), "b": jnp.zeros(3), "c": jnp.zeros(2) * 1j}
    mask = cdx.where("u", "w")

    def f(x):
        return sum(jnp.sum(jnp.abs(x[k] - target[k]) ** 2) for k in x)

    found = cdx.minimize(f, x0, mask, method=method, max_steps=300)
    # Samples of gradients end near the tolerance, on either side of it.
    assert float(found.stationarity) <= 4 * float(found.tolerance)
    for name in ("u", "w"):
        assert found.params[name].dtype == x0[name].dtype
        np.testing.assert_allclose(found.params[name], polar(target[name]), atol=1e-5)
    np.testing.assert_allclose(found.params["c"], target["c"], atol=1e-5)
    np.testing.assert_allclose(found.params["b"], target["b"], atol=1e-5)


def test_sparse_components_of_complex_data_are_stationary():
    """0 ∈ ∇f + xS + w·∂‖x‖₁ for a Hermitian S, which the nonzero entries determine."""
    weight = 0.5

    def f(x):
        return -jnp.sum(jnp.abs(DATA @ x) ** 2) / 2

    found = cdx.minimize(f, start(), regularizer=cdx.prox.l1(weight), tol=1e-10)
    assert bool(found.converged)
    x = np.asarray(found.proximal)
    assert 0.2 < np.mean(x == 0) < 0.9
    g = -DATA.conj().T @ (DATA @ x)
    free = x != 0
    basis = []
    for i in range(P):
        for j in range(i, P):
            for phase in (1, 1j) if i != j else (1,):
                s = np.zeros((P, P), complex)
                s[i, j] += phase
                s[j, i] += np.conj(phase)
                basis.append(x @ s)
    columns = np.stack([np.r_[b[free].real, b[free].imag] for b in basis], 1)
    right = (g + weight * x / np.where(free, np.abs(x), 1))[free]
    right = np.r_[right.real, right.imag]
    assert len(right) > len(basis)
    s, *_ = np.linalg.lstsq(columns, -right, rcond=None)
    assert np.abs(columns @ s + right).max() < 1e-6
    left = g + np.einsum("k,kij->ij", s, np.stack(basis))
    assert np.abs(left[~free]).max() <= weight + 1e-6


def test_groups_of_rows_vanish_together():
    r = cdx.prox.l21(1.5)
    found = cdx.minimize(
        lambda x: -jnp.sum(jnp.abs(DATA @ x) ** 2) / 2, start(), regularizer=r
    )
    zero = np.asarray(found.proximal) == 0
    assert bool(found.converged)
    assert 0 < zero.all(1).sum() < N
    np.testing.assert_array_equal(zero.any(1), zero.all(1))


@pytest.mark.slow
def test_many_starts_and_vmap():
    found = cdx.minimize(
        distance, start(), args=(TARGET,), starts=3, key=jax.random.key(1)
    )
    best = float(distance(polar(TARGET), TARGET))
    np.testing.assert_allclose(np.asarray(found.values), best, atol=1e-9)
    targets = normal((2, N, P), 9, "complex128")

    def solve(target):
        return cdx.minimize(distance, start(), args=(target,)).projected

    ends = jax.vmap(solve)(targets)
    np.testing.assert_allclose(ends, polar(targets), atol=1e-5)


def central(f, step=1e-5):
    return (f(step) - f(-step)) / (2 * step)


@pytest.mark.slow
def test_the_derivative_of_the_polar_factor_is_that_of_finite_differences():
    by_target, w = normal((2, N, P), 8, "complex128")

    def loss(t):
        target = TARGET + t * by_target
        found = cdx.minimize(distance, start(), args=(target,), tol=1e-12)
        return jnp.sum((w.conj() * found.projected).real)

    def exact(t):
        return inner(np.asarray(w), polar(TARGET + t * np.asarray(by_target)))

    expected = central(exact)
    assert abs(expected) > 1e-2
    assert float(jax.grad(loss)(0.0)) == pytest.approx(expected, rel=1e-6)
    _, forward = jax.jvp(loss, (0.0,), (1.0,))
    assert float(forward) == pytest.approx(expected, rel=1e-6)


def test_the_gradient_with_respect_to_complex_data_has_the_convention_of_jax():
    """That of a projector to an eigenspace, which phases do not change."""
    w = np.asarray(symmetric(np.asarray(normal((N, N), 9, "complex128"))))
    change = np.asarray(symmetric(np.asarray(normal((N, N), 10, "complex128"))))

    def loss(h):
        x = cdx.minimize(energy, start(), args=(h,), tol=1e-12).projected
        return jnp.sum((w.conj() * (x @ x.conj().T)).real)

    def exact(t):
        v = np.linalg.eigh(H + t * change)[1][:, :P]
        return inner(w, v @ v.conj().T)

    slope = jax.grad(loss)(jnp.asarray(H)).conj()
    assert inner(slope, change) == pytest.approx(central(exact), rel=1e-5)


def test_the_derivative_with_respect_to_a_hermitian_metric():
    b = spd(N, "complex128")
    change = 0.1 * np.asarray(symmetric(np.asarray(normal((N, N), 11, "complex128"))))
    w = np.asarray(symmetric(np.asarray(normal((N, N), 9, "complex128"))))

    def loss(t):
        mask = cdx.Stiefel(B=b + t * change)
        x = cdx.minimize(energy, start(B=b), mask, args=(H,), tol=1e-14).projected
        return jnp.sum((w.conj() * (x @ x.conj().T)).real)

    def exact(t):
        v = scipy.linalg.eigh(H, b + t * change)[1][:, :P]
        return inner(w, v @ v.conj().T)

    assert float(jax.grad(loss)(0.0)) == pytest.approx(central(exact), rel=1e-5)


def test_scipy_sees_real_and_imaginary_parts():
    h = cdx.scipy_objective(lambda x: distance(x, TARGET), start())
    assert h.start.shape == (2 * N * P,)
    assert h.start.dtype == np.float64
    d = np.random.default_rng(0).normal(size=h.start.size)
    slope = central(lambda t: h.value(h.start + t * d))
    assert h.gradient(h.start) @ d == pytest.approx(slope, rel=1e-6)
    bend = central(lambda t: h.gradient(h.start + t * d))
    np.testing.assert_allclose(h.hessp(h.start, d), bend, rtol=1e-5, atol=1e-5)
    found = scipy.optimize.minimize(h.both, h.start, jac=True, tol=1e-10)
    np.testing.assert_allclose(h.restore(found.x), polar(TARGET), atol=1e-5)
