"""Smooth problems, most with a least value that a decomposition gives."""

import jax
import jax.numpy as jnp
import numpy as np

import cdopt_jax as cdx
from benchmarks.shared.problems import distances
from benchmarks.shared.problems.draws import (
    geometric,
    on_the_side_of,
    orthogonal,
    turned_clouds,
)
from benchmarks.shared.problems.signature import Problem


def _start(seed, n, p):
    return cdx.stiefel.random(jax.random.key(seed), (n, p), float)


def joint_diagonalisation(
    seed: int, n: int = 60, count: int = 20, noise: float = 0.01
) -> Problem:
    """−Σₖ‖diag(XᵀCₖX)‖² for matrices with the same eigenvectors, but for noise.

    Args:
        seed: The seed of the matrices and the start.
        n: Their order; X is square.
        count: Their number.
        noise: The standard deviation of what is added to entries off the diagonal;
            eigenvalues are standard Gaussian.

    Returns:
        The problem; ``error`` is the distance from the planted eigenvectors, up to
        signs and order. With noise the minimiser is only near them, and there is no
        ``best``.
    """
    rng = np.random.default_rng(seed)
    planted = orthogonal(rng, n)
    spectra = rng.normal(size=(count, 1, n))
    disturbance = rng.normal(size=(count, n, n))
    # Divided by √2, entries off the diagonal are standard Gaussian again.
    symmetric = (disturbance + disturbance.transpose(0, 2, 1)) / 2**0.5
    matrices = jnp.asarray((planted * spectra) @ planted.T + noise * symmetric)

    def f(x):
        return -jnp.sum(jnp.sum(x * (matrices @ x), axis=-2) ** 2)

    return Problem(
        f=f,
        start=_start(seed, n, n),
        best=None if noise else -float(np.sum(spectra**2)),
        error=distances.up_to_signs_and_order(planted),
    )


def procrustes(seed: int, n: int = 150) -> Problem:
    """‖AX − B‖²/2 over all orthogonal X, from a start on the side of the solution."""
    a, b, solution = turned_clouds(seed, n)
    start = on_the_side_of(solution, np.asarray(_start(seed, n, n)))
    points, targets = jnp.asarray(a), jnp.asarray(b)

    def f(x):
        return jnp.sum((points @ x - targets) ** 2) / 2

    best = float(np.sum((a @ solution - b) ** 2) / 2)
    return Problem(f=f, start=jnp.asarray(start), best=best)


def pca(seed: int, n: int = 1000, p: int = 10, condition: float = 1e3) -> Problem:
    """−tr(XᵀMX)/2 for M with geometrically falling eigenvalues.

    ``error`` is the sine of the largest angle from the leading eigenvectors.
    """
    matrix, spectrum, vectors = geometric(seed, n, condition)
    m = jnp.asarray(matrix)

    def f(x):
        return -jnp.sum(x * (m @ x)) / 2

    return Problem(
        f=f,
        start=_start(seed, n, p),
        best=-float(spectrum[:p].sum()) / 2,
        error=distances.from_subspace(vectors[:, p:]),
    )


def quadratic_assignment(seed: int, n: int = 30) -> Problem:
    """The orthogonal relaxation of matching two graphs: −tr(AXBXᵀ)/2."""
    rng = np.random.default_rng(seed)

    def graph():
        m = rng.normal(size=(n, n))
        return (m + m.T) / (2 * n) ** 0.5

    a, b = graph(), graph()
    left, right = jnp.asarray(a), jnp.asarray(b)

    def f(x):
        return -jnp.sum((left @ x) * (x @ right)) / 2

    best = -float(np.linalg.eigvalsh(a) @ np.linalg.eigvalsh(b)) / 2
    return Problem(f=f, start=_start(seed, n, n), best=best)
