"""Steps whose end is nearly singular, and points that are far from the manifold.

These are items 3 and 4 of `guarded_step`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .nearest_point import deviation, frobenius, inverse_root
from .products import Form, mm, per_matrix
from .stacks import by_shape

_ROUNDS = 3
"""How often the nearest point is looked for from the point that was found. The first
round brings singular values of a thousandth of the largest one to the size of one."""


class Settled(NamedTuple):
    """The point of the manifold that a long step goes to, and how it was found.

    Attributes:
        y: The point.
        residual: Its ‖yᴴBy − I‖_F.
        fraction: The fraction of the update in it.
        before: ‖E‖_F at x.
    """

    y: Array
    residual: Array
    fraction: Array
    before: Array


def settled(
    xs: Sequence[Array],
    zs: Sequence[Array],
    regular: Sequence[Array],
    forms: Sequence[Form],
    close: Array,
    radius: Any,
) -> list[Settled]:
    """The points to go to from x: those of z, or of what takes the place of z.

    Args:
        xs: The matrices of each group.
        zs: What the updates propose.
        regular: Which of them are far enough from singular.
        forms: The forms in which they are orthonormal.
        close: The residual that may be left.
        radius: The bound r of ‖E‖.
    """

    def root(gram):
        return inverse_root(*deviation(gram), close)[0]

    def one_round(_, ys):
        pairs = zip(ys, forms, strict=True)
        grams = [(form.gram(y, form.apply(y)),) for y, form in pairs]
        return [mm(y, w) for y, w in zip(ys, by_shape(root, grams), strict=True)]

    starts = []
    for x, z, usable, form in zip(xs, zs, regular, forms, strict=True):
        start, fraction, before = _replacement(x, z - x, form, radius)
        start = jnp.where(per_matrix(usable), z, start)
        starts.append((start, jnp.where(usable, 1, fraction), before))
    # A loop, so that a round is compiled once.
    ys = lax.fori_loop(0, _ROUNDS, one_round, [start for start, _, _ in starts])
    found = []
    for y, form, (_, fraction, before) in zip(ys, forms, starts, strict=True):
        residual = frobenius(form.residual(y, form.apply(y)))
        end = Settled(y=y, residual=residual, fraction=fraction, before=before)
        found.append(end)
    return found


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
