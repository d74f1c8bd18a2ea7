"""Both algorithms of the paper end where an independent method says they should.

Step sizes are those of the theory, Ση = ∞ and Ση² < ∞. A run is judged by the answer
known from NumPy or SciPy, and by feasibility and stationarity shrinking on the way.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
import scipy.optimize

import cdopt_jax as cdx
from tests.oracles import assert_close, normal, polar, spd, symmetric


def decaying(first, plateau):
    """About ``first`` for ``plateau`` steps, then falling like k^(−0.6)."""
    return lambda step: first * (1 + step / plateau) ** -0.6


def run(tx, direction, x, steps, noise=0.0):
    """All points of a run whose directions carry bounded noise."""

    def step(carry, error):
        x, state = carry
        updates, state = tx.update(direction(x) + error, state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    errors = noise * jax.random.uniform(jax.random.key(0), (steps, *x.shape), None, -1)
    return jax.jit(lambda x: jax.lax.scan(step, (x, tx.init(x)), errors)[1])(x)


def shrinking(direction, xs, mask=None, *, final, factor=10.0):
    """Feasibility and stationarity at the end are small, and fell after a tenth."""

    def measure(x):
        (feasible,) = cdx.feasibility(x, mask).values()
        (stationary,) = cdx.stationarity(x, direction(x), mask).values()
        return np.array([feasible, stationary])

    early, late = measure(xs[len(xs) // 10]), measure(xs[-1])
    assert (late <= final).all()
    assert (late <= early / factor + 1e-12).all()


def projector(x):
    """The orthogonal projector onto the span of the columns."""
    q = np.linalg.qr(x)[0]
    return q @ q.T


def symmetric_matrix(n, p, seed):
    """Eigenvalues p of which stand out, and random eigenvectors."""
    q = np.asarray(polar(normal((n, n), seed)))
    values = np.r_[np.linspace(2.5, 2, p), np.linspace(0.5, 0, n - p)]
    return jnp.asarray((q * values) @ q.T)


RECIPES = {
    # β, η₀, steps before the decay, steps. The second keeps to the theory's bounds
    # with M̃ = ‖C‖: β = 60M̃ and η ≤ 1/(2β), so it goes slowly.
    "as used": lambda _: (5.0, 0.05, 400, 4000),
    "as proved": lambda m: (60 * m, 1 / (120 * m), 20_000, 20_000),
}


@pytest.mark.parametrize(
    ("n", "p", "at", "recipe"),
    [
        (7, 1, "x", "as used"),
        (12, 4, "A(x)", "as used"),
        (7, 1, "A(x)", "as proved"),
        (12, 4, "x", "as proved"),
    ],
)
def test_algorithm_1_finds_the_leading_eigenspace(n, p, at, recipe):
    c = symmetric_matrix(n, p, 0)
    bound = float(jnp.linalg.norm(c))
    beta, eta, plateau, steps = RECIPES[recipe](bound)

    def direction(x):
        return -c @ (x if at == "x" else cdx.dissolve(x))

    tx = optax.chain(cdx.dissolve_gradients(beta), optax.sgd(decaying(eta, plateau)))
    xs = run(tx, direction, cdx.stiefel.random(jax.random.key(1), (n, p)), steps)
    shrinking(direction, xs, final=1e-6)
    leading = np.linalg.eigh(c)[1][:, -p:]
    assert_close(projector(xs[-1]), leading @ leading.T, 1e-6)
    if recipe == "as proved":
        taken = cdx.stiefel.vjp(xs, jax.vmap(direction)(xs))
        assert jnp.linalg.norm(taken, axis=(1, 2)).max() <= bound
        assert cdx.stiefel.feasibility(xs).max() <= 1 / 6


def test_algorithm_1_averages_noise_out():
    c = symmetric_matrix(12, 4, 1)
    tx = optax.chain(cdx.dissolve_gradients(5.0), optax.sgd(decaying(0.05, 100)))
    x = cdx.stiefel.random(jax.random.key(1), (12, 4))
    xs = run(tx, lambda x: -c @ x, x, 20_000, noise=0.3)
    leading = np.linalg.eigh(c)[1][:, -4:]

    def errors(xs):
        off = [np.linalg.norm(projector(x) - leading @ leading.T) for x in xs]
        return np.mean(off), float(cdx.stiefel.feasibility(xs).mean())

    # With η falling by 10^0.6 ≈ 4 between the two, errors of order √η halve.
    early, late = errors(xs[1500:2500:20]), errors(xs[-1000::20])
    assert late[0] <= 0.7 * early[0] <= 0.3
    assert late[1] <= 0.7 * early[1] <= 0.3


@pytest.mark.parametrize(("n", "p"), [(1, 1), (7, 1), (5, 5), (12, 4)])
def test_algorithm_1_solves_procrustes_problems(n, p):
    a = jnp.asarray(spd(n)) if n == p else jnp.eye(n)  # solvable by SVD if square
    c = polar(normal((n, p), 0)) + 0.1 * normal((n, p), 1)
    answer = polar(a.T @ c)
    x = polar(normal((n, p), 2))
    if n == p and np.linalg.det(x) * np.linalg.det(answer) < 0:
        x[:, 0] *= -1  # O(n) has two components, and no path leads across

    def direction(x):
        return a.T @ (a @ x - c)

    tx = optax.chain(cdx.dissolve_gradients(20.0), optax.sgd(decaying(0.01, 2000)))
    xs = run(tx, direction, jnp.asarray(x), 10_000)
    shrinking(direction, xs, final=1e-6)
    assert_close(xs[-1], answer, 1e-6)


def test_algorithm_1_finds_the_normal_of_a_hyperplane_through_outliers():
    rng = np.random.default_rng(0)
    normal_vector = polar(rng.standard_normal((5, 1)))
    inliers = rng.standard_normal((200, 5))
    inliers -= inliers @ normal_vector @ normal_vector.T
    outliers = 0.5 * rng.standard_normal((20, 5))
    data = jnp.asarray(np.r_[inliers, outliers]) / 200
    direction = jax.grad(lambda x: jnp.sum(jnp.abs(data @ x)))  # not smooth at the end
    tx = optax.chain(cdx.dissolve_gradients(10.0), optax.sgd(decaying(0.02, 500)))
    xs = run(tx, direction, jnp.asarray(polar(rng.standard_normal((5, 1)))), 20_000)
    error = [np.linalg.norm(projector(x) - projector(normal_vector)) for x in xs[::500]]
    assert error[-1] <= 5e-3
    assert error[-1] <= 0.5 * error[4]
    assert cdx.stiefel.feasibility(xs[-1]) <= 1e-3


def test_algorithm_1_solves_a_generalized_eigenproblem():
    n, p = 10, 3
    b, c = spd(n), symmetric_matrix(n, p, 2)
    mask = cdx.Stiefel(B=jnp.asarray(b))

    def direction(x):
        return -c @ x

    tx = optax.chain(cdx.dissolve_gradients(5.0, mask), optax.sgd(decaying(0.01, 2000)))
    x = cdx.stiefel.random(jax.random.key(0), (n, p), B=jnp.asarray(b))
    xs = run(tx, direction, x, 10_000)
    shrinking(direction, xs, mask, final=1e-6)
    values, vectors = scipy.linalg.eigh(c, b)
    assert_close(projector(xs[-1]), projector(vectors[:, -p:]), 1e-6)
    assert_close(np.trace(xs[-1].T @ c @ xs[-1]), values[-p:].sum(), 1e-6)


def sparse_value(c, w, x):
    """The objective of sparse PCA, −tr(XᵀCX)/2 + w‖X‖₁."""
    return -np.trace(x.T @ c @ x) / 2 + w * np.abs(x).sum()


def sparse_stationarity(c, w, x):
    """The distance of 0 to the projected subdifferential, by bounded least squares."""
    x, q = np.asarray(x), polar(x)
    zeros = np.eye(x.size)[np.flatnonzero(x == 0)].reshape(-1, *x.shape)

    def projected(d):
        return (d - q @ symmetric(q.T @ d)).ravel()

    free = np.stack([projected(z) for z in zeros], axis=1)
    fixed = projected(-c @ x + w * np.sign(x))
    return (2 * scipy.optimize.lsq_linear(free, -fixed, (-w, w)).cost) ** 0.5


def best_of_subgradient_descent(c, w, x, steps):
    """The lowest value on the way of Riemannian subgradient descent, by SVDs."""
    values = []
    for step in range(steps):
        g = -c @ x + w * np.sign(x)
        eta = 0.1 * (1 + step / 100) ** -0.6
        x = polar(x - eta * (g - x @ symmetric(x.T @ g)))
        values.append(sparse_value(c, w, x))
    return min(values)


@pytest.mark.parametrize(
    ("seed", "tangential"),
    [
        (0, False),
        (1, True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(0, True), (1, False), (2, False), (2, True)]
        ),
    ],
)
def test_algorithm_2_solves_sparse_pca_as_subgradient_descent_does(seed, tangential):
    n, p, w = 12, 3, 0.15
    data = np.random.default_rng(seed).standard_normal((40, n))
    c = np.corrcoef(data.T)
    x = np.linalg.eigh(c)[1][:, -p:]
    tx = cdx.proximal_step(decaying(0.05, 200), cdx.prox.l1(w), tangential=tangential)
    xs = run(tx, lambda x: -c @ x, jnp.asarray(x), 20_000)
    early, late = np.asarray(xs[2000]), np.asarray(xs[-1])
    assert (late == 0).sum() >= n
    # Both fall with η, here by a factor of four, the latter faster.
    assert cdx.stiefel.feasibility(late) <= cdx.stiefel.feasibility(early) / 3 <= 0.03
    before, after = (sparse_stationarity(c, w, x) for x in (early, late))
    assert after <= min(before / 3, 1e-3)
    reference = best_of_subgradient_descent(c, w, x, 5000)
    assert sparse_value(c, w, polar(late)) <= reference + 1e-3


@pytest.mark.parametrize(
    ("n", "p", "tangential"),
    [
        (7, 1, True),
        (12, 4, False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(7, 1, False), (12, 4, True)]
        ),
    ],
)
def test_algorithm_2_finds_the_sparse_components_of_a_diagonal_matrix(n, p, tangential):
    # Unit vectors minimise ‖X‖₁ over the manifold, and the leading ones −tr(XᵀCX) too.
    c = jnp.diag(jnp.where(jnp.arange(n) < p, 3.0, 0.5))
    tx = cdx.proximal_step(decaying(0.02, 500), cdx.prox.l1(0.3), tangential=tangential)
    # Every unit vector is a local solution, so the start has to be near the right ones.
    x = jnp.asarray(polar(np.eye(n, p) + 0.2 * np.asarray(normal((n, p), 0))))
    xs = run(tx, lambda x: -c @ x, x, 20_000)
    end = np.abs(xs[-1])
    assert (end[p:] == 0).all()
    assert ((end > 0).sum(axis=0) == 1).all()
    assert cdx.stiefel.feasibility(xs[-1]) <= cdx.stiefel.feasibility(xs[2000]) / 3
    assert_close(polar(end), end.round(), 1e-12)
