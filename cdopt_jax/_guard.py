"""The guarded step: A(x + v), for every update u, without leaving the neighbourhood.

v = u − xS with S = Φ(xᵀBu) is J_A(x)[u] on the manifold. As ever, E = xᵀBx − I, and
‖·‖ is the spectral norm; r < 1 is the radius. Let z = x + v and F = zᵀBz − I.

1. A(z)ᵀBA(z) − I = γ(F) with γ(w) = (40w³ − 15w⁴ + 9w⁵)/64, so its norm is at most
   γ̄(ρ) = (40ρ³ + 15ρ⁴ + 9ρ⁵)/64 ≤ ρ³ where ‖F‖ ≤ ρ ≤ 1, whatever x and u were.

Where ρ ≤ `_NEAR` and γ̄(ρ) ≤ r, the step is A(z): four products and p×p algebra. On the
manifold F = vᵀBv, so that what remains is of sixth order in the step, and what an
earlier step left is cubed with it.

Where that fails, the step is long, or x is not near. A longer one is y = xN + tv with
N = I + t²S², and what is returned is y(yᵀBy)^(−1/2), the nearest point of the manifold,
by p×p algebra. N makes the step shorter where u has a large normal part; momentum
carried around a bend has one, and would otherwise overshoot for ever. Now E is needed,
and ρ < 1 is a bound of its norm.

2. v leaves the manifold only in second order: Φ(xᵀBv) = −Φ(ES) =: −C.
3. y is far from singular. With a = wᵀNw ≥ 1 for a unit vector w, and ν = 1 + t²‖S‖² a
   bound of N, wᵀxᵀByw = wᵀ((I + E)N − tC)w ≥ a − ρ√(νa) − t‖C‖. That grows with a, so
   yᵀBy ≥ l = (1 − ρ√ν − t‖C‖)²/(1 + ρ).
4. yᵀBy = N(I + E)N + 2tΦ(vᵀBxN) + t²D, where D = vᵀBv takes a product more; its norm
   is at most h = 1 + ‖yᵀBy − I‖.
5. Scaled to 2yᵀBy/(h + l), its residual is at most (h − l)/(h + l) < 1, and A, applied
   again and again to the p×p factors alone, sends it through γ each time until it
   is below `_CLOSE`.

t ≤ 1 is the largest with t²‖D‖ ≤ `_REACH`, t²‖S‖² ≤ b and t‖C‖ ≤ (1 − ρ)/4, where b
is `_BEND`, or less for ρ√ν to be at most (1 + ρ)/2: this bounds h from above and l from
below whatever u was, and `_TIMES` applications then suffice for r, if r ≤ `_WIDEST`.

So ‖E‖ ≤ r before implies ‖E‖ ≤ r after, for every u.

The bounds ρ and the norms of D and S are Schatten-4 norms, as √‖E²‖_F. They bound the
spectral norm at the cost of a p×p×p product and overestimate it by a factor of p^(1/4)
at most.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ._algebra import Form, correction, each, eye, factor, mm, norm, phi
from .stiefel import project

_NEAR = 0.25
"""The largest residual that one application of A, to 0.01, is good enough for."""

_REACH = 100.0
"""The square of the longest step, in the norm that turns most: an angle of 84°."""

_BEND = 9.0
"""The square of the largest normal part that shortens a step rather than cuts it."""

_CLOSE = 1e-6
"""The residual at which long steps need no more correction."""

_TIMES = 10
"""How often they are corrected at most."""

_WIDEST = 0.99
"""The largest radius for which that is often enough; beyond, leaves are brought in."""


class Guard(NamedTuple):
    """What the guard knows and did, one entry for each matrix.

    Attributes:
        bound: What is known of ‖E‖, in the spectral norm, after the step.
        t: The share of the proposed step that was taken; zero if it was not finite, or
            if the leaf had to be brought in first.
        formed: Whether the step took the products that long ones take.
    """

    bound: Array
    t: Array
    formed: Array


def guarded_step(
    x: Array,
    u: Array,
    radius: float,
    form: Form,
    *,
    kind: str = "dissolved",
    after: Array | None = None,
) -> tuple[Array, Guard]:
    """The move from ``x`` that ``u`` leads to, and how; in float32 or float64.

    Of the kind ``"corrected"``, every step is taken as long ones are, to `_CLOSE`: for
    a line search, which would otherwise find the lower values off the manifold. Of the
    kind ``"free"``, the step is x + u wherever that is known to be inside the radius:
    for Algorithm 1, which has seen to the constraint by its gradient.

    The step is computed ``after`` what this is the bound of, if it is given: so that
    one leaf's intermediate results can take the place of another's in memory.
    """
    step = _step if callable(form.B) else _compiled_step
    return step(x, u, radius, after, *form, kind)


def _step(x, u, radius, after, B, axis_name, kind):
    form = Form(B, axis_name)
    radius = jnp.minimum(radius, _WIDEST)
    bx = form.apply(x)
    # Not xᵀBu, for which x would be transposed at once, since it is there before u is,
    # and kept: as much memory as all parameters take.
    k = form.inner(u, bx)
    if after is not None:
        # Never so, but the compiler does not know.
        k = jnp.where(jnp.any(after < -jnp.inf), 0, k)

    def long():
        return _long(x, u, bx, k, radius, form)

    if kind == "corrected":
        move, bound, t = long()
        return move, Guard(bound, t, jnp.ones_like(t, bool))
    short = _free if kind == "free" else _short
    inside, bound, most, rest = short(x, u, bx, k, radius, form)
    inside = jnp.all(inside)

    def usual():
        return rest(), bound, jnp.ones_like(bound)

    move, bound, t = lax.cond(inside, usual, long)
    # What needs no product is added here, where it fuses with what the caller adds.
    move = jnp.where(inside, most, 0) + move
    return move, Guard(bound, t, jnp.broadcast_to(~inside, t.shape))


def _free(x, u, bx, k, radius, form):
    """Whether x + u is inside, a bound of its residual, and the move, in two parts."""
    e = form.residual(x, bx)
    bound = norm(e + 2 * phi(k)) + form.length(u, form.apply(u))
    inside = (jnp.sqrt(norm(mm(e, e))) <= radius) & (bound <= radius)
    return inside, bound, jnp.zeros([], x.dtype), lambda: u


def _short(x, u, bx, k, radius, form):
    """The same of A(x + v)."""
    f, most, rest = _tangential_step(x, u, bx, k, form)
    f2 = mm(f, f)
    rho = jnp.sqrt(norm(f2))
    inside = (rho <= _NEAR) & (_gamma_bound(rho) <= radius)
    # With the rounding of the products that lead there.
    bound = _gamma_bound(rho) + 8 * jnp.finfo(x.dtype).eps
    return inside, bound, most, lambda: rest(correction(f, f2))


def _tangential_step(x, u, bx, k, form):
    """The residual F of z = x + v, and zP − x: a part, and the rest from P − I."""
    s = phi(k)
    if not form.spread(x):
        z = x + (u - mm(x, s))
        return form.residual(z, form.apply(z)), z - x, lambda w: mm(z, w)
    # A product more, but all sums over devices in one round.
    n, m, h = eye(s) - s, form.inner(x, bx), form.inner(u, form.apply(u))
    gram = mm(n, mm(m, n)) + 2 * phi(mm(k, n)) + h
    return phi(gram) - eye(s), u, lambda w: mm(x, mm(n, w) - s) + mm(u, w)


def _long(x, u, bx, k, radius, form):
    """The move, the bound and t, of any step from any point."""
    origin, e = x, form.residual(x, bx)
    far = ~(jnp.sqrt(norm(mm(e, e))) <= radius)
    lost = ~jnp.isfinite(form.length(u, form.apply(u)) + norm(k))
    waits = far | lost

    def mended():
        """What is outside is brought in, and its step waits."""
        y = lax.cond(jnp.any(far), lambda: project(x, **form._asdict()), lambda: x)
        y, v = jnp.where(each(far), y, x), jnp.where(each(waits), 0, u)
        by = form.apply(y)
        return y, v, form.residual(y, by), form.inner(v, by)

    x, u, e, k = lax.cond(jnp.any(waits), mended, lambda: (x, u, e, k))
    v = u - mm(x, phi(k))
    left, right, bound, t = _corrected(v, e, k, form)
    move = mm(x, left) + mm(v, right) - origin
    return move, bound, jnp.where(waits, 0, t)


# Compiled once for each shape, for those who update outside ``jit``; inside, leaves of
# one shape share one trace.
_compiled_step = jax.jit(_step, static_argnames=("axis_name", "kind"))


def tangential(
    x: Array, g: Array, radius: float, form: Form, bound: Array | None = None
) -> Array:
    """A gradient without its normal part, for a step that `guarded_step` will take.

    That is g − BxΦ(xᵀg), the adjoint of J_A(x) on the manifold, and cheaper than the
    adjoint itself; off it, no better was found in the latter. A point outside the
    radius will first be brought in, and has another gradient there: here it counts as
    zero, lest an optimiser with a memory of sizes keep it in mind. Where the last step
    left a ``bound``, that need not be looked at again.
    """
    y = form.apply(x)
    s = phi(form.inner(g, x))
    along = g - mm(y, s)

    def check():
        e = form.residual(x, y)
        return jnp.sqrt(norm(mm(e, e))) <= radius

    if bound is None:
        return jnp.where(each(check()), along, 0)
    known = jnp.all(bound <= radius)
    inside = lax.cond(known, lambda: jnp.ones_like(s[..., 0, 0], bool), check)
    return jnp.where(each(inside), along, 0)


def _corrected(v, e, k, form):
    """The p×p factors of x and v, the bound, and t."""
    one, bv, rho = eye(e), form.apply(v), jnp.sqrt(norm(mm(e, e)))
    # In units of the step's own length, so that nothing overflows.
    unit = jnp.maximum(jnp.sqrt(form.length(v, bv)), jnp.maximum(norm(k), 1))
    d = form.inner(v, bv / each(unit)) / each(unit)
    k = k / each(unit)
    s = phi(k)
    s2, se = mm(s, s), mm(s, e)
    drift, reach, bend = norm(phi(se)), jnp.sqrt(norm(mm(d, d))), norm(s2)

    bend_most = jnp.minimum(_BEND, ((1 + rho) / (2 * rho)) ** 2 - 1)
    square = jnp.minimum(_REACH / reach, bend_most / bend)
    t = jnp.minimum(jnp.minimum(jnp.sqrt(square), (1 - rho) / 4 / drift), unit)

    n = one + each(t**2) * s2
    gram = mm(n, n + mm(e, n)) + each(2 * t) * mm(k - s - se, n) + each(t**2) * d
    gram = phi(gram)
    excess = gram - one
    high = 1 + jnp.sqrt(norm(mm(excess, excess)))
    low = (1 - rho * jnp.sqrt(1 + t**2 * bend) - t * drift) ** 2 / (1 + rho)
    scale = (high + low) / 2
    f = gram / each(scale) - one
    w = jnp.broadcast_to(one, f.shape) / each(jnp.sqrt(scale))
    bound = (high - low) / (high + low)

    def again(_, carry):
        def more(f, w, bound):
            f2 = mm(f, f)
            return _gamma(f, f2), mm(w, factor(f, f2)), _gamma_bound(bound)

        return lax.cond(jnp.any(carry[-1] > _CLOSE), more, lambda *same: same, *carry)

    _, w, bound = lax.fori_loop(0, _TIMES, again, (f, w, bound))
    # Of the rounding in yᵀBy, a sum of larger matrices.
    bound = bound + 8 * jnp.finfo(e.dtype).eps * (1 + t * norm(k)) ** 2
    return mm(n, w), each(t / unit) * w, bound, t / unit


def _gamma(e, e2):
    return mm(mm(e2, e), 40 * eye(e) - 15 * e + 9 * e2) / 64


def _gamma_bound(rho):
    return (40 * rho**3 + 15 * rho**4 + 9 * rho**5) / 64
