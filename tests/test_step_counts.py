"""How much a step computes, counted in the compiled program.

The rare branches are those with a loop. All others are what a short step may run.
"""

import functools
import re
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import cdopt_jax as cdx
from tests.oracles import compiled_text
from tests.programs import Program

# Of each, the products of n×p×p in a step. The gradient is given, so none is its own.
STEPS: dict[str, tuple[Any, int]] = {
    "keep_feasible": (cdx.keep_feasible(), 2),
    "constrain": (cdx.constrain(optax.sgd(0.1)), 4),
    "constrain-adam": (cdx.constrain(optax.adam(0.1)), 4),
}
each_step = pytest.mark.parametrize("name", STEPS)
# Of different shapes, some of them tall, and one with a choice of degrees.
EIGHT = ((130, 128), *((8 + i if i % 4 else 70 + i, 4 + i % 3) for i in range(7)))


@functools.cache
def text(
    name: str,
    shapes: tuple[tuple[int, ...], ...],
    spec: Any = None,
    dtype: Any = jnp.float32,
) -> str:
    tx = STEPS[name][0] if spec is None else cdx.keep_feasible(spec)
    x = {str(i): jnp.zeros(shape, dtype) for i, shape in enumerate(shapes)}
    return compiled_text(tx.update, x, tx.init(x), x)


@each_step
def test_a_short_step_forms_its_products_and_those_of_p_by_p_by_its_size(name):
    n, p = 192, 128
    ways = Program(text(name, ((n, p),))).ways()
    tall = STEPS[name][1]
    assert [way[n * p * p] for way in ways] == [tall] * 3
    assert sorted(way[p**3] for way in ways) == [0, 1, 2]
    assert all(len(list(products(way))) <= tall + 2 for way in ways)


def products(way):
    return (work for work in way.elements() if isinstance(work, int))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("keep_feasible", (640, 32)), ("constrain", (640, 32)), ("constrain", (96, 32))],
    ids=str,
)
def test_of_others_there_is_one_way_with_two_products_of_p_by_p(name, shape):
    n, p = shape
    (way,) = Program(text(name, (shape,))).ways()
    assert way[n * p * p] == STEPS[name][1]
    assert way[p**3] == 2


@pytest.mark.parametrize("shape", [(640, 32), (192, 128), (64, 64)], ids=str)
def test_a_long_step_applies_the_map_in_a_loop_of_four_products_of_p_by_p(shape):
    n, p = shape
    program = Program(text("keep_feasible", (shape,)))
    (long,) = [b for branch in program.branches(program.entry) for b in branch][-1:]
    (body,) = re.findall(r"body=%([\w.-]+)", program.text[long])
    (way,) = program.ways(body)
    assert list(products(way)) == [p**3] * 4
    # Beside the Gram matrix, one product of n×p×p, if a second look is not needed.
    (looks,) = program.branches(long)
    (once,) = [program.ways(look) for look in looks if not program.loops(look)]
    assert [list(products(way)) for way in once] == [[n * p * p]]


@pytest.mark.parametrize("name", ["keep_feasible", "constrain"])
def test_a_complex_step_has_as_many_complex_products(name):
    n, p = 640, 32
    program = text(name, ((n, p),), dtype=jnp.complex64)
    (way,) = Program(program).ways()
    assert way[n * p * p] == STEPS[name][1]
    assert way[p**3] == 2
    # Each with complex factors: none was taken apart into real ones.
    assert set(re.findall(r"= (\w+)\[[\d,]*\]\S* dot\(", program)) == {"c64"}


@pytest.mark.parametrize("name", ["keep_feasible", "constrain"])
def test_a_scale_adds_no_product(name):
    n, p = 640, 32
    spec = cdx.Stiefel(scale=1.7)
    txs = {"keep_feasible": cdx.keep_feasible, "constrain": scaled_constrain}
    x = jnp.zeros((n, p), jnp.float32)
    tx = txs[name](spec)
    (way,) = Program(compiled_text(tx.update, x, tx.init(x), x)).ways()
    assert way[n * p * p] == STEPS[name][1]
    assert way[p**3] == 2


def scaled_constrain(spec):
    return cdx.constrain(optax.sgd(0.1), spec)


def test_of_a_stack_the_products_are_as_many():
    k, n, p = 5, 24, 8
    spec = cdx.Stiefel(rows=-2, columns=-1)
    (way,) = Program(text("keep_feasible", ((k, n, p),), spec)).ways()
    assert way[k * n * p * p] == 2
    assert way[k * p**3] == 2


@pytest.mark.parametrize(("name", "most"), [("keep_feasible", 1), ("constrain", 2)])
def test_a_short_step_of_eight_shapes_decides_once_and_never_loops(name, most):
    program = Program(text(name, EIGHT))
    # Had the usual branch a loop, there would be no way.
    (way,) = program.ways()
    assert 1 <= way["conditional"] <= most
    assert program.loops(program.entry) > 0


@pytest.mark.parametrize("name", ["keep_feasible", "constrain"])
def test_another_shape_adds_a_bounded_number_of_kernels(name):
    """What takes time to compile, counted: it is some 6 ms for each on CPU."""

    def kernels(shapes):
        return len(re.findall(r" (?:fusion|dot|reduce)\(", text(name, shapes)))

    added = (kernels(EIGHT) - kernels(EIGHT[-1:])) / 7
    assert added <= 110
