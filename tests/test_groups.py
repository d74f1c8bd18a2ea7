"""Leaves of one shape, stepped as one stack: the same steps, by fewer products."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.marks import mostly
from tests.oracles import normal, polar, proposed, tall, traced_products

SHAPES = {
    "a": (6, 3),
    "b": (8, 2),
    "c": (6, 3),
    "d": (3, 6),
    "e": (1, 2, 3, 3),
    "f": (6, 3),
}
TRANSFORMS: dict[str, Any] = {
    "dissolve_gradients": cdx.dissolve_gradients("auto"),
    "add_penalty": cdx.add_penalty(2.0),
    "restore_feasibility": cdx.restore_feasibility(),
    "keep_feasible": cdx.keep_feasible(),
    "proximal_step": cdx.proximal_step(0.1, cdx.prox.l1(0.01)),
    "constrain-prox": cdx.constrain(
        optax.sgd(0.1), regularizer=cdx.prox.l1(0.01), learning_rate=0.1
    ),
}


def trees(seed: int = 0) -> tuple[Any, Any]:
    """Leaves of which four are read as matrices of one shape, one of them wide.

    All steps are short: beside a long one, others are corrected further.
    """

    def leaf(i, shape):
        rows = normal((int(np.prod(shape[:-1])), shape[-1]), seed + i)
        near = polar(tall(rows)) + 1e-3 * tall(rows)
        return (near if near.shape == rows.shape else near.T).reshape(shape)

    params = {k: leaf(i, s) for i, (k, s) in enumerate(SHAPES.items())}
    grads = {
        k: 3e-3 * normal(s, seed + 50 + i) for i, (k, s) in enumerate(SHAPES.items())
    }
    return params, grads


# The first two are parts of `dissolve_gradients`.
SLOW = ("add_penalty", "restore_feasibility", "constrain-prox")


@pytest.mark.parametrize("name", mostly(TRANSFORMS, slow=SLOW))
def test_a_leaf_steps_as_it_does_alone(name):
    tx = TRANSFORMS[name]
    params, grads = trees()
    together, state = jax.jit(tx.update)(grads, tx.init(params), params)
    step = jax.jit(tx.update)
    for i, key in enumerate(params):
        # Not by its name, so that leaves of one shape are one program.
        x, g = {"x": params[key]}, {"x": grads[key]}
        alone, one = step(g, tx.init(x), x)
        np.testing.assert_allclose(together[key], alone["x"], atol=1e-13)
        for field in ("bound", "beta"):
            vector = optax.tree.get(state, field, None)
            if vector is not None:
                expected = optax.tree.get(one, field)[0]
                np.testing.assert_allclose(vector[i], expected, rtol=1e-6)


def test_a_long_step_of_one_leaf_is_counted_there_and_changes_no_other():
    tx = TRANSFORMS["keep_feasible"]
    params, _ = trees()
    params = cdx.project(params)
    grads = {k: 1e-3 * normal(x.shape, i) for i, (k, x) in enumerate(params.items())}
    grads["c"] = 1e3 * grads["c"]
    updates, state = tx.update(grads, tx.init(params), params)
    np.testing.assert_array_equal(state.num_long, [k == "c" for k in params])
    for k in params:
        x, u, y = (
            tall(np.asarray(v[k]).reshape(-1, v[k].shape[-1]))
            for v in (params, grads, updates)
        )
        np.testing.assert_allclose(x + y, polar(proposed(x, u)), atol=2e-6)


@pytest.mark.parametrize(
    "name",
    [
        "proximal_step",
        pytest.param("dissolve_gradients", marks=pytest.mark.slow),
        pytest.param("keep_feasible", marks=pytest.mark.slow),
    ],
)
def test_groups_are_mapped_over_as_single_leaves_are(name):
    tx = TRANSFORMS[name]
    members = [trees(seed) for seed in (0, 10)]
    params, grads = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    states = jax.vmap(tx.init)(params)
    updates, _ = jax.jit(jax.vmap(tx.update))(grads, states, params)
    for i, (p, g) in enumerate(members):
        one, _ = tx.update(g, tx.init(p), p)
        jax.tree.map(
            lambda u, o, i=i: np.testing.assert_allclose(u[i], o, atol=1e-6),
            updates,
            one,
        )


@pytest.mark.slow
def test_a_step_can_be_differentiated_through_its_groups():
    tx: Any = cdx.constrain(optax.sgd(0.1))
    params, grads = trees()

    def after(scale):
        scaled = jax.tree.map(lambda g: scale * g, grads)
        updates: Any = tx.update(scaled, tx.init(params), params)[0]
        return sum(jnp.sum(u * normal(u.shape, 3)) for u in updates.values())

    slope = jax.jit(jax.grad(after))(1.0)
    numeric = (after(1.0 + 1e-5) - after(1.0 - 1e-5)) / 2e-5
    np.testing.assert_allclose(slope, numeric, rtol=1e-6)


def test_many_small_leaves_take_the_products_of_one():
    assert len(products_of_an_update(30, (8, 4))) == len(
        products_of_an_update(1, (8, 4))
    )


def test_large_leaves_share_products_of_square_matrices_in_a_long_step():
    """A branch of short steps has two for each leaf; the rest is compiled once."""
    n, p = 8192, 4
    one, three = products_of_an_update(1, (n, p)), products_of_an_update(3, (n, p))
    assert three.count(n * p**2) == 3 * one.count(n * p**2)
    short = one.count(p**3)
    assert sum(work < n * p**2 for work in three) < 3 * short
    assert three.count(3 * p**3) == short - 2


def products_of_an_update(leaves, shape):
    tx: Any = cdx.constrain(optax.sgd(0.1))
    x = {str(i): jnp.eye(*shape) for i in range(leaves)}
    return traced_products(lambda x: tx.update(x, tx.init(x), x), x)
