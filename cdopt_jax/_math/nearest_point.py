"""The nearest point of the manifold, z·G^(−1/2) with G = zᴴBz, from G alone.

q(w) = 1 − w/2 + 3w²/8 − 5w³/16 + 35w⁴/128 is the Taylor polynomial of (1 + w)^(−1/2).
With F = G/c − I for a number c, the residual of z·q(F)/√c is e(F), where

    e(w) = (1 + w)q(w)² − 1.

The coefficients of e below w⁵ are zero and the absolute values of the others add up to
one, so ‖e(F)‖ ≤ ρ⁵ where ‖F‖ ≤ ρ ≤ 1. Of the Taylor polynomials of degree d = 1, 2 and
8 it is ρ^(d+1). |e(w)| < |w| on (−1, 1]: applied to F, then to e(F), and so on, q
brings every z of full rank to the manifold, if c is so large that no eigenvalue of G/c
is above 2.
"""

import jax.numpy as jnp
from jax import Array, lax

from .products import adjoint, eye, mm, norm, per_matrix, squared_modulus

COEFFICIENTS = (
    *(1.0, -1 / 2, 3 / 8, -5 / 16, 35 / 128),
    *(-63 / 256, 231 / 1024, -429 / 2048, 6435 / 32768),
)
"""Those of the Taylor series."""

APPLICATIONS = 8
"""How often `inverse_root` applies q at most. Each time the smallest singular values of
z are multiplied by 2.3."""


def factor(
    gram: Array, numbers: Array, degree: int = 4, square: Array | None = None
) -> Array:
    """q(F)/√c − I, for F = G/c − I and the Taylor polynomial q of a degree.

    Degree 1, 2, 4 and 8 take 0, 1, 2 and 4 products.

    Args:
        gram: G.
        numbers: 1/c, 1/√c and two more, of each matrix, `together`.
        degree: The degree.
        square: F², if it is known.
    """
    one, root = eye(gram), per_matrix(entry(numbers, 1))
    f = scaled(gram, numbers)
    if degree == 1:
        return root * (COEFFICIENTS[1] * f) + (root - 1) * one
    f2 = mm(f, f) if square is None else square

    def pair(i):
        return COEFFICIENTS[i] * f + COEFFICIENTS[i + 1] * f2

    w = root * pair(1) + (root - 1) * one
    if degree == 2:
        return w
    inner = pair(3)
    if degree == 8:
        inner = inner + mm(f2, pair(5) + mm(f2, pair(7)))
    return w + root * mm(f2, inner)


def scaled(gram: Array, numbers: Array) -> Array:
    """F = G/c − I, with the numbers of `factor`."""
    return per_matrix(entry(numbers, 0)) * gram - eye(gram)


def mean_eigenvalue(gram: Array) -> Array:
    """The trace over p, for each matrix."""
    return jnp.sum(jnp.real(gram) * jnp.real(eye(gram)), axis=(-2, -1)) / gram.shape[-1]


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
    gram: Array, numbers: Array, close: Array, spread: Array
) -> tuple[Array, Array, Array]:
    """G^(−1/2), or as near to it as `APPLICATIONS` of q lead.

    q is applied until a short step is left. Every program has this loop, and a kernel
    costs 8 ms to compile, but equal kernels are compiled once: where it can, the loop
    computes what short steps compute, in the same way.

    Args:
        gram: G.
        numbers: 1/c, 1/√c and two more, of each matrix, with c of the size of G.
        close: The residual that may be left.
        spread: A bound of ‖F‖, such as its Schatten-4 norm.

    Returns:
        The factor; a bound of the residual that it leaves; and a bound of c over the
        smallest eigenvalue of G, by which the factor magnifies rounding errors.
    """

    def apply(_, carry):
        numbers, gram, w = carry
        f = lax.optimization_barrier(lax.stop_gradient(scaled(gram, numbers)))
        size = squared_norm(f)
        growth = entry(numbers, 2)
        growth = jnp.where(size <= limit, growth, 5.2 * growth)
        step = factor(gram, numbers)
        gram = gram + mm(gram, step)
        gram = gram + mm(step, gram)
        one = jnp.ones_like(size)
        return together(one, one, growth, size), gram, w + mm(w, step)

    def is_far(carry):
        return ~jnp.all(entry(carry[0], 3) <= limit)

    limit = close**0.4
    # No eigenvalue of G is above c(1 + ‖F‖).
    half = jnp.maximum((1 + spread) / 2, 1)
    inverse = per_matrix(entry(numbers, 0) / half)
    root = per_matrix(entry(numbers, 1) * lax.rsqrt(half))
    one = jnp.ones_like(half)
    numbers = together(one, one, half, jnp.full_like(half, jnp.inf))
    # Scaled before, not by the first step: a step to a hundredth of G would cancel all
    # but two of its digits.
    start = (numbers, inverse * gram, root * eye(gram))
    numbers, _, w = loop(is_far, apply, start, APPLICATIONS)
    # Once more, cut to degree 1, from G itself: the loop carries rounding errors on.
    f = mm(adjoint(w), mm(gram, w)) - eye(gram)
    # An eigenvalue of G/c that k applications bring to one was above 5.2^(−k).
    return w - mm(w, f) / 2, squared_norm(f), entry(numbers, 2)


def together(*numbers: Array) -> Array:
    """Some numbers of each matrix, stacked, so that one kernel computes them all."""
    return lax.optimization_barrier(jnp.stack(numbers, axis=-1))


def entry(numbers: Array, i: int) -> Array:
    """One of the numbers that are `together`."""
    return lax.index_in_dim(numbers, i, axis=-1, keepdims=False)


def loop(goes_on, body, carry, most: int):
    """A ``while`` loop of at most ``most`` rounds, which can be differentiated."""

    def once(k, carry):
        return lax.cond(goes_on(carry), body, lambda _, same: same, k, carry)

    return lax.fori_loop(0, most, once, carry)
