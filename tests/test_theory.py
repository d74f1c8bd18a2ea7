"""The paper's bounds as functions, on a problem where they can be checked."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.oracles import descend, normal, polar, symmetric


def problem():
    m = symmetric(normal((8, 8), 0))
    return m, lambda x: jnp.sum(x * (m @ x)) / 2


def test_the_sampled_bound_is_a_bound_from_below_and_not_far_from_it():
    m, f = problem()
    x = jnp.asarray(polar(normal((8, 3), 1)))
    sampled = cdx.theory.estimate_gradient_bound(f, x, key=jax.random.key(0))
    # ‖mx‖_F ≤ ‖m‖₂‖x‖_F, and ‖x‖_F² = p + tr E ≤ p + √p in Ω₁.
    above = np.linalg.norm(m, 2) * np.sqrt(3 + np.sqrt(3))
    assert 0.3 * above <= sampled <= above


def test_only_constrained_leaves_are_drawn_and_counted():
    _, f = problem()
    params = {"x": jnp.asarray(polar(normal((8, 3), 1))), "free": 100.0 * jnp.ones(2)}
    mask = {"x": True, "free": False}

    def both(params):
        return f(params["x"]) + jnp.sum(params["free"] ** 3)

    bound = cdx.theory.estimate_gradient_bound(
        both, params, mask, key=jax.random.key(0)
    )
    assert bound < 100


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_algorithm_1_stays_inside_under_the_bounds_it_is_given(seed):
    m, f = problem()
    above = float(np.linalg.norm(m, 2) * np.sqrt(3 + np.sqrt(3)))
    # On Ω_{1/6}, J_A(x) has norm at most 1 + ρ/2 + 3ρ²/8.
    beta = cdx.theory.penalty_weight(above, 1.1 * above)
    assert beta == 66 * above
    tx = optax.chain(
        cdx.dissolve_gradients(beta), optax.sgd(cdx.theory.step_size(beta))
    )
    x = cdx.stiefel.random(jax.random.key(seed), (8, 3))
    _, points = descend(tx, jax.grad(f), x, 200)
    assert jnp.max(cdx.stiefel.feasibility(points)) <= 1 / 6


def test_the_radii_grow_with_beta_towards_one_half():
    radii = [cdx.theory.stationary_radius(beta, 2.0) for beta in (0.1, 1.0, 1e6)]
    assert radii == sorted(radii)
    assert radii[-1] == pytest.approx(0.5, abs=1e-5)
    assert cdx.theory.minimizer_radius(1.0, 2.0) < radii[1]
    assert cdx.theory.proximal_step_size(1.0, 1.0) == 1 / 38
