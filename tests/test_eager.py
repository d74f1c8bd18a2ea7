"""Loops without ``jit``: what is compiled, is compiled in the first two steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

import cdopt_jax as cdx
from tests.oracles import guarded_algorithm_1, normal, polar, spd, spectral

_compiled: list[str] = []
B = jnp.asarray(spd(12))


def _listen(event: str, *_: Any, **__: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _compiled.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextmanager
def compilations() -> Iterator[list[str]]:
    """A list with an entry for each program that is compiled inside."""
    _compiled.clear()
    yield _compiled


def l1(mask=None):
    return cdx.constrain(
        optax.sgd(0.1), mask, regularizer=cdx.prox.l1(0.01), learning_rate=0.1
    )


LOOPS: dict[str, Any] = {
    "keep_feasible": cdx.keep_feasible(),
    "constrain": cdx.constrain(optax.adam(0.01)),
    "constrain, regularizer": l1(),
    "Algorithm 1": guarded_algorithm_1("auto", optax.sgd(0.01)),
    "dissolve_gradients": cdx.dissolve_gradients("auto"),
    "restore_feasibility": cdx.restore_feasibility(),
    "proximal_step": cdx.proximal_step(0.1, cdx.prox.l1(0.01), tangential=True),
    "metric": cdx.constrain(optax.adam(0.01), cdx.Stiefel(B=B)),
    "callable metric": cdx.constrain(optax.adam(0.01), cdx.Stiefel(B=lambda v: B @ v)),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "metric" else n for n in LOOPS],
)
def test_an_eager_loop_compiles_nothing_after_its_second_step(name):
    tx = LOOPS[name]
    params: Any = {k: polar(normal((12, 3), i)) for i, k in enumerate("abc")}
    params = jax.tree.map(jnp.asarray, params)
    grads = [{k: 0.01 * normal((12, 3), 3 * i) for k in "abc"} for i in range(8)]
    # Long ones too.
    grads[6] = jax.tree.map(lambda g: 1e4 * g, grads[6])
    state = tx.init(params)
    for seed in range(2):
        updates, state = tx.update(grads[seed], state, params)
        params = optax.apply_updates(params, updates)
    with compilations() as found:
        for g in grads[2:]:
            updates, state = tx.update(g, state, params)
            params = optax.apply_updates(params, updates)
        assert not found
        # The listener is there.
        jax.jit(lambda x: x + 1.2345)(jnp.ones(7))
        assert found


def test_an_eager_step_is_the_compiled_one_in_every_branch():
    tx = LOOPS["keep_feasible"]
    x = jnp.asarray(polar(normal((12, 3), 0)))
    jitted = jax.jit(tx.update)
    for size in (0.0, 1e-4, 1e-2, 0.3, 1e2, 1e200, jnp.nan):
        u = size * normal(x.shape, 1)
        eager, compiled = (f(u, tx.init(x), x) for f in (tx.update, jitted))
        chex.assert_trees_all_close(eager, compiled, atol=1e-13)
        assert spectral(x + eager[0]) <= 1e-5
