"""Orthogonal dictionary learning: the basis in which samples are sparsest."""

import jax
import jax.numpy as jnp
import numpy as np

import cdopt_jax as cdx
from benchmarks.shared.problems import distances
from benchmarks.shared.problems.draws import sparse_combinations
from benchmarks.shared.problems.signature import Problem


def dictionary(
    seed: int,
    n: int = 30,
    filled: float = 0.3,
    count: int | None = None,
) -> Problem:
    """(1/m)‖YᵀX‖₁ over all orthogonal X, for Y of sparse combinations of a planted one.

    The codes are Bernoulli-Gaussian and there are 10·n^1.5 samples, as in Li et al.,
    "Weakly convex optimization over Stiefel manifold using Riemannian subgradient-type
    methods", 2021. With so many, the planted dictionary is a sharp minimum with high
    probability (Wang, Wu and Yu, "Unique sharp local minimum in ℓ1-minimization
    complete dictionary learning", 2020), and ``best`` is the value there.

    Args:
        seed: The seed of dictionary, codes and start.
        n: The order of the dictionary.
        filled: The share of codes that are not zero.
        count: The number m of samples; None for 10·n^1.5.

    Returns:
        The problem; ``error`` is the distance up to signs and order of the columns.
    """
    count = int(10 * n**1.5) if count is None else count
    planted, samples = sparse_combinations(seed, n, count, filled)
    y = jnp.asarray(samples.T)

    def f(x):
        return jnp.sum(jnp.abs(y @ x)) / count

    return Problem(
        f=f,
        start=cdx.stiefel.random(jax.random.key(seed), (n, n), float),
        smooth=False,
        best=float(np.abs(samples.T @ planted).sum() / count),
        error=distances.up_to_signs_and_order(planted),
    )
