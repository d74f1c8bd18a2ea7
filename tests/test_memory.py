"""What the constraint adds to a training step in memory, and what it shares.

Sizes are those that XLA planned for the compiled program, so nothing here runs a step.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import cdopt_jax as cdx
from benchmarks.shared.vgg import VGG, VGG_MASK, compile_training
from tests.oracles import compiled_products, guarded_algorithm_1, normal

OPTIMISERS = {"sgd": optax.sgd(1e-2, momentum=0.9), "adam": optax.adam(1e-3)}
KERNELS = {"one": (96, 32), "two": (3, 3, 16, 40), "three": (64, 200)}
L1 = cdx.prox.l1(1e-4)
# Of each transformation, the optimiser whose state it may carry.
WRAPPED = {
    "keep_feasible": (cdx.keep_feasible(), None),
    "restore_feasibility": (cdx.restore_feasibility(), None),
    "dissolve_gradients": (cdx.dissolve_gradients(1.0), None),
    "dissolve_gradients, auto": (cdx.dissolve_gradients("auto"), None),
    "add_penalty": (cdx.add_penalty(1.0), None),
    "proximal_step": (cdx.proximal_step(1e-2, L1), None),
    "Algorithm 1": (guarded_algorithm_1("auto", OPTIMISERS["sgd"]), "sgd"),
    "constrain, regularizer": (
        cdx.constrain(OPTIMISERS["sgd"], regularizer=L1, learning_rate=1e-2),
        "sgd",
    ),
    **{
        f"constrain, {name}": (cdx.constrain(tx), name)
        for name, tx in OPTIMISERS.items()
    },
}
MODEL = VGG(depth=8, width=0.25)
each_optimiser = pytest.mark.parametrize(
    "name", ["sgd", pytest.param("adam", marks=pytest.mark.slow)]
)


def size(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def training():
    """The training step of the network, with an optimiser, constrained or not."""

    @functools.cache
    def of(name, *, constrained):
        tx = OPTIMISERS[name]
        tx = cdx.constrain(tx, VGG_MASK) if constrained else tx
        # Optimised or not, kernels use the same buffers.
        return compile_training(MODEL, tx, 32, xla_backend_optimization_level=0)

    return of


@pytest.mark.parametrize("name", WRAPPED)
def test_the_state_has_a_few_numbers_more_for_each_leaf_and_no_array(name):
    params = {k: normal(shape, 0, "float32") for k, shape in KERNELS.items()}
    tx, inside = WRAPPED[name]
    own = OPTIMISERS[inside].init(params) if inside else ()
    added = size(tx.init(params)) - size(own)
    few = 8 * len(KERNELS) * jnp.dtype("float64").itemsize
    assert 0 <= added <= few < size(params) / 50


@each_optimiser
def test_a_step_with_donated_buffers_reuses_all_of_them(name, training):
    program, state = training(name, constrained=True)
    aliased = program.call.memory_analysis().alias_size_in_bytes
    own = jax.eval_shape(OPTIMISERS[name].init, state["params"])
    assert aliased >= size([state["params"], own])


@each_optimiser
def test_a_training_step_needs_hardly_more_memory_than_without_the_constraint(
    name, training
):
    plain, constrained = (
        training(name, constrained=c)[0].peak_bytes for c in (False, True)
    )
    assert constrained <= 1.1 * plain


def step_through_dissolve(tx):
    """A step on a loss that is a sum over entries, so that no product is its own."""

    def loss(x):
        return jnp.sum(jnp.sin(cdx.dissolve(x)))

    def step(x, state):
        updates, state = tx.update(jax.grad(loss)(x), state, x)
        return optax.apply_updates(x, updates), state

    return step


# Products of n×p×p and p×p×p of each in a step whose loss is written with `dissolve`,
# XᵀX being one of them: A takes XᵀX, xP and E², its derivative xᵀg, gP, xQ and SE.
SHARED = {
    # xE
    "add_penalty": (cdx.add_penalty(1.0), 6, 2),
    # The derivative once more: xᵀg, gP, xQ and SE of another g.
    "dissolve_gradients": (cdx.dissolve_gradients(1.0), 8, 3),
    # A(x) is there already.
    "restore_feasibility": (cdx.restore_feasibility(), 5, 2),
}


@pytest.mark.parametrize("shape", [(64, 16), (256, 128)], ids=str)
@pytest.mark.parametrize("name", SHARED)
def test_what_the_loss_and_the_transformation_share_is_computed_once(name, shape):
    tx, tall, small = SHARED[name]
    x = normal(shape, 0, "float32")
    n, p = shape
    found = compiled_products(step_through_dissolve(tx), x, tx.init(x))
    assert found == sorted([n * p * p] * tall + [p**3] * small)


def test_one_large_matrix_needs_at_most_half_as_much_memory_again():
    x = jax.ShapeDtypeStruct((20_000, 1_000), jnp.float32)

    def peak(tx):
        def step(g, state, x):
            updates, state = tx.update(g, state, x)
            return optax.apply_updates(x, updates), state

        state = jax.eval_shape(tx.init, x)
        program = jax.jit(step, donate_argnums=(1, 2)).lower(x, state, x).compile()
        sizes: Any = program.memory_analysis()
        whole = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
        return whole + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes

    adam = OPTIMISERS["adam"]
    assert peak(cdx.constrain(adam)) <= 1.5 * peak(adam)
