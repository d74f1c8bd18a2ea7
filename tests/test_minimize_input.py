"""What `minimize` refuses, and how it says so."""

import warnings
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cdopt_jax as cdx
from tests.minimize_problems import N, P, quadratic, start

WITHOUT_PROX: Any = cdx.prox.l1(1.0)._replace(prox=cast(Any, None))


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda x: x.sum(0), "shape (3,)"),
        (lambda x: x.sum() + 0j, "complex"),
        (lambda x: x.sum() * jnp.nan, "nan at x0"),
        (lambda x: jnp.sum(jnp.sqrt(jnp.maximum(x - 5, 0))), "gradient"),
        ("f", "must be a function"),
    ],
    ids=["vector", "complex", "nan", "gradient", "string"],
)
def test_an_objective_that_cannot_be_minimised_is_named(f, words):
    with pytest.raises(ValueError, match="minimize: ") as caught:
        cdx.minimize(f, start())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "simplex"}, "'simplex'"),
        ({"method": "proximal", "regularizer": WITHOUT_PROX},
         "prox is None"),
        ({"regularizer": 0.1}, "prox.l1"),
        ({"tol": -1.0}, "tol"),
        ({"max_steps": 0}, "max_steps"),
        ({"beta": "large"}, "beta"),
        ({"batch": lambda key: key, "method": "lbfgs"}, "optax.adam"),
        ({"args": 3.0}, "args=(data,)"),
        ({"callback": 3}, "callback"),
        ({"starts": 0}, "starts"),
        ({"max_steps": 2.5}, "max_steps"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)  # fmt: skip
def test_a_bad_option_is_one_clear_error(options, words):
    with pytest.raises(ValueError, match="minimize: ") as caught:
        cdx.minimize(quadratic, start(), **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("callable_metric", [False, True])
def test_an_indefinite_metric_is_refused(callable_metric):
    b = jnp.asarray(np.diag([-1.0] + [1.0] * (N - 1)))
    metric: Any = (lambda x: b @ x) if callable_metric else b
    x0 = jnp.asarray(np.eye(N, P))
    with pytest.raises(ValueError, match="positive definite"):
        cdx.minimize(quadratic, x0, cdx.Stiefel(B=metric))


def test_a_start_off_the_manifold_is_projected_and_said_so():
    with pytest.warns(UserWarning, match="x0 is not on the manifold"):
        result = cdx.minimize(quadratic, 2 * start(), max_steps=5)
    assert float(result.feasibility) < 1e-8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cdx.minimize(quadratic, start(), max_steps=1)


@pytest.mark.parametrize(
    ("x0", "words"),
    [
        (np.zeros((N, P)), "rank-deficient"),
        (np.full((N, P), np.nan), "finite"),
        (np.arange(N * P).reshape(N, P), "floating point"),
        (np.ones((6, 8, 3)), "layers.dense()"),
    ],
    ids=["zeros", "nan", "integers", "batch"],
)
def test_a_start_that_cannot_be_used_is_named(x0, words):
    with pytest.raises(ValueError, match="minimize: ") as caught:
        cdx.minimize(lambda x: jnp.sum(x**4), jnp.asarray(x0))
    assert words in str(caught.value)


def test_a_batch_of_matrices_is_solved_where_it_is_said_to_be_one():
    x0 = cdx.stiefel.random(jax.random.key(0), (4, N, P), jnp.float64)
    mask = cdx.Stiefel(rows=-2, columns=-1)
    result = cdx.minimize(lambda x: sum(quadratic(a) for a in x), x0, mask)
    single = cdx.minimize(quadratic, x0[0])
    assert float(result.value) == pytest.approx(4 * float(single.value), abs=1e-9)


def test_numbers_of_numpy_are_numbers():
    result = cdx.minimize(
        quadratic, start(), max_steps=np.int64(5), tol=np.float64(1e-300)
    )
    assert int(result.steps) == 5


def test_arguments_of_another_structure_are_another_program():
    def f(x, data):
        matrix = data["m"] if isinstance(data, dict) else data
        return -jnp.sum(x * (matrix @ x))

    m = jnp.diag(jnp.arange(1.0, N + 1))
    values = [cdx.minimize(f, start(), args=(a,)).value for a in (m, {"m": m})]
    np.testing.assert_allclose(values, -(N + N - 1 + N - 2), atol=1e-8)
    with pytest.raises(TypeError, match="data"):
        cdx.minimize(f, start())


def test_a_callback_inside_a_trace_is_refused():
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(lambda x: cdx.minimize(quadratic, x, progress=True).value)(start())
