"""The nearest point of the manifold, z·G^(−1/2) with G = zᴴBz, from G alone.

q(w) = 1 − w/2 + 3w²/8 − 5w³/16 + 35w⁴/128 is the Taylor polynomial of (1 + w)^(−1/2).
With F = G/c − I for a number c, the residual of z·q(F)/√c is e(F), where

    e(w) = (1 + w)q(w)² − 1.

The coefficients of e below w⁵ are zero and the absolute values of the others add up to
one, so ‖e(F)‖ ≤ ρ⁵ where ‖F‖ ≤ ρ ≤ 1. Of q cut to degree d = 1 or 2 it is ρ^(d+1).
|e(w)| < |w| on (−1, 1]: applied to F, then to e(F), and so on, q brings every z of full
rank to the manifold, if c is so large that no eigenvalue of G/c is above 2.
"""

import jax.numpy as jnp
from jax import Array, lax

from .products import eye, mm, norm, per_matrix

COEFFICIENTS = (1.0, -1 / 2, 3 / 8, -5 / 16, 35 / 128)
"""Those of q."""

APPLICATIONS = 8
"""How often `inverse_root` applies q at most. Each time the smallest singular values of
z are multiplied by 2.3."""


def series(f: Array, degree: int) -> Array:
    """q(F) − I, cut to a degree of 1, 2 or 4, which takes 0, 1 or 2 products."""
    _, a, b, c, d = COEFFICIENTS
    if degree == 1:
        return a * f
    f2 = mm(f, f)
    w = a * f + b * f2
    return w if degree == 2 else w + mm(f2, c * f + d * f2)


def mean_eigenvalue(gram: Array) -> Array:
    """The trace over p, for each matrix."""
    return jnp.sum(jnp.real(gram) * jnp.real(eye(gram)), axis=(-2, -1)) / gram.shape[-1]


def deviation(gram: Array) -> tuple[Array, Array]:
    """F = G/m − I and m, the mean eigenvalue of G."""
    mean = mean_eigenvalue(gram)
    return gram / per_matrix(mean) - eye(gram), mean


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


def frobenius(e: Array) -> Array:
    """‖E‖_F, as a number to decide by: a constant for derivatives."""
    return norm(lax.stop_gradient(e))


def inverse_root(f: Array, mean: Array, close: Array) -> tuple[Array, Array, Array]:
    """G^(−1/2), or as near to it as `APPLICATIONS` of q lead, for G = m(I + F).

    Args:
        f: F.
        mean: m.
        close: The residual that may be left.

    Returns:
        The factor; the residual that it leaves; and a bound of G's condition number,
        by which it magnifies rounding errors.
    """
    one = eye(f)
    # No eigenvalue of G is above m(1 + ‖F‖).
    half = jnp.maximum((1 + schatten(f)) / 2, 1)
    start = (one + f) / per_matrix(half) - one

    def apply(carry):
        k, growth, f, w = carry
        q = one + series(f, 4)
        growth = jnp.where(frobenius(f) <= close**0.5, growth, 5.2 * growth)
        return k + 1, growth, mm(q, mm(one + f, q)) - one, mm(w, q)

    def is_far(carry):
        k, _, f, _ = carry
        return (k < APPLICATIONS) & ~jnp.all(frobenius(f) <= close**0.5)

    carry = (
        jnp.zeros([], jnp.int32),
        jnp.ones_like(half),
        start,
        one / per_matrix(jnp.sqrt(mean * half)),
    )
    _, growth, f, w = loop(is_far, apply, carry, APPLICATIONS)
    # Once more, cut to degree 1. An eigenvalue of G/c that k applications bring to one
    # was above 5.2^(−k).
    return w - mm(w, f) / 2, frobenius(f) ** 2, half * growth


def loop(goes_on, body, carry, most: int):
    """A ``while`` loop of at most ``most`` rounds, which can be differentiated."""

    def once(_, carry):
        return lax.cond(goes_on(carry), body, lambda same: same, carry)

    return lax.fori_loop(0, most, once, carry)
