"""Steps whose end is nearly singular, and points that are far from the manifold.

These are items 3 and 4 of `guarded_step`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .nearest_point import deviation, frobenius, inverse_root, loop
from .products import Form, eye, mm, per_matrix
from .stacks import by_shape

_ROUNDS = 3
"""How often z is replaced before it counts as singular: singular values of 1/16,000 of
the largest one are enough."""

_NEAR = 0.25
"""The residual at which z does not count as singular."""


class Settled(NamedTuple):
    """The point of the manifold that a long step goes to, and how it was found.

    Attributes:
        y: The point.
        root: (yᴴBy)^(−1/2), or nearly so.
        residual: ‖yᴴBy − I‖_F.
        fraction: The fraction of the update in it.
        before: ‖E‖_F at x; infinity where it was not needed.
    """

    y: Array
    root: Array
    residual: Array
    fraction: Array
    before: Array


def everywhere(conditions: Sequence[Array], forms: Sequence[Form]) -> Array:
    """Whether conditions hold for all matrices, on all devices."""
    pairs = zip(conditions, forms, strict=True)
    fails = [form.maximum(jnp.where(c, 0.0, 1.0)) for c, form in pairs]
    return jnp.max(jnp.stack(fails)) == 0


def settled(
    xs: Sequence[Array],
    zs: Sequence[Array],
    roots: Sequence[Array],
    forms: Sequence[Form],
    close: Array,
    radius: Any,
) -> list[Settled]:
    """The points to go to from x: those of z, or of what takes the place of z.

    Args:
        xs: The matrices of each group.
        zs: What the updates propose.
        roots: (zᴴBz)^(−1/2), or nearly so.
        forms: The forms in which they are orthonormal.
        close: The residual that may be left.
        radius: The bound r of ‖E‖.
    """

    def root(gram):
        residual = frobenius(gram - eye(gram))
        return inverse_root(*deviation(gram), close)[0], residual

    def within(ends, limits):
        pairs = zip(ends, limits, strict=True)
        return everywhere([end.residual <= limit for end, limit in pairs], forms)

    def replaced(ends, ys):
        """Another start for the matrices that count as singular."""
        found = []
        for x, z, form, end, y in zip(xs, zs, forms, ends, ys, strict=True):
            start, fraction, before = _replacement(x, z - x, form, radius)
            singular = ~(end.residual <= _NEAR)
            y = jnp.where(per_matrix(singular), start, y)
            found.append((y, jnp.where(singular, fraction, 1), before))
        return found

    def same(ends, ys):
        pairs = zip(ends, ys, strict=True)
        return [(y, end.fraction, end.before) for end, y in pairs]

    def one_round(carry):
        k, ends = carry
        ys = [mm(end.y, end.root) for end in ends]
        singular = (k == _ROUNDS) & ~within(ends, [_NEAR] * len(ends))
        points = lax.cond(singular, replaced, same, ends, ys)
        pairs = zip(points, forms, strict=True)
        grams = [form.gram(y, form.apply(y)) for (y, _, _), form in pairs]
        rows = zip(points, by_shape(root, [(gram,) for gram in grams]), strict=True)
        return k + 1, [
            Settled(y=y, root=w, residual=left, fraction=fraction, before=before)
            for (y, fraction, before), (w, left) in rows
        ]

    def goes_on(carry):
        k, ends = carry
        return (k < 4 * _ROUNDS) & ~within(ends, tight)

    start, tight = [], []
    for z, w in zip(zs, roots, strict=True):
        # Made of the data: inside ``shard_map`` the numbers vary as the data do.
        ones = jnp.ones_like(frobenius(w))
        far = jnp.inf * ones
        end = Settled(y=z, root=w, residual=far, fraction=ones, before=far)
        start.append(end)
        tight.append(jnp.maximum(close, 8 * jnp.finfo(z.dtype).eps * z.shape[-1] ** 0.5))
    carry = (jnp.zeros([], jnp.int32), start)
    return loop(goes_on, one_round, carry, 4 * _ROUNDS)[1]


def _replacement(x, u, form, radius):
    """What takes the place of z, the fraction of u in it, and ‖E‖_F."""
    before = frobenius(form.residual(x, form.apply(x)))
    inside = before <= radius
    size = jnp.sqrt(lax.stop_gradient(form.dot(u, form.apply(u))))
    finite = jnp.isfinite(size) & inside
    most = jnp.sqrt(1 - radius) / 2
    fraction = jnp.where(finite, most / jnp.maximum(size, most), 0)
    with_some = x + per_matrix(fraction) * jnp.where(per_matrix(finite), u, 0)
    # In two halves, since the reciprocal of a huge number is flushed to zero.
    top = form.largest_entry(x)
    top = jnp.where(top >= jnp.finfo(x.dtype).tiny, top, jnp.inf)
    root = per_matrix(jnp.sqrt(top))
    alone = x / root / root + 1e-3 * _full_rank(x, form)
    point = jnp.where(per_matrix(inside), with_some, alone)
    return point, fraction.astype(before.dtype), before


def _full_rank(x, form):
    """Columns of a discrete cosine transform (DCT-IV), which are orthogonal.

    Without the rows that are padding they still have full rank, since cos((k + ½)θ) for
    k < p are a Chebyshev system on (0, π).
    """
    n, p = x.shape[-2:]
    real = jnp.finfo(x.dtype).dtype
    first = 0 if form.axis_name is None else n * lax.axis_index(form.axis_name)
    whole = n if form.axis_name is None else lax.psum(n, form.axis_name)
    row = (first + jnp.arange(n)).astype(real) + 0.5
    column = jnp.arange(p).astype(real) + 0.5
    columns = jnp.cos(row[:, None] * column[None] * (np.pi / whole))
    columns = jnp.broadcast_to(columns.astype(x.dtype), x.shape)
    if form.indicator is None:
        return columns
    return columns * form.indicator().astype(x.dtype).reshape(x.shape)
