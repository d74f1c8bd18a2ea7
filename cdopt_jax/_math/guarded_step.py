"""The guarded step: to the point of the manifold nearest to x + u, for every update u.

Let z = x + u, G = zᴴBz, m = tr(G)/p, F = G/m − I and E = xᴴBx − I; ‖·‖ is the spectral
norm and r < 1 the radius. `nearest_point` has the polynomial q and its properties.

1. A *short step* has ‖F‖_F⁵ ≤ `CLOSE`, or r/4 if that is less, and goes to z·q(F)/√m,
   whose residual is at most that, whatever x and u were. It takes two products of
   n×p×p, and none to two of p×p×p: where ‖F‖_F² or ‖F‖_F³ is as small, q is cut.
2. Every other step is a *long step*, again of two products of n×p×p: to z·W with W the
   `inverse_root` of G, which is q(F)/√m, and then the map A of the paper applied until
   a residual as small is left, with four products of p×p×p each time.
3. Where rounding may have too large a part in that residual, G is formed again at the
   point that was reached, and the step goes on from there.
4. If z is singular, or nearly so, or not finite, then x + tu takes its place, with
   t‖u‖_F ≤ √(1 − ρ)/2 for ρ = max(r, ‖E‖_F), or t = 0 for a u that is not finite. It
   has full rank, since σ_min(x) is at least √(1 − ρ). If ‖E‖_F is near one or above, x
   alone takes the place of z, with a small matrix of full rank added to it; what cannot
   be reached in one step then, the next one reaches.
5. The point that items 3 and 4 lead to is measured. If its residual, as it will be
   stored, is above r and ‖E‖ ≤ r, then x stays where it is.

So ‖E‖ ≤ r before a step implies the same after it, for every u. After a short step the
residual is at most 2e-6, up to rounding. Items 2 to 5 are in `long_step`.

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

from .long_step import long_steps, whole_step
from .nearest_point import (
    deviation,
    entry,
    factor,
    mean_eigenvalue,
    minimum,
    together,
)
from .products import Form, per_matrix, phi
from .rounding import Stored, gram_rounding, storing_error
from .stacks import greatest

CLOSE = 2e-6
"""The residual that a short step may leave."""

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
        long: 1 if the step was long, else 0.
        distance: |‖x‖²/p − 1| before the step, at most ‖E‖.
    """

    bound: Array
    fraction: Array
    long: Array
    distance: Array


class Proposal(NamedTuple):
    """The point that an update leads to, and what is known of it.

    Attributes:
        x: The matrices.
        z: x + u, without most of the mean normal part of u.
        form: The form in which they are orthonormal.
        gram: G.
        numbers: Of each matrix, `together`: 1/m, 1/√m, ‖F‖_F, |‖x‖²/p − 1|, and what
            is infinite where x or u is too large for ``rounding`` to hold, else zero.
        rounding: What rounding may add to F, a number for each matrix or for all.
    """

    x: Array
    z: Array
    form: Form
    gram: Array
    numbers: Array
    rounding: Any

    @property
    def size(self) -> Array:
        """A bound of ‖F‖, which is infinite where x or u is too large."""
        return entry(self.numbers, 2) + entry(self.numbers, 4)

    @property
    def tiered(self) -> bool:
        """Whether products of p×p×p count beside those of n×p×p.

        Degree 4 costs 12 % of the time of `constrain` at 1024×128, 15 % at 300×64×16
        and nothing at 1000×16×8, where two more branches would take 0.3 s to compile.
        """
        n, p = self.x.shape[-2:]
        return n < 16 * p and (n >= 4 * p or p >= 128)


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
    close = minimum(CLOSE, radius / 4)
    proposals = _proposals(xs, us, forms)
    few = len({x.shape for x in xs}) <= _FEW
    tiered = [q.tiered and few for q in proposals]
    degrees = _DEGREES if any(tiered) else _DEGREES[-1:]
    limits = [close ** (1 / (degree + 1)) for degree in degrees]

    def short_steps(degree):
        results = []
        for q, has_tiers in zip(proposals, tiered, strict=True):
            w = factor(q.gram, q.numbers, degree if has_tiers else _DEGREES[-1])
            results.append(whole_step(q, w, close + q.rounding))
        return results

    # All devices must choose the same branch, since those of other groups may have sums
    # over them.
    sizes = [q.form.maximum(q.size) for q in proposals]
    largest = greatest([s for s, has in zip(sizes, tiered, strict=True) if has])
    tier = sum((largest > limit).astype(jnp.int32) for limit in limits[:-1])
    short = greatest(sizes) <= limits[-1]
    branches = [partial(short_steps, degree) for degree in degrees]
    branches.append(partial(long_steps, proposals, close, radius, stored))
    results = lax.switch(jnp.where(short, tier, len(degrees)), branches)
    steps = []
    for q, (rest, verdict), to in zip(proposals, results, stored, strict=True):
        # Outside of the branches, where one pass also adds the move to the parameters.
        code = per_matrix(entry(verdict, 2))
        move = jnp.where(code < 0, 0, rest - q.x)
        move = jnp.where(code > 0, (q.z - q.x) + rest, move)
        bound = entry(verdict, 0)
        if to.half:
            y = jnp.where(code > 0, q.z + rest, jnp.where(code < 0, q.x, rest))
            bound = bound + storing_error(q.x, move, y, q.form, to)
        guard = Guard(
            bound=bound,
            fraction=entry(verdict, 1),
            long=(~(q.size <= limits[-1])).astype(bound.dtype),
            distance=entry(q.numbers, 3),
        )
        steps.append((move, guard))
    return steps


def _proposals(xs, us, forms):
    found = []
    for x, u, form in zip(xs, us, forms, strict=True):
        p = x.shape[-1]
        bx = form.apply(x)
        # Or XLA computes u once more for z.
        u = lax.optimization_barrier(u)
        normal = form.dot(bx, u) / p
        z = x + (u - per_matrix(normal - normal * jnp.clip(normal, 0, 1)) * x)
        bz = form.apply(z)
        gram = form.gram(z, bz)
        twist = form.dot(z, bx) - form.dot(x, bz) if form.B is not None else 0.0
        rounding = gram_rounding(z, bz, gram, form, mean_eigenvalue(gram), x, twist)
        # The same sum as in `tangential_gradient`, and so made once in `constrain`.
        square = form.dot(x, bx) / p
        gram = gram if form.B is None else phi(gram)
        proposal = Proposal(
            x=x,
            z=z,
            form=form,
            gram=gram,
            numbers=_numbers(gram, normal, square),
            rounding=rounding,
        )
        found.append(proposal)
    return found


def _numbers(gram, normal, square):
    """The numbers of `Proposal`."""
    mean = mean_eigenvalue(gram)
    size = deviation(gram, mean) / lax.stop_gradient(mean)
    # With ‖F‖ ≤ 1 this bounds the norms of x and u, by 5√p and 8√p.
    tame = (jnp.abs(normal) <= 4) & (jnp.abs(mean - 1) <= 0.75)
    extra, distance = jnp.where(tame, 0, jnp.inf), jnp.abs(square - 1)
    return together(1 / mean, lax.rsqrt(mean), size, distance, extra)
