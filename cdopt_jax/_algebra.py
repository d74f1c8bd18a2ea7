"""The products and p×p polynomials that the formulas share.

Notation of `stiefel`: M = xᵀBx, E = M − I, Φ(s) = (s + sᵀ)/2.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax


def widen(dtype: Any) -> Any:
    """The dtype to compute in: float32 for half precision, else the same."""
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if half else dtype


def mm(a: Array, b: Array) -> Array:
    """The product at the highest precision, without which feasibility is lost."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def inner(a: Array, b: Array) -> Array:
    """The product aᵀb."""
    return mm(a.mT, b)


def phi(s: Array) -> Array:
    """The symmetric part."""
    return (s + s.mT) / 2


def eye(m: Array) -> Array:
    """The identity of the size and dtype of a square matrix."""
    return jnp.eye(m.shape[-1], dtype=m.dtype)


def norm(e: Array) -> Array:
    """The Frobenius norm of each matrix."""
    return jnp.sqrt(jnp.sum(e**2, axis=(-2, -1)))


def each(scalars: Array) -> Array:
    """One number for each matrix, in the shape that multiplies them."""
    return scalars[..., None, None]


def apply_metric(B: Any, x: Array) -> Any:
    """The product Bx."""
    if B is None:
        return x
    return B(x) if callable(B) else mm(B, x)


def residual(x: Array, y: Array) -> Array:
    """E = xᵀy − I, where y = Bx."""
    m = inner(x, y)
    return m - eye(m)


def factor(e: Array, e2: Array) -> Array:
    """P = I − E/2 + 3E²/8, with which A(x) = xP."""
    return eye(e) - e / 2 + 0.375 * e2


def turn(s: Array, e: Array) -> Array:
    """Q = −S + (3/2)Φ(SE), with which J_A(x)[d] = dP + xQ for S = Φ(xᵀBd)."""
    return 1.5 * phi(mm(s, e)) - s
