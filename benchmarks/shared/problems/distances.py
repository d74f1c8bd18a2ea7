"""How far an unknown is from what was planted, accurate down to rounding.

Each is a sum or a norm of differences, never 1 − cos: that loses half of the digits.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def from_subspace(complement: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """The sine of the largest principal angle between span(X) and a subspace.

    Args:
        complement: An orthonormal basis of what is orthogonal to the subspace.

    Returns:
        From X, of any basis of its span, to the sine.
    """
    others = jnp.asarray(complement)

    def sine(x):
        # Methods need not be feasible: it is the span that is judged.
        return jnp.linalg.norm(others.T @ jnp.linalg.qr(x)[0], ord=2)

    return sine


def up_to_signs_and_order(planted: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    """The distance, in Frobenius norm, of each column from the nearest planted ±column.

    As soon as no two columns are nearest to the same one, that is the distance from
    the planted matrix up to signs and order of its columns. Two that share one are far
    from it, for they are orthogonal.
    """
    q = jnp.asarray(planted)

    def distance(x):
        coordinates = q.T @ x
        sizes = jnp.abs(coordinates)
        nearest = jnp.arange(len(q))[:, None] == jnp.argmax(sizes, axis=0)
        return jnp.linalg.norm(coordinates - nearest * jnp.sign(coordinates))

    return distance
