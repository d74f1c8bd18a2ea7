"""Random data from which more than one problem is made, in NumPy's float64."""

import numpy as np


def orthogonal(rng: np.random.Generator, n: int) -> np.ndarray:
    """An orthogonal matrix of order n."""
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


def geometric(
    seed: int, n: int, condition: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A symmetric matrix with geometrically falling eigenvalues, the largest one.

    Returns:
        The matrix, its eigenvalues and its eigenvectors.
    """
    q = orthogonal(np.random.default_rng(seed), n)
    spectrum = np.geomspace(1, 1 / condition, n)
    return (q * spectrum) @ q.T, spectrum, q


def turned_clouds(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A cloud of 2n points, the same turned and with noise, and the best rotation."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(2 * n, n)) * np.geomspace(1, 0.1, n) / n**0.5
    b = a @ orthogonal(rng, n) + 0.1 * rng.normal(size=(2 * n, n)) / n**0.5
    u, _, vt = np.linalg.svd(a.T @ b)
    return a, b, u @ vt


def on_the_side_of(solution: np.ndarray, start: np.ndarray) -> np.ndarray:
    """A square start with the determinant of the solution.

    The sign of the determinant splits the manifold, and no continuous path can change
    it.
    """
    start = np.array(start)
    if np.linalg.det(start) * np.linalg.det(solution) < 0:
        start[:, 0] *= -1
    return start


def points_near_a_subspace(
    seed: int, n: int, p: int, inliers: int, outliers: int
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of which the first lie in a subspace and the others anywhere.

    Returns:
        The points, one in each row, and an orthogonal matrix whose first p columns
        span the complement of the subspace and whose others span the subspace.
    """
    rng = np.random.default_rng(seed)
    basis = orthogonal(rng, n)
    inside = rng.normal(size=(inliers, n - p)) @ basis[:, p:].T
    points = np.concatenate([inside, rng.normal(size=(outliers, n))])
    return points / np.linalg.norm(points, axis=1, keepdims=True), basis


def sparse_combinations(
    seed: int, n: int, count: int, filled: float
) -> tuple[np.ndarray, np.ndarray]:
    """An orthogonal dictionary and combinations of its columns, one in each column.

    The codes are Gaussian, and zero but for a share ``filled`` of them.
    """
    rng = np.random.default_rng(seed)
    planted = orthogonal(rng, n)
    codes = rng.normal(size=(n, count)) * (rng.random((n, count)) < filled)
    return planted, planted @ codes
