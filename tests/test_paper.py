"""The identities and theorems of the paper's sections 3 and 4, on the package.

E = XᴴX − I and Ω_r = {‖E‖_F ≤ r}. M₁ bounds the subgradients of f, M̃ the directions
of a method. Identities hold up to rounding, 1e-12; inequalities get 1e-12 of slack.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

import cdopt_jax as cdx
from cdopt_jax import stiefel
from tests.compiled import array_functions
from tests.oracles import (
    SHAPES,
    assert_close,
    each_case,
    each_field,
    each_metric,
    each_residual,
    each_seed,
    gradient,
    gram_residual,
    inner,
    metric_of,
    near,
    normal,
    points,
    polar,
    symmetric,
    transpose,
    worst_run,
)

TOL = 1e-12
LIMIT = (7 / 3) ** 0.5  # the largest fixed point of a(σ)
project = jax.jit(stiefel.project)
dissolve = jax.jit(stiefel.dissolve)
residual_after = jax.jit(lambda x: stiefel.residual(stiefel.dissolve(x)))
each_size = pytest.mark.parametrize(("n", "p"), [(1, 1), (7, 1), (5, 5), (12, 4)])


@each_field
@each_case
def test_residual_of_the_dissolved_point_factors(shape, metric, dtype):
    b = np.asarray(metric_of(metric, shape[-2], dtype)[1])
    for x, d, w in points(shape, 3, dtype):
        e, one = gram_residual(x, b), np.eye(shape[-1])
        m = e + one
        factored = e @ e @ e @ (9 * m @ m - 33 * m + 64 * one) / 64
        found = array_functions(metric, shape[-2], dtype)(x, d, w)
        assert_close(gram_residual(np.asarray(found["dissolve"]), b), factored, TOL)


SCHATTEN = {"frobenius": 2, "spectral": np.inf, "schatten-4": 4}


@each_field
@each_residual
@each_seed
@pytest.mark.parametrize("order", SCHATTEN)
def test_dissolving_cubes_the_residual_in_every_norm(order, seed, kind, dtype):
    def size(e):
        return np.linalg.norm(np.linalg.eigvalsh(e), SCHATTEN[order])

    for n, p, r in ((1, 1, 1.0), (7, 1, 0.5), (5, 5, 1.0), (12, 4, 0.9), (9, 3, 0.01)):
        x = np.asarray(near(n, p, seed, r, kind, dtype=dtype))
        after = size(residual_after(x))
        assert after <= size(gram_residual(x)) ** 3 + TOL


@each_field
@each_case
def test_on_the_manifold_the_derivative_is_the_tangent_projection(shape, metric, dtype):
    b = np.asarray(metric_of(metric, shape[-2], dtype)[1])
    found = array_functions(metric, shape[-2], dtype)
    for x, d, w in points(shape, 3, dtype):
        x = polar(x, b)
        t = np.asarray(found(x, d, w)["jvp of d"])
        assert_close(t, d - x @ symmetric(transpose(x) @ b @ d), TOL)
        assert_close(found(x, t, w)["jvp of d"], t, TOL)
        assert_close(found(x, d, w)["dissolve"], x, TOL)


@each_field
@each_case
def test_pulled_back_directions_barely_meet_the_penalty(shape, metric, dtype):
    b = np.asarray(metric_of(metric, shape[-2], dtype)[1])
    for x, d, w in points(shape, 3, dtype):
        e = gram_residual(x, b)
        found = array_functions(metric, shape[-2], dtype)(x, d, w)
        left = inner(found["vjp of w"], x @ e)
        right = 15 / 8 * inner(symmetric(transpose(x) @ w), e @ e @ e)
        assert abs(left - right) <= TOL * (1 + abs(right))


@each_field
@each_seed
@each_size
def test_dissolving_is_undone_through_the_singular_values(n, p, seed, dtype):
    u, v = polar(normal((n, p), seed, dtype)), polar(normal((p, p), seed + 9, dtype))
    x = (u * np.linspace(0.3, 1.9, p)) @ v
    y = np.asarray(dissolve(x))
    u, sigma, vt = np.linalg.svd(y, full_matrices=False)
    roots = [
        scipy.optimize.brentq(
            lambda t, s=s: t * (15 - 10 * t**2 + 3 * t**4) - 8 * s, 0, 9
        )
        for s in sigma
    ]
    # brentq stops at 2e-12; a′ is not below 0.03 here, but would be 0 at σ = 1.
    assert_close((u * roots) @ vt, x, 1e-9)


def test_the_scalar_map_increases():
    t = jnp.linspace(-3.0, 3.0, 601)
    slope = jax.vmap(jax.grad(lambda t: stiefel.dissolve(t[None, None])[0, 0]))(t)
    assert_close(slope, 15 / 8 * (t**2 - 1) ** 2, TOL)


@each_field
@each_metric
def test_repeated_dissolving_ends_at_the_polar_factor(metric, dtype):
    B, b = metric_of(metric, 12, dtype)
    q, v = polar(normal((12, 5), 0, dtype), b), polar(normal((5, 5), 1, dtype))
    sigma = np.array([1e-3, 0.4, 1.0, 1.4, 0.999 * LIMIT])
    x = jnp.asarray(q @ (v * sigma) @ v.conj().T)
    end = jax.lax.fori_loop(0, 40, lambda _, x: stiefel.dissolve(x, B=B), x)
    assert_close(end, q, TOL)
    assert stiefel.dissolve(jnp.full((1, 1), 1.001 * LIMIT)) > 1.001 * LIMIT


@each_field
@each_residual
@each_seed
def test_projecting_moves_a_point_and_its_dissolved_image_little(seed, kind, dtype):
    for n, p, r in ((1, 1, 0.5), (7, 1, 0.1), (5, 5, 0.5), (12, 4, 0.5), (9, 3, 1e-2)):
        x = np.asarray(near(n, p, seed, r, kind, dtype=dtype))
        y = project(x)
        assert np.linalg.norm(x - y) <= r + TOL
        assert np.linalg.norm(dissolve(x) - y) <= 4 * r**3 + TOL


@jax.jit
def _dissolving(x, c, weight, beta):
    """h and its gradient for f(X) = weight·‖X‖₁ + Re⟨C, X⟩."""

    def f(y):
        return weight * jnp.abs(y).sum() + jnp.sum(c.conj() * y).real

    h = cdx.objective(f, beta=beta)
    return h(x), gradient(h)(x)


def _lipschitz(n, p, seed, dtype):
    """A matrix C, and a bound of the subgradients of ‖X‖₁ + Re⟨C, X⟩ everywhere."""
    c = normal((n, p), seed + 50, dtype)
    return c, (n * p) ** 0.5 + float(np.linalg.norm(c))


@each_field
@each_residual
@each_seed
@pytest.mark.parametrize("beta", [0.1, 1.0, 100.0])
def test_projecting_lowers_the_dissolving_function(beta, seed, kind, dtype):
    for n, p, r in ((1, 1, 0.5), (7, 1, 0.1), (5, 5, 0.5), (12, 4, 0.01)):
        c, m1 = _lipschitz(n, p, seed, dtype)
        x = near(n, p, seed, r, kind, dtype=dtype)
        before, _ = _dissolving(x, c, 1.0, beta)
        after, _ = _dissolving(jnp.asarray(polar(x)), c, 1.0, beta)
        assert after <= before - (beta / 4 - 4 * m1 * r) * r**2 + TOL


@each_field
@each_residual
@each_seed
@pytest.mark.parametrize("beta", [0.1, 1.0, 100.0])
def test_stationary_points_are_feasible(beta, seed, kind, dtype):
    for n, p in ((1, 1), (7, 1), (5, 5), (12, 4)):
        c, m1 = _lipschitz(n, p, seed, dtype)
        r = 0.999 * beta / (2 * beta + 8 * m1)
        x = np.asarray(near(n, p, seed, r, kind, dtype=dtype))
        against = x @ gram_residual(x)  # the worst f opposes the penalty
        worst = -m1 * against / np.linalg.norm(against)
        for weight, matrix in ((1.0, c), (0.0, worst)):
            slope = _dissolving(x, matrix, weight, beta)[1]
            assert np.linalg.norm(slope) >= beta / 4 * r


@each_field
@pytest.mark.parametrize(
    ("shape", "metric"),
    [(shape, "none") for shape in SHAPES]
    + [((1, 1), "array"), ((12, 4), "callable"), ((3, 8, 3), "array")],
)
def test_on_the_manifold_only_the_projected_gradient_is_left(shape, metric, dtype):
    B, b = metric_of(metric, shape[-2], dtype)
    mask = cdx.Stiefel(rows=-2, B=B)

    def f(y, c):
        return jnp.sum(jnp.abs(y)) + jnp.sum(c * y**3).real

    h = jax.jit(jax.value_and_grad(cdx.objective(f, mask, beta=3.0)))
    for x, c in points(shape, 2, dtype):
        x = polar(x, b)
        value, slope = h(x, c)
        g = np.asarray(jnp.sign(x)) + (3 * c * x**2).conj()
        assert_close(value, f(x, c), TOL)
        assert_close(slope.conj(), g - b @ x @ symmetric(transpose(x) @ g), TOL)


@each_field
@each_size
def test_algorithm_1_never_leaves_the_neighbourhood(n, p, dtype):
    @jax.jit
    def sizes(x, bound, part):
        beta = 60 * bound
        steps = optax.chain(cdx.add_penalty(beta), optax.sgd(part / (2 * beta)))
        return worst_run(steps, x, bound, 300)

    for kind in ("spread", "stretched", "shrunk"):
        x = near(n, p, 0, 1 / 6, kind, dtype=dtype)
        for bound, part in ((0.7, 1.0), (0.7, 0.1), (30.0, 0.5)):
            assert sizes(x, bound, part).max() <= 1 / 6 + TOL


@each_field
@each_size
def test_algorithm_2_never_leaves_the_neighbourhood(n, p, dtype):
    bound, count = 0.7, 300

    @jax.jit
    def sizes(x, eta, weight):
        steps = cdx.proximal_step(eta, cdx.prox.l1(weight))
        return worst_run(steps, x, bound, count)

    for weight in (0.0, 0.3, 3.0):
        m = bound + weight * (n * p) ** 0.5
        for kind in ("spread", "stretched", "shrunk"):
            x = near(n, p, 0, 1 / 6, kind, dtype=dtype)
            reached = sizes(x, 1 / (19 * m), weight)
            assert reached.max() <= 1 / 6 + TOL
            # ‖E₊‖² ≤ (‖E‖/36 + 3ηM)² ≤ ‖E‖²/648 + 18η²M², where ηM = 1/19; summed,
            # the first residual counts as well.
            squares = 648 / 647 * (1 / 6**2 / 648 + 18 * count / 19**2)
            assert (reached**2).sum() <= squares
