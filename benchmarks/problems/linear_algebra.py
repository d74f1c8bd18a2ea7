"""Smooth problems whose least value is known from a decomposition."""

import jax
import jax.numpy as jnp
import numpy as np

import cdopt_jax as cdx
from benchmarks.problems.draws import geometric, on_the_side_of, turned_clouds
from benchmarks.problems.signature import Problem, deterministic


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
