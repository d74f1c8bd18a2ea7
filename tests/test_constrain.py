"""`constrain`: any optimiser stays on the manifold and stops only where it should."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.marks import mostly
from tests.oracles import descend, guarded_algorithm_1, normal, polar, spd, spectral

N, P, STEPS = 20, 4, 400

OPTIMISERS = {
    "sgd": lambda lr: optax.sgd(lr),
    "momentum": lambda lr: optax.sgd(lr, momentum=0.9),
    "adam": optax.adam,
    "adamw": lambda lr: optax.adamw(lr, weight_decay=0.1),
    "lion": optax.lion,
    "rmsprop": optax.rmsprop,
    "yogi": optax.yogi,
    "lamb": optax.lamb,
}


def pca(seed, b=None):
    """A symmetric matrix, its loss, and the least value on the manifold."""
    q = polar(normal((N, N), seed))
    m = (q * np.geomspace(1, 1e-2, N)) @ q.T
    if b is None:
        best = -np.linalg.eigvalsh(m)[-P:].sum()
    else:
        root = np.linalg.cholesky(np.linalg.inv(b))
        best = -np.linalg.eigvalsh(root.T @ m @ root)[-P:].sum()
    return lambda x: -jnp.sum(x * (m @ x)), best


def run(tx, loss, x, steps=STEPS) -> tuple[Any, Any]:
    return descend(tx, jax.grad(loss), x, steps)[0]


def searched(tx, loss, x, steps) -> Any:
    """The end of a run with a line search."""

    def step(_, carry):
        x, state = carry
        value, grad = jax.value_and_grad(loss)(x)
        updates, state = tx.update(
            grad, state, x, value=value, grad=grad, value_fn=loss
        )
        return optax.apply_updates(x, updates), state

    return jax.jit(lambda x: jax.lax.fori_loop(0, steps, step, (x, tx.init(x)))[0])(x)


def falls(lr):
    return optax.cosine_decay_schedule(lr, STEPS)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser_ends_at_a_stationary_point(name):
    loss, best = pca(0)
    x = cdx.stiefel.random(jax.random.key(0), (N, P))
    rate = {"sgd": 0.3, "momentum": 0.3, "lion": 0.01}.get(name, 0.03)
    # Lion's steps have one length whatever the gradient: it needs a longer decay.
    steps = 5 * STEPS if name == "lion" else STEPS
    start = cdx.stationarity(x, jax.grad(loss)(x))[""]
    tx = cdx.constrain(OPTIMISERS[name](optax.cosine_decay_schedule(rate, steps)))
    x, _ = run(tx, loss, x, steps)
    assert cdx.stationarity(x, jax.grad(loss)(x))[""] <= 1e-3 * start
    assert loss(x) <= best + 1e-3
    assert cdx.stiefel.feasibility(x) <= 1e-9


@pytest.mark.parametrize(
    "name", mostly(["adam", "lamb", "lion", "momentum"], slow=["lamb", "momentum"])
)
def test_at_leading_eigenvectors_in_single_precision_nothing_moves(name):
    """A stationary point is a fixed point: all there is to see is rounding."""
    tx = cdx.constrain(OPTIMISERS[name](0.1))

    @jax.jit
    def moved(m, x):
        grads = -2 * jnp.matmul(m, x, precision="highest")
        updates, _ = tx.update(grads, tx.init(x), x)
        return jnp.linalg.norm(updates)

    for seed in range(5):
        a = np.asarray(normal((50, 50), seed))
        values, vectors = np.linalg.eigh(a @ a.T)
        m = (vectors * values) @ vectors.T
        x = vectors[:, -5:] @ polar(normal((5, 5), seed))
        assert moved(jnp.float32(m), jnp.float32(x)) < 1e-4


@pytest.mark.parametrize("shape", [(300, 200), (400, 10)])
def test_near_a_solution_in_single_precision_the_gradient_is_not_lost(shape):
    """What is left of a gradient is spread over all entries, each of them small."""
    n, p = shape
    q = np.asarray(polar(normal((n, n), 0)))
    m = (q * np.geomspace(1, 1e-3, n)) @ q.T
    x = polar(q[:, :p] @ polar(normal((p, p), 1)) + 3e-5 / n**0.5 * normal(shape, 2))
    grads = -m @ x
    product = x.T @ grads
    truth = grads - x @ (product + product.T) / 2
    tx = cdx.project_gradients()
    found, _ = tx.update(jnp.float32(grads), tx.init(x), jnp.float32(x))
    off = np.asarray(found) - truth
    assert np.linalg.norm(off) <= 0.1 * np.linalg.norm(truth)


@pytest.mark.parametrize("name", ["momentum", "adam", "lion"])
def test_every_ordinary_step_in_single_precision_ends_within_4e_6(name):
    loss, _ = pca(0)
    tx = cdx.constrain(OPTIMISERS[name]({"momentum": 0.3}.get(name, 0.01)))
    x = cdx.stiefel.random(jax.random.key(0), (N, P), jnp.float32)
    (_, state), points = descend(tx, jax.grad(loss), x, 100)
    assert spectral(points) <= 4e-6
    assert optax.tree.get(state, "num_shortened") == 0


@pytest.mark.parametrize(("name", "usual"), [("momentum", 1.0), ("adam", 0.05)])
def test_a_learning_rate_that_is_too_large_is_no_harm_under_a_decay(name, usual):
    loss, best = pca(1)
    start = cdx.stiefel.random(jax.random.key(1), (N, P))

    @jax.jit
    def end(rate):
        return run(cdx.constrain(OPTIMISERS[name](falls(rate))), loss, start)

    for factor in (10, 100):
        x, state = end(factor * usual)
        assert loss(x) <= best * (1 - 1e-3)
        assert cdx.stiefel.feasibility(x) <= 1e-4
    # At the larger rate, long steps are taken whole, to the nearest point.
    assert optax.tree.get(state, "num_long")[0] > STEPS / 4
    assert optax.tree.get(state, "num_shortened")[0] == 0


def test_a_start_off_the_manifold_does_not_spoil_what_the_optimiser_remembers():
    loss, best = pca(2)
    x = 8 * normal((N, P), 3)
    x, _ = run(cdx.constrain(optax.adam(falls(0.05))), loss, x)
    assert loss(x) <= best * (1 - 1e-3)


def test_the_metric_is_kept():
    b = spd(N)
    loss, best = pca(0, b)
    mask = cdx.Stiefel(B=jnp.asarray(b))
    x, _ = run(cdx.constrain(optax.adam(falls(0.05)), mask), loss, normal((N, P), 0))
    assert cdx.feasibility(x, mask)[""] <= 1e-9
    assert loss(x) <= best * (1 - 1e-3)


@pytest.mark.parametrize("name", ["momentum", "adamw", "lamb"])
def test_free_leaves_are_the_optimisers_own_bit_for_bit(name):
    params = {"w": normal((6, 2), 0), "free": normal((5,), 1)}
    grads = {"w": normal((6, 2), 2), "free": normal((5,), 3)}
    alone = OPTIMISERS[name](0.1)
    ours = cdx.constrain(alone, {"w": True, "free": False})
    # Not compiled: XLA may order the sums of two programs differently.
    u: Any = ours.update(grads, ours.init(params), params)[0]
    v: Any = alone.update(grads, alone.init(params), params)[0]
    np.testing.assert_array_equal(u["free"], v["free"])


def test_lbfgs_searches_along_the_manifold():
    loss, best = pca(0)
    x = cdx.stiefel.random(jax.random.key(0), (N, P))
    x = searched(cdx.constrain(optax.lbfgs()), loss, x, steps=100)
    assert loss(x) <= best * (1 - 1e-6)
    assert cdx.stiefel.feasibility(x) <= 1e-9


def test_weight_decay_is_normal_to_the_manifold_and_does_nothing():
    loss, _ = pca(0)
    x = cdx.stiefel.random(jax.random.key(0), (N, P))
    plain, _ = run(cdx.constrain(optax.adam(falls(0.05))), loss, x)
    decayed, _ = run(cdx.constrain(optax.adamw(falls(0.05), weight_decay=10)), loss, x)
    np.testing.assert_allclose(loss(decayed), loss(plain), rtol=1e-3)
    assert cdx.stiefel.feasibility(decayed) <= 1e-9


def test_a_regularizer_makes_exact_zeros_and_keeps_the_radius():
    loss, _ = pca(0)
    x = cdx.stiefel.random(jax.random.key(0), (N, P))
    r = cdx.prox.l1(0.1)
    rate = optax.cosine_decay_schedule(0.3, STEPS, alpha=0.03)
    tx = cdx.constrain(optax.sgd(rate), regularizer=r, learning_rate=rate)
    y, _ = run(tx, loss, x)
    assert (y == 0).mean() > 0.2
    assert cdx.stiefel.feasibility(y) <= 0.05
    huge = cdx.constrain(
        optax.sgd(1.0), regularizer=cdx.prox.l1(1e3), learning_rate=1.0
    )
    for _ in range(3):
        u, _ = jax.jit(huge.update)(x, huge.init(x), x)
        x = jnp.asarray(optax.apply_updates(x, u))
        assert spectral(x) <= 0.5 + 1e-9


def test_a_regularizer_makes_as_many_zeros_as_algorithm_2():
    n, p = 1152, 128
    q = cdx.stiefel.random(jax.random.key(0), (n, p), jnp.float32)
    c = jax.random.normal(jax.random.key(1), (n, n), jnp.float32) / n**0.5
    c = c @ c.T
    r = cdx.prox.l1(0.01)

    def zeros(tx):
        x = descend(tx, lambda x: -(c @ x), q, 60)[0][0]
        return jnp.mean(x == 0)

    ours: Any = cdx.constrain(optax.sgd(0.1), regularizer=r, learning_rate=0.1)
    paper: Any = cdx.proximal_step(0.1, r, tangential=True)
    expected = zeros(paper)
    assert expected > 0.1
    assert abs(zeros(ours) - expected) <= 0.2 * expected


@pytest.mark.parametrize("regularizer", [None, cdx.prox.l1(0.1)], ids=["plain", "l1"])
def test_it_is_a_chain_of_public_parts(regularizer):
    loss, _ = pca(0)
    x = cdx.stiefel.random(jax.random.key(0), (N, P))
    more: Any = {}
    if regularizer is not None:
        more = {"regularizer": regularizer, "learning_rate": 0.1}
    whole = cdx.constrain(optax.adam(0.1), radius=0.3, **more)
    parts = optax.chain(
        cdx.project_gradients(),
        optax.adam(0.1),
        cdx.keep_feasible(radius=0.3, **more),
    )
    (y, ours), (expected, theirs) = (run(tx, loss, x, 20) for tx in (whole, parts))
    np.testing.assert_array_equal(y, expected)
    assert optax.tree.get(ours, "num_updates") == 20
    chex.assert_trees_all_equal(ours.guard, theirs[-1])


@pytest.mark.parametrize("beta", [5.0, "auto"])
def test_algorithm_1_under_the_guard_converges(beta):
    loss, best = pca(0)
    x = cdx.stiefel.random(jax.random.key(0), (N, P))
    y, state = run(guarded_algorithm_1(beta, optax.sgd(0.05)), loss, x, steps=2000)
    assert loss(y) <= best * (1 - 1e-2)
    assert optax.tree.get(state, "beta").shape == (1,)
    assert optax.tree.get(state, "beta")[0] > 0
    assert cdx.stiefel.feasibility(y) <= 1e-5


@pytest.mark.parametrize("name", ["momentum", "adam", "lion"])
def test_outside_its_bounds_algorithm_1_is_guarded(name):
    loss, _ = pca(0)
    x = cdx.stiefel.random(jax.random.key(0), (N, P))

    @jax.jit
    def points(rate):
        tx = guarded_algorithm_1(0.1, OPTIMISERS[name](rate))
        return descend(tx, jax.grad(loss), x, 20)[1]

    for rate in (1.0, 1e3):
        assert spectral(points(rate)) <= 0.5 + 1e-9


def test_the_automatic_weight_scales_with_the_objective():
    loss, _ = pca(0)
    x = cdx.stiefel.random(jax.random.key(0), (N, P)) * 1.02
    one, ten = (cdx.objective(lambda x, s=s: s * loss(x), beta="auto") for s in (1, 10))
    np.testing.assert_allclose(10 * one(x), ten(x), rtol=1e-12)
    np.testing.assert_allclose(10 * jax.grad(one)(x), jax.grad(ten)(x), rtol=1e-9)
