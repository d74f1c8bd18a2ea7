"""JAX's strict modes: no promotion of ranks, and none of dtypes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import cdopt_jax as cdx
from cdopt_jax import prox, stiefel
from tests.oracles import normal, spd

MODES: dict[str, Callable[[], Any]] = {
    "rank": lambda: jax.numpy_rank_promotion("raise"),
    "dtype": lambda: jax.numpy_dtype_promotion("strict"),
}
each_mode = pytest.mark.parametrize("mode", MODES)
B = jnp.asarray(spd(12), jnp.float32)


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
    "mixed dtypes": (
        {
            "a": leaf((12, 3)),
            "b": leaf((12, 3)),
            "c": leaf((12, 3), "bfloat16"),
            "d": leaf((12, 4), "float16"),
            "free": leaf((3,)),
        },
        cdx.where("a", "b", "c", "d"),
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


@each_mode
@pytest.mark.parametrize("tree", TREES)
def test_transformations_and_tree_functions_are_traced(tree, mode):
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

    with MODES[mode]():
        jax.eval_shape(everything, params)


@each_mode
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(12, 3), (2, 12, 3)], ids=str)
def test_array_functions_are_traced(shape, dtype, mode):
    x = leaf(shape, dtype)

    def everything(x):
        for metric in (None, B.astype(dtype)):
            for name in ("residual", "feasibility", "dissolve", "penalty", "project"):
                getattr(stiefel, name)(x, B=metric)
            for name in ("jvp", "vjp", "tangent"):
                getattr(stiefel, name)(x, x, B=metric)
            for beta in (2.0, jnp.ones(shape[:-2])):
                stiefel.gradient(x, x, beta, B=metric)
        return stiefel.random(jax.random.key(0), shape, x.dtype)

    with MODES[mode]():
        jax.eval_shape(everything, x)


@each_mode
@pytest.mark.parametrize("weight", [0.1, jnp.ones(3), jnp.ones((12, 1))], ids=jnp.shape)
def test_regularizers_are_traced(weight, mode):
    group = 0.1 if jnp.shape(weight) == (3,) else weight
    terms = prox.l1(weight), prox.nonnegative_l1(weight), prox.l21(group)
    terms += (prox.elastic_net(weight, weight),)
    with MODES[mode]():
        for term in terms:
            for dtype in ("bfloat16", "float32"):
                x = leaf((12, 3), dtype)
                jax.eval_shape(lambda x, t=term: (t.value(x), t.prox(x, 0.1)), x)
