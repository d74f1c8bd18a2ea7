"""The nearest point of the manifold, z·G^(−1/2) with G = zᴴBz, from G alone.

q(w) = 1 − w/2 + 3w²/8 − 5w³/16 + 35w⁴/128 is the Taylor polynomial of (1 + w)^(−1/2).
With F = G/c − I for a number c, the residual of z·q(F)/√c is e(F), where

    e(w) = (1 + w)q(w)² − 1.

The coefficients of e below w⁵ are zero and the absolute values of the others add up to
one, so ‖e(F)‖ ≤ ρ⁵ where ‖F‖ ≤ ρ ≤ 1. Of q cut to degree d = 1 or 2 it is ρ^(d+1). In
degree 2 that is the map A of the paper. |e(w)| < |w| on (−1, 1], of q and of A: applied
to F, then to e(F), and so on, they bring every z of full rank to the manifold, if c is
so large that no eigenvalue of G/c is above 2.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .products import (
    adjoint,
    eye,
    map_factor,
    mm,
    norm,
    per_matrix,
    squared_modulus,
)

COEFFICIENTS = (1.0, -1 / 2, 3 / 8, -5 / 16, 35 / 128)
"""Those of q."""

APPLICATIONS = 20
"""How often `inverse_root` applies A at most."""

GROWTH = (15 / 8) ** 2
"""By how much A multiplies the squares of the smallest singular values."""


def factor(gram: Array, numbers: Array, degree: int = 4) -> Array:
    """q(F)/√c − I, for F = G/c − I and q cut to a degree.

    Degree 1, 2 and 4 take 0, 1 and 2 products.

    Args:
        gram: G.
        numbers: 1/c and 1/√c, of each matrix, `together` with others.
        degree: The degree.
    """
    _, c1, c2, c3, c4 = COEFFICIENTS
    one, root = eye(gram), per_matrix(entry(numbers, 1))
    f = per_matrix(entry(numbers, 0)) * gram - one
    if degree == 1:
        return root * (c1 * f) + (root - 1) * one
    f2 = mm(f, f)
    w = root * (c1 * f + c2 * f2) + (root - 1) * one
    return w if degree == 2 else w + root * mm(f2, c3 * f + c4 * f2)


def _whole_factor(gram, numbers):
    """q(F)/√c, which `factor` plus I is not to the last digit if c is large."""
    _, c1, c2, c3, c4 = COEFFICIENTS
    f = per_matrix(entry(numbers, 0)) * gram - eye(gram)
    f2 = mm(f, f)
    q = eye(gram) + c1 * f + c2 * f2 + mm(f2, c3 * f + c4 * f2)
    return per_matrix(entry(numbers, 1)) * q


def mean_eigenvalue(gram: Array) -> Array:
    """The trace over p, for each matrix."""
    p = gram.shape[-1]
    diagonal = jnp.real(gram.reshape(*gram.shape[:-2], p * p))[..., :: p + 1]
    return jnp.sum(diagonal, axis=-1) / p


def deviation(gram: Array, mean: Array) -> Array:
    """‖G − mI‖_F for the mean eigenvalue m, with the rounding of ‖G − I‖² in it."""
    p, eps = gram.shape[-1], jnp.finfo(gram.dtype).eps
    e = squared_norm(gram - eye(gram))
    m = lax.stop_gradient(mean)
    return jnp.sqrt(jnp.maximum(e - p * jnp.square(m - 1), 0) + 8 * eps * e)


def schatten(e: Array) -> Array:
    """The Schatten-4 norm √‖E²‖_F: a bound of ‖E‖, and at most p^(1/4) times it."""
    e = lax.stop_gradient(e)
    return jnp.sqrt(norm(mm(e, e)))


def spectral_estimate(e: Array) -> Array:
    """A number between ‖E‖ and p^(1/4)‖E‖, for a Hermitian E.

    It is the smaller one of the Schatten-4 norm of E, and of |m| plus that of E − mI,
    where m is the mean eigenvalue. The proximal map of a norm shrinks all columns
    alike, so that E is nearly a multiple of I, whose Schatten norm is much above ‖E‖.
    """
    mean = mean_eigenvalue(e)
    rest = schatten(e - per_matrix(mean) * eye(e))
    return jnp.minimum(schatten(e), jnp.abs(mean) + rest)


def squared_norm(e: Array) -> Array:
    """‖E‖_F², as a number to decide by: a constant for derivatives."""
    return jnp.sum(squared_modulus(lax.stop_gradient(e)), axis=(-2, -1))


def inverse_root(
    gram: Array, numbers: Array, close: Array | float
) -> tuple[Array, Array, Array]:
    """G^(−1/2), or as near to it as q and up to `APPLICATIONS` of A lead.

    A is applied with two products to q's three, and so needs fewer for a z that is near
    the manifold, and hardly more for one that is nearly singular.

    Args:
        gram: G.
        numbers: 1/m, 1/√m and a bound of ‖G/m − I‖, of each matrix, `together`.
        close: The residual that may be left.

    Returns:
        The factor; a bound of the residual that it leaves; and a bound of m‖G⁻¹‖, by
        which the factor magnifies rounding errors.
    """
    w, found = _inverse_root(gram, numbers, close)
    size, condition = entry(found, 0), entry(found, 1)
    left = jnp.where(size <= close ** (2 / 3), size * jnp.sqrt(size), jnp.inf)
    return w, left, condition


@jax.custom_jvp
def _inverse_root(gram, numbers, close):
    limit = close ** (2 / 3)

    def goes_on(carry):
        size, growth = entry(carry[1], 0), entry(carry[1], 1)
        # A growth that is not a number ends the loop as well.
        return jnp.any(~(size <= limit) & (growth <= GROWTH**APPLICATIONS))

    return lax.while_loop(
        goes_on, lambda carry: _applied(gram, limit, *carry), _first(gram, numbers)
    )


@_inverse_root.defjvp
def _(primals, tangents):
    """The derivative of all applications, the last of which change nothing."""

    def applied(gram):
        def once(carry, _):
            return _applied(gram, limit, *carry), None

        return lax.scan(once, _first(gram, numbers), length=APPLICATIONS)[0]

    _, numbers, close = primals
    limit = close ** (2 / 3)
    return jax.jvp(applied, primals[:1], tangents[:1])


def _first(gram, numbers):
    """q(G/c − I)/√c, for a c so large that no eigenvalue of G/c is above two."""
    size = entry(numbers, 2)
    half = jnp.maximum((1 + size) / 2, 1)
    inverse, root = entry(numbers, 0) / half, entry(numbers, 1) * lax.rsqrt(half)
    # As many as in short steps, for equal kernels.
    w = _whole_factor(gram, together(inverse, root, half, half, half))
    # What q leaves, ρ⁵, is as much as what A leaves where ‖F‖² is this.
    left = jnp.where(size <= 1, size ** (10 / 3), jnp.inf)
    # The smallest eigenvalue of G is at least m(1 − ‖F‖).
    return w, together(left, jnp.where(size <= 0.5, 2, 5.2 * half))


def _applied(gram, limit, w, numbers):
    """One application of A; ‖F‖² before it, and a bound of m‖G⁻¹‖.

    What k applications bring to one was above `GROWTH`⁻ᵏ. F = WᴴGW − I is formed anew
    for each, since what is carried on carries rounding errors on as well.
    """
    f = mm(adjoint(w), mm(gram, w)) - eye(gram)
    size, growth = squared_norm(f), entry(numbers, 1)
    growth = jnp.where(size <= limit, growth, GROWTH * growth)
    return mm(w, map_factor(f, mm(f, f))), together(size, growth)


def together(*numbers: Array) -> Array:
    """Some numbers of each matrix, stacked, so that one kernel computes them all."""
    return lax.optimization_barrier(jnp.stack(numbers, axis=-1))


def entry(numbers: Array, i: int) -> Array:
    """One of the numbers that are `together`."""
    return lax.index_in_dim(numbers, i, axis=-1, keepdims=False)


def minimum(a: float, b: Any) -> Any:
    """The smaller one of two numbers, as a Python number if both are."""
    return min(a, b) if isinstance(b, float) else jnp.minimum(a, b)
