"""Compressed modes: wave functions of compact support."""

import jax
import jax.numpy as jnp

import cdopt_jax as cdx
from benchmarks.shared.problems.signature import Problem
from cdopt_jax import prox


def compressed_modes(
    seed: int, n: int = 128, r: int = 5, mu: float = 0.1, length: float = 50.0
) -> Problem:
    """tr(XᵀHX) + μ‖X‖₁ with H = −½∂² on a circle, by central differences.

    The free electrons of Ozoliņš, Lai, Caflisch and Osher, "Compressed modes for
    variational problems in mathematics and physics", 2013, with the discretisation of
    Chen, Ma, So and Zhang (ManPG), 2020: n points on [0, 50], periodic. Columns are
    unit vectors, so that μ is not scaled by the spacing.

    Args:
        seed: The seed of the start.
        n: The number of points.
        r: The number of modes.
        mu: The weight μ.
        length: The length of the interval.

    Returns:
        The problem.
    """
    spacing = length / n

    def f(x):
        # −½xᵀ∂²x is half the square of the slopes: on a circle nothing is left over.
        return jnp.sum(((jnp.roll(x, -1, axis=0) - x) / spacing) ** 2) / 2

    start = cdx.stiefel.random(jax.random.key(seed), (n, r), float)
    return Problem(f=f, start=start, regularizer=prox.l1(mu))
