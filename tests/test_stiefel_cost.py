"""What the array functions cost: their products, counted before and after XLA.

A count is a list of multiplications, one entry for each product; with n ≠ p an n×p×p
product can be told from one of p×p×p by its size.
"""

import inspect

import jax
import pytest
from jax import lax

from cdopt_jax import stiefel
from tests.oracles import (
    FACTORIZATIONS,
    compiled_products,
    each_metric,
    metric_of,
    normal,
    primitives,
    traced,
    traced_products,
)

ONE = {
    "residual": stiefel.residual,
    "feasibility": stiefel.feasibility,
    "dissolve": stiefel.dissolve,
    "penalty": stiefel.penalty,
    "penalty_grad": stiefel.penalty_grad,
    "project": stiefel.project,
}
TWO = {
    "jvp": stiefel.jvp,
    "vjp": stiefel.vjp,
    "tangent": stiefel.tangent,
    "gradient": lambda x, g, B=None: stiefel.gradient(x, g, 2.0, B=B),
}
# How many products of n×p×p, and how many of p×p×p.
COST = {
    "residual": (1, 0),
    "feasibility": (1, 0),
    "penalty": (1, 0),
    "penalty_grad": (2, 0),
    "dissolve": (2, 1),
    "tangent": (2, 0),
    "jvp": (4, 2),
    "vjp": (4, 2),
    "gradient": (4, 2),
}
each_size = pytest.mark.parametrize(("n", "p"), [(64, 16), (256, 128)])


def _call(name, *, B=None):
    if name in ONE:
        return lambda x, _: ONE[name](x, B=B)
    return lambda x, d: TWO[name](x, d, B=B)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@each_size
@pytest.mark.parametrize("name", COST)
def test_products_are_as_few_as_promised(name, n, p, dtype):
    x, d = normal((2, n, p), 0, dtype)
    tall, small = COST[name]
    expected = sorted([n * p * p] * tall + [p**3] * small)
    assert traced_products(_call(name), x, d) == expected
    assert compiled_products(_call(name), x, d) == expected


@pytest.mark.parametrize("name", COST)
def test_a_metric_costs_one_product_with_it(name):
    n, p = 64, 16
    x, d = normal((2, n, p), 0, "float32")
    B, _ = metric_of("array", n, "float32")
    tall, small = COST[name]
    expected = sorted([n * p * p] * tall + [p**3] * small + [n * n * p])
    assert compiled_products(_call(name, B=B), x, d) == expected


def test_a_stack_of_matrices_is_multiplied_as_one():
    x, d = normal((2, 5, 64, 16), 0, "float32")
    expected = sorted([5 * 64 * 16**2] * 4 + [5 * 16**3] * 2)
    assert compiled_products(_call("gradient"), x, d) == expected


def test_autodiff_of_dissolve_costs_no_more_than_the_closed_form():
    n, p = 64, 16
    x, d = normal((2, n, p), 0, "float32")
    expected = sorted([n * p * p] * 4 + [p**3] * 2)
    modes = {
        "forward": lambda x, d: jax.jvp(stiefel.dissolve, (x,), (d,))[1],
        "reverse": lambda x, d: jax.vjp(stiefel.dissolve, x)[1](d),
    }
    for mode in modes.values():
        assert compiled_products(mode, x, d) == expected


def test_products_behind_random_and_derivatives_ask_for_the_highest_precision():
    B, _ = metric_of("array", 12, "float32")
    x, d = normal((2, 12, 4), 0, "float32")

    def draw(key):
        return stiefel.random(key, (12, 4), "float32", B=B)

    def push(x, d):
        return jax.jvp(stiefel.dissolve, (x,), (d,))

    def pull(x, d):
        return jax.vjp(stiefel.dissolve, x)[1](d)

    found = traced(draw, jax.random.key(0)) + traced(push, x, d) + traced(pull, x, d)
    precisions = {
        e.params["precision"] for e in found if e.primitive.name == "dot_general"
    }
    assert precisions == {(lax.Precision.HIGHEST,) * 2}


@each_metric
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_nothing_is_factorized(name, metric):
    for shape in ((1, 1), (7, 1), (5, 5), (3, 8, 3)):
        x, d = normal((2, *shape), 0)
        B, _ = metric_of(metric, shape[-2])
        assert not primitives(_call(name, B=B), x, d) & FACTORIZATIONS


def test_every_function_of_a_point_is_counted_here():
    public = {
        name
        for name, f in inspect.getmembers(stiefel, inspect.isfunction)
        if f.__module__ == stiefel.__name__ and not name.startswith("_")
        if "x" in inspect.signature(f).parameters
    }
    assert public == {*ONE, *TWO}
