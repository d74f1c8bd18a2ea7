"""Points on a sphere as far from each other as can be."""

import math

import jax
import jax.numpy as jnp
import numpy as np

import cdopt_jax as cdx
from benchmarks.shared.problems.signature import Problem


def _least(m, d):
    """The least largest inner product of m points, where it is a theorem."""
    if d == 2:
        return math.cos(2 * math.pi / m)
    if m <= d + 1:  # a simplex
        return -1 / (m - 1)
    if m <= 2 * d:  # Rankin, 1955
        return 0.0
    if (m, d) == (12, 3):  # the icosahedron: Fejes Tóth, 1943
        return 1 / math.sqrt(5)
    return None


def packing(seed: int, m: int = 12, d: int = 3) -> Problem:
    """The largest ⟨xᵢ, xⱼ⟩, i < j, of m unit vectors: min of a max.

    The unknown is a stack of shape (m, d, 1), one matrix of a single column for each
    point. Twelve points in space make an icosahedron, but there are other local minima.

    Args:
        seed: The seed of the start.
        m: The number of points, at least two.
        d: The dimension of the space, at least two.

    Returns:
        The problem; ``best`` is None where no theorem gives it.
    """
    first, second = np.triu_indices(m, 1)

    def f(x):
        points = x[..., 0]
        return jnp.max((points @ points.T)[first, second])

    return Problem(
        f=f,
        start=cdx.stiefel.random(jax.random.key(seed), (m, d, 1), float),
        mask=cdx.Stiefel(rows=-2, columns=-1),
        smooth=False,
        best=_least(m, d),
    )
