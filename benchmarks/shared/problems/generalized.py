"""Generalized eigenvalues: −tr(XᵀAX)/2 where XᵀBX = I, and what is such a problem.

B is always Zᵀ(Z·)/N + εI, or two such blocks. With ``metric="dense"`` it is an array,
with ``metric="callable"`` that product, and the matrix is never formed. ``sampled``
draws samples of A, and ``sampled_metric`` those of B.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from sklearn.datasets import load_digits

import cdopt_jax as cdx
from benchmarks.shared.problems import real_data
from benchmarks.shared.problems.draws import orthogonal
from benchmarks.shared.problems.signature import Problem

Form = Literal["dense", "callable"]

_GREYS = 16
_SIDE = 8


def _covariance(z, ridge):
    """The map x ↦ Zᵀ(Zx)/N + εx."""
    rows = jnp.asarray(z)

    def product(x):
        return rows.T @ (rows @ x) / len(rows) + ridge * x

    return product


def _drawn(z, ridge, batch):
    """From a key to ZᵀZ/N + εI of a few rows of Z."""
    rows = jnp.asarray(z)

    def draw(key):
        some = rows[jax.random.randint(key, (batch,), 0, len(rows))]
        return some.T @ some / batch + ridge * jnp.eye(rows.shape[1])

    return draw


def _pencil(
    seed: int,
    a: np.ndarray,
    product: Callable[[jax.Array], jax.Array],
    p: int,
    metric: Form,
    sampled: Callable[[jax.Array, jax.Array], jax.Array],
    sampled_metric: Callable[[jax.Array], jax.Array],
) -> Problem:
    """The problem of A and the B of a product."""
    if metric not in ("dense", "callable"):
        raise ValueError(f'metric must be "dense" or "callable"; it is {metric!r}')
    n = len(a)
    full = np.asarray(product(jnp.eye(n)))
    full = (full + full.T) / 2
    leading = scipy.linalg.eigh(
        a, full, eigvals_only=True, subset_by_index=(n - p, n - 1)
    )
    b = jnp.asarray(full) if metric == "dense" else product
    matrix = jnp.asarray(a)

    def f(x):
        return -jnp.sum(x * (matrix @ x)) / 2

    return Problem(
        f=f,
        start=cdx.stiefel.random(jax.random.key(seed), (n, p), float, B=b),
        mask=cdx.Stiefel(B=b),
        best=-float(leading.sum()) / 2,
        sampled=sampled,
        sampled_metric=sampled_metric,
    )


def _rows_of(y, batch):
    """An estimate of −tr(XᵀAX)/2, A = YᵀY/N, from a few rows of Y."""
    samples = jnp.asarray(y)

    def sampled(x, key):
        rows = jax.random.randint(key, (batch,), 0, len(samples))
        return -jnp.sum((samples[rows] @ x) ** 2) / (2 * batch)

    return sampled


def generalized_eigenvalues(
    seed: int,
    n: int = 400,
    p: int = 10,
    condition: float = 100.0,
    count: int = 1000,
    batch: int = 50,
    metric: Form = "dense",
) -> Problem:
    """The directions in which one sample varies most against another.

    Args:
        seed: The seed of samples and start.
        n: The number of variables.
        p: The number of directions.
        condition: The condition number of both distributions, whose variances fall
            geometrically along axes that are not the same.
        count: The number of rows of each sample.
        batch: The number of rows of which ``sampled`` takes the mean.
        metric: Whether B is an array or a product.

    Returns:
        The problem, with ε = 1/condition.
    """
    rng = np.random.default_rng(seed)
    deviations = np.geomspace(1, condition**-0.5, n)

    def sample():
        axes = orthogonal(rng, n)
        return rng.normal(size=(count, n)) * deviations @ axes.T

    y, z = sample(), sample()
    product = _covariance(z, 1 / condition)
    samples = _rows_of(y, batch), _drawn(z, 1 / condition, batch)
    return _pencil(seed, y.T @ y / count, product, p, metric, *samples)


def _canonical(seed, views, p, ridge, batch, metric):
    """Canonical correlations of two centred views.

    The unknown stacks the directions of both views in one matrix, A has their cross
    covariances beside the diagonal and B their own on it. The largest eigenvalues are
    the correlations, and each view carries half of the constraint.
    """
    left, right = views
    cut = left.shape[1]
    cross = left.T @ right / len(left)
    a = np.block(
        [
            [np.zeros((cut, cut)), cross],
            [cross.T, np.zeros((right.shape[1], right.shape[1]))],
        ]
    )
    products = [_covariance(view, ridge) for view in views]
    first, second = (jnp.asarray(view) for view in views)

    def product(x):
        halves = jnp.split(x, [cut], axis=-2)
        parts = [apply(half) for apply, half in zip(products, halves, strict=True)]
        return jnp.concatenate(parts, axis=-2)

    def sampled(x, key):
        rows = jax.random.randint(key, (batch,), 0, len(first))
        return -jnp.sum((first[rows] @ x[:cut]) * (second[rows] @ x[cut:])) / batch

    def sampled_metric(key):
        # The same rows of both.
        blocks = [_drawn(view, ridge, batch)(key) for view in views]
        return jax.scipy.linalg.block_diag(*blocks)

    return _pencil(seed, a, product, p, metric, sampled, sampled_metric)


def _digits():
    pixels, classes = load_digits(return_X_y=True)
    return np.asarray(pixels, np.float64) / _GREYS, np.asarray(classes)


def cca_digits(
    seed: int,
    p: int = 5,
    ridge: float = 1e-2,
    batch: int = 100,
    metric: Form = "dense",
) -> Problem:
    """Canonical correlations of the left and the right half of handwritten digits.

    The 1,797 images of scikit-learn, grey values in [0, 1], centred. The unknown has
    64 rows, the 32 pixels of the left half before those of the right.

    Args:
        seed: The seed of the start.
        p: The number of pairs of directions.
        ridge: The ε added to both covariances, since some pixels are always empty.
        batch: The number of images of which ``sampled`` takes the mean.
        metric: Whether B is an array or a product.

    Returns:
        The problem; ``best`` is minus half the sum of the regularised correlations.
    """
    pixels, _ = _digits()
    images = (pixels - pixels.mean(axis=0)).reshape(-1, _SIDE, _SIDE)
    halves = np.split(images, 2, axis=2)
    views = [half.reshape(len(images), -1) for half in halves]
    return _canonical(seed, views, p, ridge, batch, metric)


def nutrimouse(
    seed: int,
    p: int = 5,
    ridge: float = 0.1,
    batch: int = 10,
    metric: Form = "dense",
) -> Problem:
    """Canonical correlations of 120 genes and 21 fatty acids of 40 mice.

    Columns are standardised. There are fewer mice than genes, so that without the
    ridge every correlation would be one.

    Args:
        seed: The seed of the start.
        p: The number of pairs of directions.
        ridge: The ε added to both covariances.
        batch: The number of mice of which ``sampled`` takes the mean.
        metric: Whether B is an array or a product.

    Returns:
        The problem, with the genes in the first rows of the unknown.

    Raises:
        DataError: If the data are not installed.
    """
    views = [(v - v.mean(axis=0)) / v.std(axis=0) for v in real_data.nutrimouse()]
    return _canonical(seed, views, p, ridge, batch, metric)


def lda_digits(
    seed: int,
    p: int = 9,
    ridge: float = 1e-2,
    batch: int = 100,
    metric: Form = "dense",
) -> Problem:
    """Linear discriminants of handwritten digits: B within classes, A between them.

    Args:
        seed: The seed of the start.
        p: The number of directions; A has rank nine, one less than there are classes.
        ridge: The ε added to the scatter within classes.
        batch: The number of images of which ``sampled`` takes the mean.
        metric: Whether B is an array or a product.

    Returns:
        The problem.
    """
    pixels, classes = _digits()
    means = np.stack([pixels[classes == c].mean(axis=0) for c in range(10)])[classes]
    between = means - pixels.mean(axis=0)
    product = _covariance(pixels - means, ridge)
    a = between.T @ between / len(between)
    samples = _rows_of(between, batch), _drawn(pixels - means, ridge, batch)
    return _pencil(seed, a, product, p, metric, *samples)
