"""Sparse principal components: −tr(XᵀAᵀAX) and a term that makes zeros.

The random protocol is that of Chen, Ma, So and Zhang, "Proximal gradient method for
nonsmooth optimization over the Stiefel manifold" (ManPG), 2020: samples are centred,
and columns have unit length. Real data are treated alike.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import cdopt_jax as cdx
from benchmarks.shared.problems import real_data
from benchmarks.shared.problems.signature import Problem
from cdopt_jax import prox


def _standardised(a):
    a = a - a.mean(axis=0)
    return a / np.linalg.norm(a, axis=0)


def _start(seed, n, r):
    return cdx.stiefel.random(jax.random.key(seed), (n, r), float)


def _explained(seed, a, r, regularizer):
    samples = jnp.asarray(a)

    def f(x):
        return -jnp.sum((samples @ x) ** 2)

    start = _start(seed, a.shape[1], r)
    return Problem(f=f, start=start, regularizer=regularizer)


def _gaussian(seed, m, n):
    return _standardised(np.random.default_rng(seed).normal(size=(m, n)))


def sparse_pca(
    seed: int, n: int = 500, r: int = 5, mu: float = 0.8, m: int = 50
) -> Problem:
    """−tr(XᵀAᵀAX) + μ‖X‖₁ for m Gaussian samples of n variables."""
    problem = _explained(seed, _gaussian(seed, m, n), r, prox.l1(mu))
    # Of a single component there are no other bases to start from.
    return problem._replace(starts=12 if r > 1 else 1)


def group_sparse_pca(
    seed: int, n: int = 500, r: int = 5, mu: float = 1.5, m: int = 50
) -> Problem:
    """−tr(XᵀAᵀAX) + μΣ‖row of X‖: a variable is in all components or in none.

    A row has r entries, hence the larger weight: with that of `sparse_pca` hardly a
    row would vanish.
    """
    return _explained(seed, _gaussian(seed, m, n), r, prox.l21(mu, axis=-1))


def pitprops(directory: Path, seed: int, r: int = 6, mu: float = 0.5) -> Problem:
    """−tr(XᵀCX) + μ‖X‖₁ for the correlations C of 13 measures of 180 pit props.

    Jeffers, "Two case studies in the application of principal component analysis",
    1967: the example on which sparse components are usually shown, six of them.
    """
    correlations = jnp.asarray(real_data.load("pitprops", directory)["corr"])

    def f(x):
        return -jnp.sum(x * (correlations @ x))

    start = _start(seed, len(correlations), r)
    return Problem(f=f, start=start, regularizer=prox.l1(mu), starts=12)


def golub(directory: Path, seed: int, r: int = 5, mu: float = 5.0) -> Problem:
    """−tr(XᵀAᵀAX) + μ‖X‖₁ for 3,051 genes of 38 patients with leukaemia.

    Golub et al., "Molecular classification of cancer", 1999. The columns are centred
    and of unit length, as in `sparse_pca`.
    """
    x = real_data.load("golub", directory)["x"].astype(np.float64)
    return _explained(seed, _standardised(x), r, prox.l1(mu))._replace(starts=12)
