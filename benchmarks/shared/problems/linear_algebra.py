"""Smooth problems whose least value is known from a decomposition."""

import jax
import jax.numpy as jnp
import numpy as np

import cdopt_jax as cdx
from benchmarks.shared.problems.draws import (
    geometric,
    on_the_side_of,
    orthogonal,
    turned_clouds,
)
from benchmarks.shared.problems.signature import Problem, deterministic


def _start(seed, n, p):
    return cdx.stiefel.random(jax.random.key(seed), (n, p), jnp.float32)


def pca(seed: int, n: int = 200, p: int = 8, condition: float = 1e3) -> Problem:
    """The leading eigenvectors of a matrix with geometrically falling eigenvalues."""
    matrix, spectrum, _ = geometric(seed, n, condition)
    m = jnp.asarray(matrix, jnp.float32)

    def value(x):
        return -jnp.sum(x * jnp.matmul(m, x, precision="highest")) / 2

    best = -float(spectrum[:p].sum()) / 2
    return deterministic(value, _start(seed, n, p), best=best)


def procrustes(seed: int, n: int = 60) -> Problem:
    """The rotation that best takes one cloud of points to another, with noise."""
    a, b, solution = turned_clouds(seed, n)
    start = on_the_side_of(solution, np.array(_start(seed, n, n)))
    a32, b32 = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)

    def value(x):
        return jnp.sum((jnp.matmul(a32, x, precision="highest") - b32) ** 2) / 2

    best = float(np.sum((a @ solution - b) ** 2) / 2)
    return deterministic(value, jnp.asarray(start), best=best)


def unbalanced_procrustes(
    seed: int, n: int = 200, p: int = 40, condition: float = 10.0
) -> Problem:
    """‖AX − B‖²/2 over n×p, with B = AX* + R.

    A is 2n×n, and its singular values fall geometrically from one. The columns of R
    are orthogonal to those of A, so that X* is optimal and ‖R‖²/2 is the least value.
    """
    rng = np.random.default_rng(seed)
    basis = orthogonal(rng, 2 * n)
    a = (basis[:, :n] * np.geomspace(1, 1 / condition, n)) @ orthogonal(rng, n).T
    rest = 0.1 * basis[:, n:] @ rng.normal(size=(n, p)) / n**0.5
    b = a @ orthogonal(rng, n)[:, :p] + rest
    a32, b32 = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)

    def value(x):
        return jnp.sum((jnp.matmul(a32, x, precision="highest") - b32) ** 2) / 2

    return deterministic(value, _start(seed, n, p), best=float(np.sum(rest**2) / 2))


def brockett(seed: int, n: int = 200, p: int = 20) -> Problem:
    """Brockett's function −tr(XᵀMXN)/2 with N = diag(p, …, 1)/p.

    M has p eigenvalues evenly spaced from 1 to 0.3, and the others from 0.1 to 0. The
    minimisers are the leading eigenvectors in order. Saddle points are their other
    choices and orders, and there are no other local minima.
    """
    q = orthogonal(np.random.default_rng(seed), n)
    spectrum = np.concatenate([np.linspace(1, 0.3, p), np.linspace(0.1, 0, n - p)])
    weights = np.arange(p, 0, -1) / p
    m = jnp.asarray((q * spectrum) @ q.T, jnp.float32)
    w = jnp.asarray(weights, jnp.float32)

    def value(x):
        return -jnp.sum(x * jnp.matmul(m, x, precision="highest") * w) / 2

    best = -float(spectrum[:p] @ weights) / 2
    return deterministic(value, _start(seed, n, p), best=best)


def quadratic_assignment(seed: int, n: int = 30) -> Problem:
    """The orthogonal relaxation of matching two graphs: −tr(AXBXᵀ)/2."""
    rng = np.random.default_rng(seed)

    def graph():
        m = rng.normal(size=(n, n))
        return (m + m.T) / (2 * n) ** 0.5

    a, b = graph(), graph()
    a32, b32 = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)

    def value(x):
        ax, xb = (jnp.matmul(*f, precision="highest") for f in ((a32, x), (x, b32)))
        return -jnp.sum(ax * xb) / 2

    best = -float(np.linalg.eigvalsh(a) @ np.linalg.eigvalsh(b)) / 2
    return deterministic(value, _start(seed, n, n), best=best)
