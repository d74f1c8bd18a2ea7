"""Smooth problems whose least value is known from a decomposition."""

import jax
import jax.numpy as jnp
import numpy as np

import cdopt_jax as cdx
from benchmarks.problems.signature import Problem, deterministic


def _orthogonal(rng, n):
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


def _start(seed, n, p):
    return cdx.stiefel.random(jax.random.key(seed), (n, p), jnp.float32)


def pca(seed: int, n: int = 200, p: int = 8, condition: float = 1e3) -> Problem:
    """The leading eigenvectors of a matrix with geometrically falling eigenvalues."""
    q = _orthogonal(np.random.default_rng(seed), n)
    spectrum = np.geomspace(1, 1 / condition, n)
    m = jnp.asarray((q * spectrum) @ q.T, jnp.float32)

    def value(x):
        return -jnp.sum(x * jnp.matmul(m, x, precision="highest")) / 2

    best = -float(spectrum[:p].sum()) / 2
    return deterministic(value, _start(seed, n, p), best=best)


def procrustes(seed: int, n: int = 60) -> Problem:
    """The rotation that best takes one cloud of points to another, with noise."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(2 * n, n)) * np.geomspace(1, 0.1, n) / n**0.5
    b = a @ _orthogonal(rng, n) + 0.1 * rng.normal(size=(2 * n, n)) / n**0.5
    # In the large, the sign of the determinant splits the manifold: start on the side
    # of the solution, which no continuous path can change.
    u, _, vt = np.linalg.svd(a.T @ b)
    solution = u @ vt
    start = np.array(_start(seed, n, n))
    if np.linalg.det(start) * np.linalg.det(solution) < 0:
        start[:, 0] *= -1
    a32, b32 = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)

    def value(x):
        return jnp.sum((jnp.matmul(a32, x, precision="highest") - b32) ** 2) / 2

    best = float(np.sum((a @ solution - b) ** 2) / 2)
    return deterministic(value, jnp.asarray(start), best=best)


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
