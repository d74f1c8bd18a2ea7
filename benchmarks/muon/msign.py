"""The matrix sign UVᵀ of X = UΣVᵀ, by products alone.

Odd polynomials of degree five raise every singular value to one. They are those of
Polar Express (Amsel and others, 2025): each is the best approximation of one on the
interval to which those before it have brought the singular values. They are applied to
the Gram matrix, p×p, which leaves two products of n×p×p for each of two stages in place
of two for each polynomial.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.shared.algebra import product

TAYLOR = (1.875, -1.25, 0.375)
"""The polynomial whose error at one is of third order, for the last steps."""
SAFETY = 1.01
"""What rounding may have added to the largest singular value."""

ONE_STAGE = 6
"""As many polynomials as need the Gram matrix once."""


def minimax(low: float, high: float) -> tuple[tuple[float, float, float], float]:
    """The odd polynomial of degree five that is nearest to one on an interval.

    Its error takes the same size with alternating signs at the ends and at two points
    between them, which an exchange (Remez) finds.

    Returns:
        The three coefficients and the size of the error.
    """
    x = np.linspace(low, high, 4)
    a, b, c, error = _equal_errors(x)
    for _ in range(30):
        root = np.sqrt(9 * b * b - 20 * a * c)
        x[1:3] = np.sqrt((np.array([-root, root]) - 3 * b) / (10 * c))
        a, b, c, error = _equal_errors(x)
    return (float(a), float(b), float(c)), float(error)


def _equal_errors(x):
    """The coefficients with errors of one size and alternating signs at four points."""
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    return np.linalg.solve(np.stack([x, x**3, x**5, signs], axis=1), np.ones(4))


@cache
def polynomials(lowest: float) -> list[tuple[float, float, float]]:
    """What brings singular values between `lowest` and one to one, in float32."""
    found, low, high = [], lowest, 1.0
    while high - low > 0.05:
        (a, b, c), error = minimax(low, high)
        found.append((a / SAFETY, b / SAFETY**3, c / SAFETY**5))
        low, high = (1 - error) / SAFETY, 1 + error
    return [*found, TAYLOR, TAYLOR]


def _factor(gram, steps):
    """W with XW as the polynomials leave X, from XᵀX, which commutes with all."""
    eye = jnp.eye(gram.shape[-1], dtype=gram.dtype)

    def value(a, b, c):
        return a * eye + product(gram, b * eye + c * gram)

    first, *others = steps
    w = p = value(*first)
    for coefficients in others:
        gram = product(p, product(gram, p))
        p = value(*coefficients)
        w = product(w, p)
    return w


def msign(x: jax.Array, lowest: float = 1e-4) -> jax.Array:
    """The orthonormal polar factor of matrices with no more columns than rows.

    Args:
        x: Of shape (…, n, p).
        lowest: The least singular value that is brought to one, relative to the fourth
            root of Σσ⁴, which bounds the largest. Lesser ones come out less than one.

    Returns:
        Matrices of the same shape; zero where x is.
    """
    steps = polynomials(lowest)
    gram = product(x.mT, x)
    size = jnp.sqrt(jnp.sum(gram**2, axis=(-2, -1), keepdims=True))
    scale = jnp.where(size > 0, 1 / size, 0)
    # The scale goes to the factor: in front of a product XLA would compute x anew
    # for every entry.
    gram, root = gram * scale, jnp.sqrt(scale)
    if len(steps) <= ONE_STAGE:
        return product(x, root * _factor(gram, steps))
    # The Gram matrix knows singular values below the root of the rounding no more. A
    # few polynomials lift them above it, and then it is formed again.
    x = product(x, root * _factor(gram, steps[:3]))
    return product(x, _factor(product(x.mT, x), steps[3:]))


def retracted(x: jax.Array) -> jax.Array:
    """`msign` of matrices whose singular values differ by a factor of ten at most."""
    return msign(x, 0.02)
