"""The guarded step: to the point of the manifold nearest to x + u, for every update u.

Let z = x + u, G = zᴴBz, m = tr(G)/p, F = G/m − I and E = xᴴBx − I; ‖·‖ is the spectral
norm and r < 1 the radius. `nearest_point` has the polynomial q and its properties.

1. A *short step* has ‖F‖_F⁵ ≤ `CLOSE`, or r/4 if that is less, and goes to z·q(F)/√m,
   whose residual is at most that, whatever x and u were. It takes two products of
   n×p×p, and none to two of p×p×p: where ‖F‖_F² or ‖F‖_F³ is as small, q is cut.
2. Every other step is a *long step*. It goes to z·`inverse_root`(G): again two products
   of n×p×p. The residual that the factor leaves is measured, in p×p algebra.
3. Where rounding may have a part in that residual, G is formed again at the point that
   was reached, a few times. This converges for z of full rank.
4. If z is singular, or nearly so, or not finite, and ‖E‖ ≤ r, then x + tu takes the
   place of z, with t‖u‖_F ≤ √(1 − r)/2, or t = 0 for a u that is not finite. It has
   full rank, since σ_min(x) is at least √(1 − r). If ‖E‖ > r, the place of z is taken
   by x alone, to which a small matrix of full rank is added.
5. The point that items 3 and 4 lead to is measured as it will be stored. If it comes of
   item 4, its residual is above r and ‖E‖ ≤ r, then x stays where it is.

So ‖E‖ ≤ r before a step implies the same after it, for every u. After a short step the
residual is at most 2e-6, up to rounding.

The mean normal part s = ⟨x, u⟩_B / p of u makes a step shorter, since the point nearest
to (1 + s)x + v is that of x + v/(1 + s). Momentum carried around a bend has such a
part. A large s keeps high learning rates stable; a small s costs up to 20 % more steps
(PCA, 500×20, momentum 0.9). So s is replaced by s·clip(s, 0, 1).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from .nearest_point import deviation, frobenius, inverse_root, series
from .products import Form, adjoint, eye, mm, norm, per_matrix, phi
from .rounding import Stored, storing_error
from .singular_steps import settled
from .stacks import by_shape

CLOSE = 2e-6
"""The residual that a short step may leave."""

_SURE = 0.05
"""The bound up to which the result of a long step need not be measured."""

_NEAR = 0.25
"""The residual up to which `inverse_root` has succeeded."""

_LIKELY = 2.0
"""The rounding error, as bounded, up to which z counts as regular. The bound is some
ten times too large, and what comes of z is measured."""

_DEGREES = (1, 2, 4)
"""The degrees to which q is cut, with 0, 1 and 2 products of p×p×p."""

_FEW = 4
"""Up to how many shapes of matrices each degree has a branch of its own. The largest
step of all chooses the degree, so that with many leaves a low degree is rare, and two
more branches took 2 s to compile for the 53 kernels of a ResNet-50."""


class Guard(NamedTuple):
    """What the guard did, one entry for each matrix.

    Attributes:
        bound: A bound of ‖xᴴBx − I‖ after the step.
        fraction: The fraction of the update that was taken; 0 if it was not finite.
        long: Whether the step was long.
        distance: |‖x‖²/p − 1| before the step, at most ‖E‖.
    """

    bound: Array
    fraction: Array
    long: Array
    distance: Array


class _Proposal(NamedTuple):
    """The point that an update leads to, and what is known of it.

    Attributes:
        x: The matrices.
        z: x + u, without most of the mean normal part of u.
        form: The form in which they are orthonormal.
        f: F.
        mean: m.
        size: A bound of ‖F‖; infinite where x or u are so large that ``rounding`` does
            not hold.
        rounding: What rounding may add to F, and to the residual of a short step.
        distance: |‖x‖²/p − 1|.
    """

    x: Array
    z: Array
    form: Form
    f: Array
    mean: Array
    size: Array
    rounding: Any
    distance: Array

    @property
    def tiered(self) -> bool:
        """Whether products of p×p×p count beside those of n×p×p.

        Degree 4 costs 12 % of the time of `constrain` at 1024×128, 15 % at 300×64×16
        and nothing at 1000×16×8, where two more branches would take 0.3 s to compile.
        """
        n, p = self.x.shape[-2:]
        return n < 16 * p and (n >= 4 * p or p >= 128)

    def move(self, w: Array) -> Array:
        """The move from x to z(I + w)."""
        return (self.z - self.x) + mm(self.z, w)

    def short_move(self, degree: int) -> Array:
        """The move of item 1."""
        scale = per_matrix(1 / jnp.sqrt(self.mean))
        w = scale * series(self.f, degree)
        return self.move(w + (scale - 1) * eye(w))

    def storing_error(self, move: Array, stored: Stored) -> Any:
        """What half precision adds to the residual of x + move."""
        if not stored.half:
            return 0.0
        return storing_error(self.x, move, self.x + move, self.form, stored)


def guarded_steps(
    xs: Sequence[Array],
    us: Sequence[Array],
    forms: Sequence[Form],
    radius: Any,
    stored: Sequence[Stored],
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

    Returns:
        For each group, the move and what was done.
    """
    if not xs:
        return []
    close = jnp.minimum(CLOSE, radius / 4)
    rows = zip(xs, us, forms, strict=True)
    proposals = [_propose(x, u, form) for x, u, form in rows]
    few = len({x.shape for x in xs}) <= _FEW
    tiered = [q.tiered and few for q in proposals]
    degrees = _DEGREES if any(tiered) else _DEGREES[-1:]
    limits = [close ** (1 / (degree + 1)) for degree in degrees]

    def short_steps(degree):
        results = []
        for q, to, has_tiers in zip(proposals, stored, tiered, strict=True):
            move = q.short_move(degree if has_tiers else _DEGREES[-1])
            bound = jnp.full_like(q.size, close) + q.rounding
            bound = bound + q.storing_error(move, to)
            results.append((move, bound, jnp.ones_like(bound)))
        return results

    # One vector for all groups, not some scalars for each: less to compile. All devices
    # must choose the same branch, since those of other groups may have sums over them.
    sizes = jnp.stack([q.form.maximum(q.size) for q in proposals])
    largest = jnp.max(jnp.where(jnp.array(tiered), sizes, 0))
    tier = sum((largest > limit).astype(jnp.int32) for limit in limits[:-1])
    short = jnp.all(sizes <= limits[-1])
    branches = [partial(short_steps, degree) for degree in degrees]
    branches.append(partial(_long_steps, proposals, close, radius, stored))
    branch = jnp.where(short, tier, len(degrees))
    results = lax.switch(branch, branches)
    steps = []
    for q, (move, bound, fraction) in zip(proposals, results, strict=True):
        is_long = q.size > limits[-1]
        guard = Guard(bound=bound, fraction=fraction, long=is_long, distance=q.distance)
        steps.append((move, guard))
    return steps


def _propose(x, u, form):
    p = x.shape[-1]
    bx = form.apply(x)
    normal = form.dot(bx, u) / p
    z = x + (u - per_matrix(normal - normal * jnp.clip(normal, 0, 1)) * x)
    bz = form.apply(z)
    gram = form.gram(z, bz)
    twist = form.dot(z, bx) - form.dot(x, bz) if form.B is not None else 0.0
    f, mean = deviation(gram if form.B is None else phi(gram))
    rounding = _rounding(z, bz, gram, form, mean, twist)
    size = frobenius(f)
    # With ‖F‖ ≤ 1 this bounds the norms of x and u, by 5√p and 8√p.
    tame = (jnp.abs(normal) <= 4) & (jnp.abs(mean - 1) <= 0.75) & (size < jnp.inf)
    return _Proposal(
        x=x,
        z=z,
        form=form,
        f=f,
        mean=mean,
        size=jnp.where(tame, size, jnp.inf),
        rounding=rounding,
        # The same sum as in `tangential_gradient`, and so made once in `constrain`.
        distance=jnp.abs(form.dot(x, bx) / p - 1),
    )


def _rounding(z, bz, gram, form, mean, twist=0.0):
    """What rounding may add to zᴴBz/m."""
    p, eps = z.shape[-1], jnp.finfo(z.dtype).eps
    if form.B is None:
        return 16 * eps * p**0.5
    # B is Hermitian: what is not Hermitian here is the rounding of Bz.
    asymmetry = norm(gram - adjoint(gram)) + jnp.abs(twist)
    sizes = jnp.sqrt(form.dot(z, z)) * jnp.sqrt(form.dot(bz, bz) / p)
    return lax.stop_gradient((16 * eps * sizes + 4 * asymmetry) / mean)


def _long_steps(proposals, close, radius, stored):
    """Items 2 to 5, for each group: the move, a bound, and the fraction."""
    root = partial(inverse_root, close=close)
    roots = by_shape(root, [(q.f, q.mean) for q in proposals])
    bounds, sure, regular = [], [], []
    for q, (_, left, condition) in zip(proposals, roots, strict=True):
        rounding = condition * jnp.sqrt(jnp.maximum(q.mean, 1)) * q.rounding
        # The sizes of x and z are those for which that holds.
        sane = (q.distance <= 15) & (q.mean <= 100) & (q.mean > 0)
        bounds.append(left + rounding)
        sure.append((left <= close) & (left + rounding <= _SURE) & sane)
        near = (left <= _NEAR) & (q.mean > 0)
        regular.append(near & (condition * q.rounding <= _LIKELY))

    def direct():
        results = []
        rows = zip(proposals, roots, bounds, stored, strict=True)
        for q, (w, _, _), bound, to in rows:
            move = q.move(w - eye(w))
            bound = bound + q.storing_error(move, to)
            results.append((move, bound, jnp.ones_like(bound)))
        return results

    def indirect():
        xs, zs = [q.x for q in proposals], [q.z for q in proposals]
        ends = settled(xs, zs, regular, forms, close, radius)
        rows = zip(proposals, ends, stored, strict=True)
        return [_measured(q, end, radius, to) for q, end, to in rows]

    forms = [q.form for q in proposals]
    # All devices must choose the same branch, as above.
    rows = zip(sure, forms, strict=True)
    unsure = jnp.stack([form.maximum(jnp.where(ok, 0.0, 1.0)) for ok, form in rows])
    return lax.cond(jnp.max(unsure) == 0, direct, indirect)


def _measured(q, end, radius, stored):
    """Item 5."""
    move = end.y - q.x
    by = q.form.apply(end.y)
    gram = q.form.gram(end.y, by)
    rounding = _rounding(end.y, by, gram, q.form, jnp.ones_like(end.residual))
    after = end.residual + storing_error(q.x, move, end.y, q.form, stored)
    stays = (end.before <= radius) & ~(after <= radius)
    return (
        jnp.where(per_matrix(stays), 0, move),
        jnp.where(stays, end.before, after) + rounding,
        jnp.where(stays, 0, end.fraction),
    )
