"""Programs of the solver: compiled once, small in number, and the same under `jit`."""

import gc
import logging
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer

import cdopt_jax as cdx
from tests.marks import mostly
from tests.minimize_problems import BEST, METRIC, N, P, quadratic, start


def counted(f):
    """The function, and a list that grows whenever it is traced."""
    traces = []

    def traced(*args):
        traces.append(args)
        return f(*args)

    return traced, traces


def variance(x, m):
    return -jnp.sum(x * (m @ x))


@pytest.mark.parametrize(
    "method",
    mostly(
        ["auto", "proximal", "tangential", "lbfgs", "geometric"],
        slow=["auto", "lbfgs"],
    ),
)
def test_a_second_call_compiles_nothing(method):
    f, traces = counted(variance)
    r = cdx.prox.l1 if method in ("auto", "proximal") else lambda _: None
    steps = 5 if method == "lbfgs" else 30
    first = cdx.minimize(
        f, start(), args=(jnp.eye(N),), regularizer=r(0.1), method=method,
        max_steps=steps,
    )  # fmt: skip
    before = len(traces)
    assert before > 0
    assert first.compile_seconds > 0
    m = np.diag(np.arange(1.0, N + 1))
    second = cdx.minimize(
        f, start(1), args=(m,), regularizer=r(0.2), method=method, tol=1e-3, beta=3.0,
        max_steps=2 * steps, key=jax.random.key(7),
    )  # fmt: skip
    assert len(traces) == before
    assert second.compile_seconds == 0
    if method == "tangential":
        assert float(second.value) == pytest.approx(-(3 * N - 3), rel=1e-4)


@pytest.mark.parametrize(
    "method",
    mostly(["continuation", "proximal", "tangential"], slow=["continuation"]),
)
def test_a_first_call_compiles_three_programs_and_nothing_else(method, caplog):
    rng = np.random.default_rng(0)
    x0 = np.linalg.qr(rng.standard_normal((11, 2)))[0]
    r = None if method == "tangential" else cdx.prox.l1(0.1)
    # Programs are compiled in threads, which `jax.log_compiles` does not reach.
    caplog.set_level(logging.DEBUG, "jax")
    cdx.minimize(
        lambda x, m: -jnp.sum(x * (m @ x)),
        x0,
        args=(np.diag(np.arange(11.0)),),
        regularizer=r,
        method=method,
    )
    made = [m for m in caplog.messages if m.startswith("Finished XLA compilation")]
    assert len(made) == 3, made


def test_another_metric_of_the_same_shape_compiles_nothing():
    f, traces = counted(variance)
    m = jnp.diag(jnp.arange(1.0, N + 1))
    values, counts = [], []
    for scale in (1.0, 4.0):
        metric = jnp.asarray(scale * METRIC)
        found = cdx.minimize(f, start(B=metric), cdx.Stiefel(B=metric), args=(m,))
        values.append(float(found.value))
        counts.append(len(traces))
    assert counts[0] == counts[1] > 0
    assert values[1] == pytest.approx(values[0] / 4, rel=1e-8)


@pytest.mark.slow
def test_programs_that_are_no_longer_used_are_freed():
    held = []
    for _ in range(40):

        def f(x):
            return jnp.sum(x)

        held.append(weakref.ref(f))
        cdx.minimize(f, start(n=3, p=1), max_steps=1)
        del f
    gc.collect()
    assert 0 < sum(ref() is not None for ref in held) <= 34


@pytest.mark.parametrize("method", mostly(["proximal", "lbfgs"], slow=["lbfgs"]))
def test_later_pieces_of_a_run_are_not_compiled_again(method):
    def traces(steps):
        f, traces = counted(quadratic)
        cdx.minimize(f, start(), method=method, max_steps=steps, tol=1e-300)
        return len(traces)

    assert traces(25) == traces(5)


def test_many_starts_run_at_once_under_vmap():
    starts = jnp.stack([start(seed) for seed in range(3)])
    solve = jax.jit(jax.vmap(lambda x: cdx.minimize(quadratic, x, max_steps=200)))
    result = solve(starts)
    np.testing.assert_allclose(result.value, BEST, atol=1e-9)
    assert result.params.shape == (3, N, P)
    assert "3 × the tolerance is met" in result.message
    assert "3 runs" in str(result)
    # Rows after the end repeat the last one.
    assert not np.isnan(result.history.value).any()
    np.testing.assert_array_equal(result.history.step[:, -1], result.steps)


@pytest.mark.parametrize("most", [pytest.param(40, marks=pytest.mark.slow), 300])
def test_a_continuation_under_jit_is_the_one_outside(most):
    data = jnp.asarray(np.random.default_rng(0).normal(size=(20, 40)))
    x0 = start(n=40, p=2)

    def solve(x):
        return cdx.minimize(
            lambda x: -jnp.sum((data @ x) ** 2) / 20,
            x,
            method="continuation",
            regularizer=cdx.prox.l1(0.5),
            max_steps=most,
        )

    outside, inside = solve(x0), jax.jit(solve)(x0)
    assert float(inside.value) == pytest.approx(float(outside.value), rel=1e-6)
    assert int(inside.steps) == int(outside.steps)
    assert float(inside.sparsity) > 0.1
    assert inside.method == "continuation"


@pytest.mark.parametrize("kind", mostly(["Explicit", "Auto"], slow=["Auto"]))
def test_a_start_and_data_that_are_split_over_devices_stay_split(kind):
    axes = (getattr(jax.sharding.AxisType, kind),)
    mesh = jax.make_mesh((4,), ("d",), axis_types=axes)
    rows = jax.NamedSharding(mesh, jax.P("d", None))
    scales = jax.device_put(jnp.arange(1.0, N + 1)[:, None], rows)
    x0 = jax.device_put(start(), rows)

    def f(x, scales):
        return -jnp.sum(scales * x * x)

    result = cdx.minimize(f, x0, args=(scales,))
    assert result.converged
    assert float(result.value) == pytest.approx(-(3 * N - 3), rel=1e-6)
    assert result.params.sharding.shard_shape(x0.shape) == (N // 4, P)
    sparse = cdx.minimize(f, x0, args=(scales,), regularizer=cdx.prox.l1(0.1))
    assert float(sparse.value) == pytest.approx(-(3 * N - 3) + 0.3, rel=1e-6)
    if kind == "Explicit":
        with pytest.raises(ValueError, match=r"split along Explicit axes.*AxisType"):
            cdx.minimize(f, x0, args=(scales,), method="tangential")


def test_a_call_under_jit_leaves_nothing_behind_for_the_next_one():
    """A number that was made an array while tracing must not serve an eager call."""
    x0 = cdx.stiefel.random(jax.random.key(0), (9, 2))
    scale = jnp.arange(1.0, 10.0)[:, None]

    def solve(x):
        return cdx.minimize(
            lambda x: jnp.sum(scale * x**2), x, method="tangential", max_steps=7
        )

    inside = jax.jit(lambda x: solve(x).value)(x0)
    with jax.check_tracer_leaks():
        result = solve(x0)
    assert not any(isinstance(v, Tracer) for v in jax.tree.leaves(result))
    assert float(result.value) == pytest.approx(float(inside), rel=1e-6)
    assert result.compile_seconds > 0
