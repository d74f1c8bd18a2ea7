"""Nonsmooth problems, in the literature's random protocols."""

import jax
import jax.numpy as jnp
import numpy as np

import cdopt_jax as cdx
from benchmarks.shared.problems.draws import points_near_a_subspace, sparse_combinations
from benchmarks.shared.problems.signature import Problem, deterministic


def sparse_pca(seed: int, n: int = 100, p: int = 5, weight: float = 0.2) -> Problem:
    """−‖AX‖²/2 + μ‖X‖₁, for 50 samples with normalised columns."""
    a = np.random.default_rng(seed).normal(size=(50, n))
    a = jnp.asarray(a / np.linalg.norm(a, axis=0), jnp.float32)
    start = cdx.stiefel.random(jax.random.key(seed), (n, p), jnp.float32)

    def value(x):
        return -jnp.sum((a @ x) ** 2) / 2 + weight * jnp.sum(jnp.abs(x))

    return deterministic(value, start)


def subspace_recovery(seed: int, n: int = 30, p: int = 5) -> Problem:
    """The subspace orthogonal to most of the points: mean ‖Xᵀyᵢ‖, 60 % outliers."""
    drawn, basis = points_near_a_subspace(seed, n, p, inliers=600, outliers=900)
    points = jnp.asarray(drawn, jnp.float32)
    start = cdx.stiefel.random(jax.random.key(seed), (n, p), jnp.float32)

    def value(x):
        squares = jnp.sum((points @ x) ** 2, axis=1)
        # The derivative of √ at 0 is infinite, and an inlier may be met exactly.
        return jnp.mean(jnp.sqrt(jnp.maximum(squares, 1e-20)))

    best = float(value(jnp.asarray(basis[:, :p], jnp.float32)))
    return deterministic(value, start, best=best)


def dictionary_learning(seed: int, n: int = 20) -> Problem:
    """An orthogonal dictionary from sparse combinations: mean |XᵀY|, 30 % filled."""
    planted, samples = sparse_combinations(seed, n, 2000, filled=0.3)
    y = jnp.asarray(samples, jnp.float32)
    start = cdx.stiefel.random(jax.random.key(seed), (n, n), jnp.float32)

    def value(x):
        return jnp.mean(jnp.sum(jnp.abs(x.T @ y), axis=0))

    best = float(value(jnp.asarray(planted, jnp.float32)))
    return deterministic(value, start, best=best)
