"""Steps whose end is nearly singular, and points that are far from the manifold.

These are items 3 and 4 of `guarded_step`.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .nearest_point import frobenius, inverse_root, loop, mean_eigenvalue
from .products import Form, eye, mm, per_matrix

_ROUNDS = 3
"""How often z is replaced before it counts as singular: singular values of 1/16,000 of
the largest one are enough."""

_NEAR = 0.25
"""The residual at which z does not count as singular."""


class Settled(NamedTuple):
    """The point of the manifold that a long step goes to, and how it was found.

    Attributes:
        y: The point.
        residual: Its ‖yᴴBy − I‖_F.
        fraction: The fraction of the update in it.
        before: ‖E‖_F at x; infinity where it was not needed.
    """

    y: Array
    residual: Array
    fraction: Array
    before: Array


def settled(
    x: Array, z: Array, gram: Array, form: Form, close: Array, radius: Any
) -> Settled:
    """The point to go to from x: that of z, or of what takes the place of z.

    Args:
        x: The matrices.
        z: What the update proposes.
        gram: G = zᴴBz.
        form: The form in which they are orthonormal.
        close: The residual that may be left.
        radius: The bound r of ‖E‖.
    """
    tight = jnp.maximum(close, 8 * jnp.finfo(x.dtype).eps * x.shape[-1] ** 0.5)

    def replaced(now, _):
        """The same with another start for the matrices that count as singular."""
        start, fraction, before = _replacement(x, z - x, form, radius)
        singular = ~(now.residual <= _NEAR)
        y = jnp.where(per_matrix(singular), start, now.y)
        fraction = jnp.where(singular, fraction, 1)
        now = now._replace(y=y, fraction=fraction, before=before)
        return now, form.gram(y, form.apply(y))

    def one_round(carry):
        k, now, gram = carry
        singular = (k == _ROUNDS) & ~jnp.all(now.residual <= _NEAR)
        now, gram = lax.cond(singular, replaced, lambda *same: same, now, gram)
        y = mm(now.y, inverse_root(gram, close)[0])
        gram = form.gram(y, form.apply(y))
        residual = frobenius(gram - eye(gram))
        return k + 1, now._replace(y=y, residual=residual), gram

    def goes_on(carry):
        k, now, _ = carry
        return (k < 4 * _ROUNDS) & ~jnp.all(now.residual <= tight)

    # Made of the data, so that inside ``shard_map`` the numbers vary as these do.
    ones = jnp.ones_like(mean_eigenvalue(gram))
    start = Settled(y=z, residual=jnp.inf * ones, fraction=ones, before=jnp.inf * ones)
    carry = (jnp.zeros([], jnp.int32), start, gram)
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
