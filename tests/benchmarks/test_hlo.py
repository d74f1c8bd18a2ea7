"""What is read from the text of a compiled program."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.scaling.hlo import read

N = 64
PRODUCT = 2 * N**3


def powers(*exponents):
    """A branch for each exponent k, with k products of N×N×N."""

    def branch(k):
        def multiply(x):
            y = x
            for _ in range(k):
                y = jnp.sin(y @ x)
            return y

        return multiply

    return [branch(k) for k in exponents]


@pytest.mark.parametrize("order", [(1, 2, 4), (4, 1, 2), (2, 4)], ids=str)
def test_the_dearest_branch_is_rare_and_the_next_one_is_usual(order):
    x = jax.ShapeDtypeStruct((N, N), jnp.float32)
    i = jax.ShapeDtypeStruct((), jnp.int32)
    program = jax.jit(lambda i, x: lax.switch(i, powers(*order), x) @ x)
    text = program.lower(i, x).compile().as_text()
    assert text
    usual, rare = read(text)
    second = sorted(order)[-2]
    assert usual.flops == (1 + second) * PRODUCT
    assert rare.flops == (sum(order) - second) * PRODUCT
