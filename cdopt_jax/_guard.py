"""The guarded step: A(x) + J_A(x)[u], for every u, without leaving the neighbourhood.

Write V = J_A(x)[u], ‖·‖ for the spectral norm, r < 1 for the radius and ρ ≤ r for a
bound of ‖E‖ at x. As ever, M = xᵀBx, E = M − I, S = Φ(xᵀBu), A(x) = xP, V = uP + xQ.

1. A(x)ᵀBA(x) − I = γ(E) with γ(z) = (40z³ − 15z⁴ + 9z⁵)/64. Its norm is at most
   e = (40ρ³ + 15ρ⁴ + 9ρ⁵)/64 ≤ ρ³.
2. Differentiating 1. along u gives C = 2Φ(A(x)ᵀBV) = Dγ(E)[2S], so that ‖C‖ ≤ c‖S‖ with
   c = (120ρ² + 60ρ³ + 45ρ⁴)/32: V leaves the manifold only in second order.
3. J_A(x) has norm at most s = 1 + ρ/2 + 3ρ²/8 in the metric of B, so the trace of
   D = VᵀBV is at most s²·tr(uᵀBu).

For A(x) + tV the residual is therefore F(t) = γ(E) + tC + t²D, and

    ‖F(1)‖ ≤ e + c‖S‖ + s²·tr(uᵀBu).

Where that is at most r, the step is taken as it is: four products and some scalars.
Where it is not, a fifth product, uᵀBu, gives C and D, and with them the residual before
it arises. It is taken out by applying A twice more, to A(x) + tV scaled by 1/√m with
m = 1 + t²λ/2 and λ ≥ ‖D‖, so that the spectrum lies around one. What A is applied to
has the residual F′ = (I + F(t))/m − I, with

    ‖F′‖ ≤ f = (e + t‖C‖ + t²λ/2)/m,

and all of it is p×p algebra: x⁺ = (A(x) + tV)W = x(P + tQ)W + u(tPW). What is left is
γ(γ(F′)), of norm at most f⁹. With t ≤ 1 the largest for which f is at most r^(1/9) and
1/2 + r³, that is at most r; and since e ≤ r³ is below both, there is such a t > 0.

So ‖E‖ ≤ r before implies ‖E‖ ≤ r after, for every u. And long steps, which would
otherwise end at the boundary of the neighbourhood time and again, end on the manifold
but for f⁹: they turn x by at most an angle, the rest of their length being cut off.

ρ and λ are Schatten-4 norms, √‖E²‖_F and √‖D²‖_F. They bound the spectral norm at the
cost of a p×p×p product and overestimate it by a factor of p^(1/4) at most.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ._algebra import (
    apply_metric,
    each,
    eye,
    factor,
    inner,
    mm,
    norm,
    phi,
    residual,
    turn,
)
from .stiefel import project


class Guard(NamedTuple):
    """What the guard saw and did, one number for each matrix.

    Attributes:
        feasibility: ‖E‖_F before the step.
        bound: What is known of ‖E‖, in the spectral norm, after it.
        t: The share of the proposed step that was taken; zero if it was not finite, or
            if the leaf had to be brought in first.
        formed: Whether the fifth product was formed.
    """

    feasibility: Array
    bound: Array
    t: Array
    formed: Array


class _View(NamedTuple):
    """What is known at x of a step u without the fifth product."""

    e: Array
    e2: Array
    p: Array
    q: Array
    k: Array
    bu: Array
    length: Array
    rho: Array
    cheap: Array


def guarded_step(
    x: Array, u: Array, radius: float, B: Any, *, always: bool = False
) -> tuple[Array, Guard]:
    """The point reached from ``x`` by ``u``, and how; in float32 or float64.

    With ``always``, short steps are corrected as well: for a line search, which would
    otherwise find the lower values off the manifold.
    """
    step = _step if callable(B) else _compiled_step
    return step(x, u, radius, B, always)


def _step(x, u, radius, B, always):
    here = _view(x, u, B)
    far = ~(here.rho <= radius)
    lost = ~jnp.isfinite(here.cheap)

    def usual():
        def plain():
            return here.p + here.q, here.p, here.cheap, jnp.ones_like(here.rho)

        def corrected():
            return _corrected(u, here, radius)

        fits = jnp.all(here.cheap <= radius) & (not always)
        left, right, bound, t = lax.cond(fits, plain, corrected)
        return mm(x, left) + mm(u, right), bound, t, ~fits

    def odd():
        """Bring in what is outside; the step waits for the next time."""
        landed = jnp.where(each(far), project(x, B=B), mm(x, here.p))
        rounding = 64 * jnp.finfo(x.dtype).eps
        bound = jnp.where(far, rounding, _gamma_bound(here.rho))
        return landed, bound, jnp.zeros_like(bound), jnp.zeros_like(lost, shape=())

    landed, bound, t, formed = lax.cond(jnp.any(far | lost), odd, usual)
    formed = jnp.broadcast_to(formed, t.shape)
    return landed, Guard(norm(here.e), bound, t, formed)


# Compiled once for each shape, for those who update outside ``jit``; inside, leaves of
# one shape share one trace.
_compiled_step = jax.jit(_step, static_argnums=4)


def tangential(x: Array, g: Array, radius: float, B: Any) -> Array:
    """A gradient without its normal part, for a step that `guarded_step` will take.

    That is g − BxΦ(xᵀg), the adjoint of J_A(x) on the manifold, and two products
    cheaper than the adjoint itself; off it, no better was found in the latter. A point
    outside the radius will first be brought in, and has another gradient there: here it
    counts as zero, lest an optimiser with a memory of sizes keep it in mind.
    """
    y = apply_metric(B, x)
    e = residual(x, y)
    inside = jnp.sqrt(norm(mm(e, e))) <= radius
    return jnp.where(each(inside), g - mm(y, phi(inner(x, g))), 0)


def _view(x, u, B):
    y, bu = apply_metric(B, x), apply_metric(B, u)
    e = residual(x, y)
    e2, k = mm(e, e), inner(y, u)
    s, rho = phi(k), jnp.sqrt(norm(e2))
    slope = (120 * rho**2 + 60 * rho**3 + 45 * rho**4) / 32
    stretch = 1 + rho / 2 + 0.375 * rho**2
    length = jnp.sum(u * bu, axis=(-2, -1))
    cheap = _gamma_bound(rho) + slope * norm(s) + stretch**2 * length
    return _View(e, e2, factor(e, e2), turn(s, e), k, bu, length, rho, cheap)


def _corrected(u, view, radius):
    """The p×p factors of x and u, the bound, and t, by way of the fifth product."""
    e, e2, p = view.e, view.e2, view.p
    # In units of the step's own length, so that nothing overflows.
    unit = jnp.sqrt(jnp.maximum(view.length, 1))
    k, q, h = (v / each(unit) for v in (view.k, view.q, inner(u, view.bu / each(unit))))
    z = mm(k, p) + q + mm(e, q)
    c = 2 * phi(mm(p, z))
    d = phi(mm(p, mm(h, p) + mm(k.mT, q)) + mm(q, z))
    start, slope, lam = _gamma_bound(view.rho), norm(c), jnp.sqrt(norm(mm(d, d)))
    most = jnp.minimum(radius ** (1 / 9), 0.5 + radius**3)
    room, curve = most - start, (1 - most) * lam
    t = 2 * room / (slope + jnp.sqrt(slope**2 + 2 * curve * room))
    # C and D are differences of larger matrices, known to rounding: a step whose normal
    # part is huge must be cut before that rounding, eps·(t‖k‖)², is felt.
    eps = jnp.finfo(e.dtype).eps
    t = jnp.minimum(jnp.minimum(t, (1e-4 / eps) ** 0.5 / norm(k)), unit)
    half = t**2 * lam / 2
    f = _gamma(e, e2) + each(t) * c + each(t**2) * d
    f = (f - each(half) * eye(e)) / each(1 + half)
    f2 = mm(f, f)
    g = _gamma(f, f2)
    w = mm(factor(f, f2), factor(g, mm(g, g))) / each(jnp.sqrt(1 + half))
    bound = ((start + t * slope + half) / (1 + half)) ** 9
    bound = bound + 8 * eps * (1 + t * norm(k)) ** 2
    return mm(p + each(t) * q, w), mm(each(t / unit) * p, w), bound, t / unit


def _gamma(e, e2):
    return mm(mm(e2, e), 40 * eye(e) - 15 * e + 9 * e2) / 64


def _gamma_bound(rho):
    return (40 * rho**3 + 15 * rho**4 + 9 * rho**5) / 64
