"""Dual principal component pursuit: a subspace found among many outliers.

Most points lie anywhere, the others in a subspace; the unknown is a basis of what is
orthogonal to the subspace, and the inliers are where the objective has its kinks.
Methods start where the literature does, at the left singular vectors of the points with
the least singular values: Zhu et al., "Dual principal component pursuit: probability
analysis and efficient algorithms", 2018; Ding et al., "Dual principal component pursuit
for robust subspace learning: theory and algorithms for a holistic approach", 2021.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from benchmarks.shared.problems import distances, real_data
from benchmarks.shared.problems.draws import points_near_a_subspace
from benchmarks.shared.problems.signature import Problem


def _lengths(y):
    """The length of each row; its derivative at a row of zeros is zero."""
    squares = jnp.sum(y**2, axis=1)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


def _sums(y):
    return jnp.sum(jnp.abs(y), axis=1)


def _pursuit(points, p, size, **more):
    y = jnp.asarray(points)
    # Those of least singular value come last.
    start = jnp.asarray(np.linalg.svd(points.T, full_matrices=False)[0][:, -p:])

    def f(x):
        return jnp.mean(size(y @ x))

    return Problem(f=f, start=start, smooth=False, **more)


def _planted(seed, n, p, outliers, count):
    outside = round(outliers * count)
    return points_near_a_subspace(seed, n, p, count - outside, outside)


def subspace_l2(
    seed: int,
    n: int = 30,
    p: int = 5,
    outliers: float = 0.7,
    count: int = 1500,
) -> Problem:
    """(1/N)Σ‖Xᵀyᵢ‖ for unit vectors yᵢ, of which a share are outliers.

    The value depends on the span of X only. The planted complement is the minimiser
    with overwhelming probability while the outliers are fewer than about the square of
    the number of inliers (Ding et al.), and ``best`` is the value there.

    Args:
        seed: The seed of the points.
        n: The dimension of the space.
        p: The dimension of the complement.
        outliers: The share of outliers.
        count: The number N of points.

    Returns:
        The problem; ``error`` is the sine of the largest angle between span(X) and the
        planted complement.
    """
    points, basis = _planted(seed, n, p, outliers, count)
    best = float(np.linalg.norm(points @ basis[:, :p], axis=1).mean())
    error = distances.from_subspace(basis[:, p:])
    return _pursuit(points, p, _lengths, best=best, error=error)


def subspace_l1(
    seed: int,
    n: int = 30,
    p: int = 5,
    outliers: float = 0.7,
    count: int = 1500,
) -> Problem:
    """(1/N)‖YᵀX‖₁, the same problem with entries in place of lengths.

    Inliers vanish on every basis of the planted complement, but the outliers' part is
    less on some bases than on others, and the least of it has no closed form: there is
    no ``best``. It is still the span that is to be recovered, so ``error`` is the same
    angle as in `subspace_l2`, whose arguments these are.
    """
    points, basis = _planted(seed, n, p, outliers, count)
    error = distances.from_subspace(basis[:, p:])
    return _pursuit(points, p, _sums, error=error, starts=12)


def faces(
    directory: Path,
    seed: int,
    n: int = 30,
    dimension: int = 9,
    outliers: float = 0.5,
) -> Problem:
    """(1/N)Σ‖Xᵀyᵢ‖ for images of one person among those of others (cropped Yale B).

    The images of one face under all lights are near a subspace of nine dimensions
    (Basri and Jacobs, 2003). All images of the person of that seed are inliers, and
    images of other people, drawn from the seed, are the outliers. Pixels are reduced
    to n coordinates by the leading left singular vectors of all these images, without
    centring, since the subspace goes through zero; then each has unit length. Nothing
    is planted: there is neither ``best`` nor ``error``.

    Args:
        directory: The folder of the file.
        seed: The seed of the person and of the outliers.
        n: The number of coordinates.
        dimension: The dimension of the subspace sought; X has n − dimension columns.
        outliers: The share of outliers.

    Returns:
        The problem.
    """
    data = real_data.load("cropped_yaleB_48x42", directory)
    images, people = data["x"], data["y"]
    rng = np.random.default_rng(seed)
    own = people == rng.integers(people.max() + 1)
    count = round(own.sum() * outliers / (1 - outliers))
    others = rng.choice(np.flatnonzero(~own), count, replace=False)
    chosen = np.concatenate([images[own], images[others]]).astype(np.float64)
    pixels = chosen.reshape(len(chosen), -1)
    reduced = pixels @ np.linalg.svd(pixels, full_matrices=False)[2][:n].T
    points = reduced / np.linalg.norm(reduced, axis=1, keepdims=True)
    return _pursuit(points, n - dimension, _lengths)
