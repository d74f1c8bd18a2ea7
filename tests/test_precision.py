"""Precision: what a backend that rounds products, or half-precision leaves, leave."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import export, lax

import cdopt_jax as cdx
from tests.oracles import descend, guarded_algorithm_1, normal, spectral, step, traced

N, P, STEPS = 48, 8, 100
LOW = "bfloat16"


def falls(rate):
    return optax.cosine_decay_schedule(rate, STEPS)


# Those whose every step ends next to the manifold, whatever rounding did before.
LANDING = {
    "constrain-adam": cdx.constrain(optax.adam(falls(2e-2), eps=1e-4)),
    "constrain-momentum": cdx.constrain(optax.sgd(falls(5e-2), momentum=0.9)),
    "keep_feasible": optax.chain(optax.sgd(falls(5e-2)), cdx.keep_feasible()),
    "proximal_step": cdx.proximal_step(falls(5e-2), cdx.prox.none(), tangential=True),
}
PENALISED = {
    "dissolve_gradients": optax.chain(
        cdx.dissolve_gradients("auto"), optax.sgd(falls(5e-2))
    ),
    "algorithm-1": guarded_algorithm_1("auto", optax.sgd(falls(5e-2))),
}
METHODS: dict[str, Any] = LANDING | PENALISED


def covariance() -> jax.Array:
    """A symmetric positive definite matrix, whose products are the loss's own."""
    a = normal((N, N), 0, "float32")
    return a @ a.T / N


def train(tx: Any, x: jax.Array, steps: int = STEPS) -> tuple[Any, Any]:
    """The end of a run of PCA, and its state; the loss is rounded as a TPU would."""
    m = covariance()

    def loss(x):
        x = x.astype("float32")
        rounded = [lax.reduce_precision(v, 8, 7) for v in (m, x)]
        return -jnp.sum(x * (rounded[0] @ rounded[1])) / 2

    return descend(tx, jax.grad(loss), x, steps)[0]


def start(dtype: Any = "float32") -> jax.Array:
    return cdx.stiefel.random(jax.random.key(0), (N, P), dtype)


def moved(x: Any) -> float:
    """How far a run has come from its start."""
    return float(np.linalg.norm(np.float64(x) - np.float64(start())))


def floor(dtype: Any) -> float:
    """‖XᵀX − I‖ of a point of the manifold, rounded."""
    return spectral(start("float64").astype(dtype))


@pytest.mark.parametrize("name", METHODS)
def test_a_low_default_precision_lowers_the_loss_but_not_the_algebra(name):
    tx, x, m = METHODS[name], start(), covariance()

    def take(x, state):
        grads = jax.grad(lambda x: -jnp.sum(x * (m @ x)) / 2)(x)
        return step(tx)(x, state, grads)

    with jax.default_matmul_precision(LOW):
        made = export.export(jax.jit(take), platforms=["cpu", "cuda", "tpu"])(
            x, tx.init(x)
        )
    text = made.mlir_module()
    dots = [d for d in text.splitlines() if " stablehlo.dot_general " in d]
    own = [d for d in dots if f"tensor<{N}x{N}xf32>" in d]
    assert own
    assert not any("HIGHEST" in d for d in own)
    algebra = [d for d in dots if d not in own]
    assert len(algebra) >= 4
    assert all("precision = [HIGHEST, HIGHEST]" in d for d in algebra)
    assert not re.search(r"algorithm = ", "\n".join(algebra))


# The step behind Adam is that behind momentum.
ADAM = pytest.param("constrain-adam", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [ADAM, *list(METHODS)[1:]])
def test_a_run_under_it_keeps_its_feasibility(name):
    with jax.default_matmul_precision(LOW):
        x, _ = train(METHODS[name], start())
    # The penalty of Algorithm 1 leaves what the size of its last steps leaves.
    assert spectral(x) <= (3e-6 if name in LANDING else 1e-3)
    assert moved(x) > 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", METHODS)
def test_the_algebra_of_half_precision_leaves_is_in_single_precision(name, dtype):
    tx, x = METHODS[name], start(dtype)
    found = traced(tx.update, x, tx.init(x), x)
    products = [e for e in found if e.primitive.name == "dot_general"]
    assert products
    for product in products:
        dtypes = {str(v.aval.dtype) for v in (*product.invars, *product.outvars)}
        assert dtypes == {"float32"}


@pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", [ADAM, *list(LANDING)[1:]])
def test_half_precision_leaves_end_as_near_as_their_dtype_allows(name, dtype):
    x, _ = train(LANDING[name], start(dtype))
    assert x.dtype == dtype
    assert spectral(x) <= 2 * floor(dtype)
    assert moved(x) > 1


@pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)]
)
def test_with_master_copies_so_does_algorithm_1(dtype):
    # The pull of its penalty is shorter than rounding, and is lost without copies.
    tx = PENALISED["dissolve_gradients"]
    x, state = train(cdx.master_copies(tx), start(dtype))
    assert spectral(state.copies) <= 1e-3
    assert spectral(x) <= 2 * floor(dtype)
    alone, _ = train(tx, start(dtype))
    assert 2 * spectral(x) < spectral(alone) < 0.1


def test_adam_in_float16_needs_master_copies_or_a_larger_epsilon():
    """Its 1e-8 is zero in float16, as are the squares of small gradients.

    What comes out is infinite; the guard refuses it, and the leaf stays where it is.
    """
    adam = optax.adam(falls(2e-2))
    alone, state = train(cdx.constrain(adam), start("float16"), 20)
    assert moved(alone) < 1e-2
    assert (optax.tree.get(state, "num_shortened") == 20).all()
    copied, _ = train(cdx.master_copies(cdx.constrain(adam)), start("float16"), 20)
    assert moved(copied) > 1
