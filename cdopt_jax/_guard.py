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

Where it is not, a fifth product, uᵀBu, gives D, and with it the residual before it
arises, so that it can be taken out. The step is then y = A(x)N + tV with N = I + t²S²,
and what is returned is y(yᵀBy)^(−1/2), the nearest point of the manifold. N makes it
shorter where u has a large normal part; momentum carried around a bend has one, and
would otherwise overshoot for ever.

4. y is far from singular. With a = wᵀNw ≥ 1 for a unit vector w, and ν = 1 + t²‖S‖²
   a bound of N, wᵀA(x)ᵀBy w = wᵀ((I + γ(E))N + tC/2)w ≥ a − e√(νa) − t‖C‖/2. That
   grows with a, so that yᵀBy ≥ l = (1 − e√ν − t‖C‖/2)²/(1 + e).
5. Its norm is at most h = 1 + ‖yᵀBy − I‖, which is p×p algebra.
6. Scaled to 2yᵀBy/(h + l), its residual is at most (h − l)/(h + l) < 1, and A, applied
   again and again to the p×p factors alone, sends it through γ each time until it
   is below `_CLOSE`.

t ≤ 1 is the largest with t²‖D‖ ≤ `_REACH`, t²‖S‖² ≤ b and t‖C‖ ≤ (1 − e)/2, where b
is `_BEND`, or less for e√ν to be at most (1 + e)/2: this bounds h from above and l from
below whatever u was, and `_TIMES` applications then suffice for r, if r ≤ `_WIDEST`.

So ‖E‖ ≤ r before implies ‖E‖ ≤ r after, for every u. And long steps, which would
otherwise end at the boundary of the neighbourhood time and again, end on the manifold.

ρ and the norms of D and S are Schatten-4 norms, as √‖E²‖_F. They bound the spectral
norm at the cost of a p×p×p product and overestimate it by a factor of p^(1/4) at most.
"""

from functools import partial
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

_REACH = 100.0
"""The square of the longest step, in the norm that turns most: an angle of 84°."""

_BEND = 9.0
"""The square of the largest normal part that shortens a step rather than cuts it."""

_CLOSE = 1e-6
"""The residual at which long steps need no more correction."""

_TIMES = 9
"""How often they are corrected at most."""

_WIDEST = 0.999
"""The largest radius for which that is often enough; beyond, leaves are brought in."""


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
    slope: Array
    stretch: Array
    cheap: Array


def guarded_step(
    x: Array, u: Array, radius: float, B: Any, *, kind: str = "dissolved"
) -> tuple[Array, Guard]:
    """The point reached from ``x`` by ``u``, and how; in float32 or float64.

    Of the kind ``"corrected"``, short steps are corrected as well: for a line search,
    which would otherwise find the lower values off the manifold. Of the kind
    ``"free"``, the step is x + u wherever that is known to be inside the radius: for
    Algorithm 1, which has seen to the constraint by its gradient.
    """
    step = _step if callable(B) else _compiled_step
    return step(x, u, radius, B, kind)


def _step(x, u, radius, B, kind):
    radius = jnp.minimum(radius, _WIDEST)
    here = _view(x, u, B)
    if kind == "free":
        bound = norm(here.e + 2 * phi(here.k)) + here.length

        def free():
            zero, one = jnp.zeros((), bool), jnp.ones_like(bound)
            return x + u, bound, one, zero

        inside = jnp.all((here.rho <= radius) & (bound <= radius))
        guarded = partial(_guarded, x, u, here, radius, B, always=False)
        landed, bound, t, formed = lax.cond(inside, free, guarded)
    else:
        always = kind == "corrected"
        landed, bound, t, formed = _guarded(x, u, here, radius, B, always=always)
    formed = jnp.broadcast_to(formed, t.shape)
    return landed, Guard(norm(here.e), bound, t, formed)


def _guarded(x, u, here, radius, B, *, always):
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
        """Bring in what is outside; its step waits, and others keep to the bound."""
        waits = far | lost
        v = jnp.where(each(waits), 0, u)
        y = lax.cond(jnp.any(far), lambda: project(x, B=B), lambda: x)
        y = jnp.where(each(far), y, x)
        view = _view(y, v, B)
        start = _gamma_bound(view.rho)
        along, across = view.slope * norm(phi(view.k)), view.stretch**2 * view.length
        room = radius - start
        root = jnp.sqrt(along**2 + 4 * across * room)
        t = jnp.minimum(2 * room / (along + root), 1)
        landed = mm(y, view.p + each(t) * view.q) + mm(v, each(t) * view.p)
        bound = start + t * along + t**2 * across
        return landed, bound, jnp.where(waits, 0, t), jnp.zeros((), bool)

    return lax.cond(jnp.any(far | lost), odd, usual)


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
    p, q = factor(e, e2), turn(s, e)
    return _View(e, e2, p, q, k, bu, length, rho, slope, stretch, cheap)


def _corrected(u, view, radius):
    """The p×p factors of x and u, the bound, and t, by way of the fifth product."""
    e, e2, p, one = view.e, view.e2, view.p, eye(view.e)
    # In units of the step's own length, so that nothing overflows.
    unit = jnp.sqrt(jnp.maximum(view.length, 1))
    k, q, h = (v / each(unit) for v in (view.k, view.q, inner(u, view.bu / each(unit))))
    z = mm(k, p) + q + mm(e, q)
    c = mm(p, z)
    d = phi(mm(p, mm(h, p) + mm(k.mT, q)) + mm(q, z))
    s = phi(k)
    s2 = mm(s, s)
    start, slope = _gamma_bound(view.rho), 2 * norm(phi(c))
    reach, bend = jnp.sqrt(norm(mm(d, d))), norm(s2)

    most = _gamma_bound(radius)
    bend_most = jnp.minimum(_BEND, ((1 + most) / (2 * most)) ** 2 - 1)
    square = jnp.minimum(_REACH / reach, bend_most / bend)
    t = jnp.minimum(jnp.minimum(jnp.sqrt(square), (1 - most) / 2 / slope), unit)

    n = one + each(t**2) * s2
    gram = mm(n, mm(one + _gamma(e, e2), n)) + each(t**2) * d
    gram = phi(gram + each(2 * t) * mm(n, c))
    excess = gram - one
    high = 1 + jnp.sqrt(norm(mm(excess, excess)))
    low = 1 - start * jnp.sqrt(1 + t**2 * bend) - t * slope / 2
    low = low**2 / (1 + start)
    scale = (high + low) / 2
    f = gram / each(scale) - one
    f2 = mm(f, f)
    w = factor(f, f2) / each(jnp.sqrt(scale))
    bound = _gamma_bound((high - low) / (high + low))

    def again(_, carry):
        def more(f, f2, w, bound):
            f = _gamma(f, f2)
            f2 = mm(f, f)
            return f, f2, mm(w, factor(f, f2)), _gamma_bound(bound)

        return lax.cond(jnp.any(carry[-1] > _CLOSE), more, lambda *same: same, *carry)

    _, _, w, bound = lax.fori_loop(1, _TIMES, again, (f, f2, w, bound))
    # Of the rounding in C and D, which are differences of larger matrices.
    bound = bound + 8 * jnp.finfo(e.dtype).eps * (1 + t * norm(k)) ** 2
    left = mm(mm(p, n) + each(t) * q, w)
    return left, mm(each(t / unit) * p, w), bound, t / unit


def _gamma(e, e2):
    return mm(mm(e2, e), 40 * eye(e) - 15 * e + 9 * e2) / 64


def _gamma_bound(rho):
    return (40 * rho**3 + 15 * rho**4 + 9 * rho**5) / 64
