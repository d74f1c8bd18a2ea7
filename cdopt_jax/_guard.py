"""The guarded step: to the point of the manifold nearest to x + u, for every update u.

Let z = x + u, G = zᵀBz, m = tr(G)/p, F = G/m − I and E = xᵀBx − I; ‖·‖ is the spectral
norm and r < 1 the radius. `_nearest` has the polynomial q and its properties.

1. A *short step* has ‖F‖_F⁵ ≤ `CLOSE`, or r/4 if that is less, and goes to z·q(F)/√m,
   whose residual is at most that, whatever x and u were. It takes two products of
   n×p×p, and none to two of p×p×p: where ‖F‖_F² or ‖F‖_F³ is as small, q is cut.
2. Other steps are *long*. They go to z·`inverse_root`(G): again two products of n×p×p.
   What is left of F is measured, in p×p algebra.
3. Where that is too much, or rounding may be, z is replaced by the point that was
   reached and G is formed again, a few times. This converges for z of full rank.
4. If z is singular, or nearly so, or not finite, and ‖E‖ ≤ r, then x + tu takes its
   place, with t‖u‖_F ≤ √(1 − r)/2, or t = 0 for a u that is not finite. σ_min(x) is at
   least √(1 − r), so x + tu has full rank. If ‖E‖ > r, the place of z is taken by x
   alone, to which a small matrix of full rank is added.
5. What items 3 and 4 lead to is measured as it will be stored. If it comes of item 4,
   its residual is above r and ‖E‖ ≤ r, then x stays where it is.

So ‖E‖ ≤ r before a step implies the same after it, for every u. After a short step the
residual is at most 2e-6, up to rounding.

The mean normal part s = ⟨x, u⟩_B / p of u makes a step shorter, since the point nearest
to (1 + s)x + v is that of x + v/(1 + s). Momentum carried around a bend has such a
part. A large s keeps high learning rates stable; a small s costs up to 20 % more steps
(PCA, 500×20, momentum 0.9). So s is replaced by s·clip(s, 0, 1).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ._algebra import Form, each, eye, mm, norm, phi
from ._far import settled
from ._nearest import (
    deviation,
    frobenius,
    inverse_root,
    mean_eigenvalue,
    schatten,
    series,
)
from ._rounding import Stored, storing_error

CLOSE = 2e-6
"""The residual that a short step may leave."""

_SURE = 0.05
"""The bound up to which the result of a long step need not be measured."""


class Guard(NamedTuple):
    """What the guard did, one entry for each matrix.

    Attributes:
        bound: A bound of ‖xᵀBx − I‖ after the step.
        fraction: The fraction of the update that was taken; 0 if it was not finite.
        long: Whether the step was long.
    """

    bound: Array
    fraction: Array
    long: Array


class _Proposal(NamedTuple):
    """The point that an update leads to, and what is known of it.

    Attributes:
        x: The matrices.
        z: x + u, without most of the mean normal part of u.
        form: The form in which they are orthonormal.
        gram: G.
        mean: m.
        size: A bound of ‖F‖; infinite where x or u are so large that ``rounding`` does
            not hold.
        rounding: What rounding may add to the residual of a short step.
    """

    x: Array
    z: Array
    form: Form
    gram: Array
    mean: Array
    size: Array
    rounding: Any

    @property
    def tiered(self) -> bool:
        """Whether products of p×p×p count beside those of n×p×p."""
        return _tiered(self.x)

    def move(self, w: Array) -> Array:
        """From x to z(I + w)."""
        return (self.z - self.x) + mm(self.z, w)

    def error(self, move: Array, stored: Stored) -> Any:
        """What half precision adds to the residual of x + move."""
        if not stored.half:
            return 0.0
        return storing_error(self.x, move, self.x + move, self.form, stored)


def _tiered(x):
    # Degree 4 costs 12 % of the time of `constrain` at 1024×128, 15 % at 300×64×16 and
    # nothing at 1000×16×8, where two more branches would take 0.3 s to compile.
    n, p = x.shape[-2:]
    return n < 16 * p and (n >= 4 * p or p >= 128)


def guarded_steps(
    xs: Sequence[Array],
    us: Sequence[Array],
    forms: Sequence[Form],
    radius: Any,
    stored: Sequence[Stored],
    *,
    free: bool = False,
) -> list[tuple[Array, Guard]]:
    """The moves that the updates ``us`` lead to, in float32 or float64.

    All groups of matrices share one conditional, since on a GPU every conditional waits
    for the device. Its usual branches have the short steps of all groups. Where
    products of p×p×p cost little, the short steps always have degree 4.

    Args:
        xs: The matrices of each group.
        us: Their updates.
        forms: The forms in which they are orthonormal.
        radius: The bound r.
        stored: The dtypes in which each group is stored.
        free: Whether to take x + u itself wherever that is inside the radius, as
            Algorithm 1 does, which sees to the constraint by its gradient.

    Returns:
        For each group, the move and what was done.
    """
    if not xs:
        return []
    close = radius if free else jnp.minimum(CLOSE, radius / 4)
    rows = zip(xs, us, forms, strict=True)
    proposals = [_propose(*row, free=free) for row in rows]
    tiered = not free and any(q.tiered for q in proposals)
    degrees = [0] if free else [1, 2, 4] if tiered else [4]
    limits = [close ** (1 / (degree + 1)) for degree in degrees]

    def usual(degree):
        results = []
        for q, to in zip(proposals, stored, strict=True):
            move = _short(q, degree if q.tiered else degrees[-1])
            bound = (q.size if free else jnp.full_like(q.size, close)) + q.rounding
            results.append((move, bound + q.error(move, to), jnp.ones_like(bound)))
        return results

    def long():
        rows = zip(proposals, stored, strict=True)
        return [_long(q, close, radius, to) for q, to in rows]

    # One vector for all groups, not some scalars for each: less to compile. All devices
    # must choose the same branch, since those of other groups may have sums over them.
    sizes = jnp.stack([q.form.worst(q.size) for q in proposals])
    largest = jnp.max(jnp.where(np.array([q.tiered for q in proposals]), sizes, 0))
    tier = sum((largest > limit).astype(jnp.int32) for limit in limits[:-1])
    short = jnp.all(sizes <= limits[-1])
    branches = [lambda d=d: usual(d) for d in degrees]
    results = lax.switch(jnp.where(short, tier, len(degrees)), [*branches, long])
    steps = []
    for q, (move, bound, fraction) in zip(proposals, results, strict=True):
        is_long = q.size > limits[-1]
        steps.append((move, Guard(bound=bound, fraction=fraction, long=is_long)))
    return steps


def _propose(x, u, form, *, free):
    p = x.shape[-1]
    bx = form.apply(x)
    normal = form.length(u, bx) / p
    z = x + (u if free else u - each(normal - normal * jnp.clip(normal, 0, 1)) * x)
    bz = form.apply(z)
    gram = form.inner(z, bz)
    twist = form.length(z, bx) - form.length(x, bz) if form.B is not None else 0.0
    rounding = _rounding(z, bz, gram, form, twist)
    gram = gram if form.B is None else phi(gram)
    mean = jnp.ones_like(normal) if free else mean_eigenvalue(gram)
    f = deviation(gram, mean)
    size = schatten(f) if free else frobenius(f)
    # With ‖F‖ ≤ 1 this bounds the norms of x and u, by 5√p and 8√p.
    tame = (jnp.abs(normal) <= 4) & (jnp.abs(mean - 1) <= 0.75) & (size < jnp.inf)
    return _Proposal(
        x=x,
        z=z,
        form=form,
        gram=gram,
        mean=mean,
        size=jnp.where(tame, size, jnp.inf),
        rounding=rounding,
    )


def _rounding(z, bz, gram, form, twist):
    """What rounding may add to a residual that is found from zᵀBz."""
    p, eps = z.shape[-1], jnp.finfo(z.dtype).eps
    if form.B is None:
        return 16 * eps * p**0.5
    # B is symmetric: what is not symmetric here is the rounding of Bz.
    error = norm(gram - gram.mT) + jnp.abs(twist)
    sizes = jnp.sqrt(form.length(z, z)) * jnp.sqrt(form.length(bz, bz) / p)
    return lax.stop_gradient(16 * eps * sizes + 4 * error)


def _short(q, degree):
    """Item 1; for degree 0 the move to z itself."""
    if degree == 0:
        return q.z - q.x
    scale = each(1 / jnp.sqrt(q.mean))
    w = scale * series(deviation(q.gram, q.mean), degree)
    return q.move(w + (scale - 1) * eye(w))


def _long(q, close, radius, stored):
    """Items 2 to 5: the move, a bound, and the fraction."""
    p = q.x.shape[-1]
    w, left, condition = inverse_root(q.gram, close)
    bound = left + condition * jnp.sqrt(jnp.maximum(q.mean, 1)) * q.rounding
    # The sizes of x and z are those for which that holds.
    sane = (q.form.length(q.x, q.form.apply(q.x)) <= 16 * p) & (q.mean <= 100)
    regular = (left <= close) & (bound <= _SURE) & sane

    def direct():
        move = q.move(w - eye(w))
        return move, bound + q.error(move, stored), jnp.ones_like(bound)

    def indirect():
        point = settled(q.x, q.z, q.gram, q.form, close, radius)
        y, left, fraction, before = point
        move = y - q.x
        by = q.form.apply(y)
        rounding = _rounding(y, by, q.form.inner(y, by), q.form, 0.0)
        after = left + storing_error(q.x, move, y, q.form, stored)
        stays = (before <= radius) & ~(after <= radius)
        return (
            jnp.where(each(stays), 0, move),
            jnp.where(stays, before, after) + rounding,
            jnp.where(stays, 0, fraction),
        )

    return lax.cond(jnp.all(regular), direct, indirect)
