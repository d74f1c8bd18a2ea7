"""Points of the solver, and derivatives of functions of them.

A point is a list with one entry for each leaf of the parameters: matrices
``(*batch, n, p)`` for a constrained leaf, the leaf itself for a free one. Points may be
complex. Their inner product is then the real part of the complex one, and a gradient is
the direction of steepest ascent, the conjugate of that of ``jax.grad``.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from cdopt_jax._math.products import is_complex, real_product

Point = list[Array]


def dot(a: Point, b: Point) -> Array:
    """The Euclidean inner product, of complex points its real part."""
    # Not by a contraction, of which the result has no layout on Explicit axes.
    return jnp.asarray(optax.tree.sum(jax.tree.map(real_product, a, b)))


def dots(*pairs: tuple[Point, Point]) -> Array:
    """The inner products of many pairs of points, by one sum.

    XLA takes 10 ms to compile a sum over all entries, as long as for ten other kernels.
    """
    leaves = zip(*(zip(*pair, strict=True) for pair in pairs), strict=True)
    rows = [jnp.stack([real_product(a, b) for a, b in leaf]) for leaf in leaves]
    sums = [jnp.sum(row, axis=tuple(range(1, row.ndim))) for row in rows]
    return sum(sums[1:], sums[0])


def value_and_gradient(
    f: Callable[[Point], Array],
) -> Callable[[Point], tuple[Array, Point]]:
    """From a point to the value of a real function and its gradient."""

    def both(x):
        value, gradient = jax.value_and_grad(f)(x)
        return value, optax.tree.conj(gradient)

    return both


def gradient_of(f: Callable[[Point], Array]) -> Callable[[Point], Point]:
    """From a point to the gradient of a real function."""
    return lambda x: optax.tree.conj(jax.grad(f)(x))


def real_parts(x: Point) -> Point:
    """A point as one of real arrays: complex ones become a real and an imaginary part.

    Inner products and lengths are the same.
    """
    pairs = [(jnp.real(a), jnp.imag(a)) if is_complex(a) else (a,) for a in x]
    return [part for pair in pairs for part in pair]


def from_real_parts(parts: Point, like: Point) -> Point:
    """The inverse of `real_parts`, given any point of the same dtypes."""
    left = iter(parts)
    return [
        lax.complex(next(left), next(left)) if is_complex(a) else next(left)
        for a in like
    ]
