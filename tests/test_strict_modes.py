"""JAX's strict modes: no promotion of ranks, and none of dtypes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

import cdopt_jax as cdx
from cdopt_jax import prox, stiefel
from tests.oracles import normal, spd


@contextmanager
def strict() -> Iterator[None]:
    """Both modes at once: neither allows anything that the other refuses."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


B = jnp.asarray(spd(12), jnp.float32)
HERMITIAN = jnp.asarray(spd(12, "complex64"), jnp.complex64)


def leaf(shape: tuple[int, ...], dtype: str = "float32") -> jax.Array:
    return normal(shape, 0, dtype)


TREES: dict[str, tuple[Any, Any]] = {
    "one": (leaf((12, 3)), None),
    "half precision": (leaf((12, 3), "bfloat16"), None),
    "stack": (leaf((2, 4, 12, 3)), cdx.layers.dense()),
    "stack in half precision": (leaf((4, 12, 3), "float16"), cdx.layers.dense()),
    "metric": (leaf((2, 12, 3)), cdx.layers.dense(B=B)),
    "metric, half precision": (leaf((12, 3), "bfloat16"), cdx.Stiefel(B=B)),
    "callable metric": (leaf((2, 12, 3)), cdx.layers.dense(B=lambda x: B @ x)),
    "unit vectors": (leaf((6, 4)), cdx.Stiefel(rows=-1, columns=())),
    "blocks": (leaf((12, 6)), cdx.layers.fused(2)),
    "complex": (leaf((12, 3), "complex64"), None),
    "complex, double precision": (leaf((12, 3), "complex128"), None),
    "unitary": (leaf((5, 5), "complex64"), None),
    "complex stack": (leaf((2, 4, 12, 3), "complex64"), cdx.layers.dense()),
    "complex, scaled": (leaf((12, 3), "complex64"), cdx.Stiefel(scale=2.0)),
    "complex blocks": (leaf((12, 6), "complex64"), cdx.layers.fused(2)),
    "complex, real metric": (leaf((12, 3), "complex64"), cdx.Stiefel(B=B)),
    "complex, finer than its metric": (
        leaf((12, 3), "complex128"),
        cdx.Stiefel(B=B),
    ),
    "Hermitian metric": (
        leaf((2, 12, 3), "complex64"),
        cdx.layers.dense(B=HERMITIAN),
    ),
    "callable Hermitian metric": (
        leaf((2, 12, 3), "complex64"),
        cdx.layers.dense(B=lambda x: HERMITIAN @ x),
    ),
    "complex unit vectors": (
        leaf((6, 4), "complex64"),
        cdx.Stiefel(rows=-1, columns=()),
    ),
    "mixed dtypes": (
        {
            "a": leaf((12, 3)),
            "b": leaf((12, 3)),
            "c": leaf((12, 3), "bfloat16"),
            "d": leaf((12, 4), "float16"),
            "e": leaf((12, 3), "complex64"),
            "f": leaf((6, 6), "complex128"),
            "free": leaf((3,)),
            "free and complex": leaf((3,), "complex64"),
        },
        cdx.where("a", "b", "c", "d", "e", "f"),
    ),
}
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "dissolve_gradients": lambda m: cdx.dissolve_gradients(2.0, m),
    "dissolve_gradients, auto": lambda m: cdx.dissolve_gradients("auto", m),
    "add_penalty": lambda m: cdx.add_penalty(2.0, m),
    "restore_feasibility": cdx.restore_feasibility,
    "project_gradients": cdx.project_gradients,
    "keep_feasible": cdx.keep_feasible,
    "proximal_step": lambda m: cdx.proximal_step(
        0.1, prox.l1(0.01), m, tangential=True
    ),
    "constrain": lambda m: cdx.constrain(optax.sgd(0.1, momentum=0.9), m),
    "constrain, regularized": lambda m: cdx.constrain(
        optax.sgd(0.1), m, regularizer=prox.l1(0.01), learning_rate=0.1
    ),
    "master_copies": lambda m: cdx.master_copies(cdx.constrain(optax.sgd(0.1), m)),
}


@pytest.mark.parametrize("tree", TREES)
def test_transformations_and_tree_functions_are_traced(tree):
    params, mask = TREES[tree]

    def everything(params):
        for make in TRANSFORMS.values():
            tx = make(mask)
            tx.update(params, tx.init(params), params)
        h = cdx.objective(lambda p: optax.tree.norm(p, squared=True), mask, beta="auto")
        return (
            cdx.dissolve(params, mask),
            cdx.project(params, mask),
            cdx.feasibility(params, mask),
            cdx.stationarity(params, params, mask),
            None if tree == "mixed dtypes" else jax.grad(h)(params),
        )

    with strict():
        jax.eval_shape(everything, params)


@pytest.mark.parametrize("name", ["dissolve_gradients, auto", "constrain"])
def test_complex_steps_are_the_same_in_strict_modes(name):
    """One short step and one long one, of complex and real leaves together."""
    params = {
        "complex": cdx.stiefel.random(jax.random.key(0), (12, 3), "complex64"),
        "real": cdx.stiefel.random(jax.random.key(1), (12, 3), "float32"),
    }
    grads = {k: leaf((12, 3), x.dtype.name) for k, x in params.items()}
    tx = TRANSFORMS[name](None)

    def moves():
        for size in (1e-3, 30.0):
            given = {k: jnp.asarray(size, g.dtype) * g for k, g in grads.items()}
            yield tx.update(given, tx.init(params), params)[0]

    expected = list(moves())
    with strict():
        found = list(moves())
    chex.assert_trees_all_close(found, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("shape", [(12, 3), (2, 12, 3)], ids=str)
def test_array_functions_are_traced(shape, dtype):
    x = leaf(shape, dtype)

    def everything(x):
        metrics = (B, HERMITIAN) if dtype == "complex64" else (B.astype(dtype),)
        for metric in (None, *metrics):
            for name in ("residual", "feasibility", "dissolve", "penalty", "project"):
                getattr(stiefel, name)(x, B=metric)
            for name in ("jvp", "vjp", "tangent"):
                getattr(stiefel, name)(x, x, B=metric)
            for beta in (2.0, jnp.ones(shape[:-2])):
                stiefel.gradient(x, x, beta, B=metric)
        return stiefel.random(jax.random.key(0), shape, x.dtype)

    with strict():
        jax.eval_shape(everything, x)


@pytest.mark.parametrize("weight", [0.1, jnp.ones(3), jnp.ones((12, 1))], ids=jnp.shape)
def test_regularizers_are_traced(weight):
    group = 0.1 if jnp.shape(weight) == (3,) else weight
    terms = prox.l1(weight), prox.elastic_net(weight, weight), prox.l21(group)
    terms += (prox.nonnegative_l1(weight),)
    with strict():
        for term in terms:
            ordered = term is terms[-1]
            for dtype in ("bfloat16", "float32", "complex64")[: 2 if ordered else 3]:
                x = leaf((12, 3), dtype)
                jax.eval_shape(lambda x, t=term: (t.value(x), t.prox(x, 0.1)), x)


@pytest.mark.parametrize(
    ("method", "regularizer"),
    [
        ("tangential", None),
        ("auto", prox.l1(0.05)),
        pytest.param("sampling", None, marks=pytest.mark.slow),
        pytest.param("auto", prox.nonnegative_l1(0.05), marks=pytest.mark.slow),
    ],
)
def test_the_solver(method: str, regularizer: Any) -> None:
    def f(x: jax.Array) -> jax.Array:
        return -jnp.vdot(x, leaf((12, 12)) @ x)

    x0 = stiefel.random(jax.random.key(0), (12, 3), jnp.float32)
    with strict():
        found = cdx.minimize(
            f, x0, method=method, regularizer=regularizer, max_steps=40
        )
    usual = cdx.minimize(f, x0, method=method, regularizer=regularizer, max_steps=40)
    chex.assert_trees_all_close(found.value, usual.value, rtol=1e-5)
