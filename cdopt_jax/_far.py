"""Steps whose end is nearly singular, and points that are far from the manifold.

These are items 3 and 4 of `_guard`.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ._algebra import Form, each, eye, mm
from ._nearest import frobenius, inverse_root, loop

_ROUNDS = 3
"""How often z is replaced before it counts as singular: singular values of 1/16,000 of
the largest one are enough."""

_NEAR = 0.25
"""The residual at which z does not count as singular."""


def settled(
    x: Array, z: Array, gram: Array, form: Form, close: Array, radius: Any
) -> tuple[Array, Array, Array, Array]:
    """The point of the manifold to go to from x, if z is not too near to singular.

    Args:
        x: The matrices.
        z: What the update proposes.
        gram: G = zᵀBz.
        form: The form in which they are orthonormal.
        close: The residual that may be left.
        radius: The bound r of ‖E‖.

    Returns:
        The point; its residual; the fraction of the update in it; and ‖E‖_F, or
        infinity where it did not matter.
    """
    tight = jnp.maximum(close, 8 * jnp.finfo(x.dtype).eps * x.shape[-1] ** 0.5)

    def anew(y, _, left, *__):
        start, fraction, before = _replacement(x, z - x, form, radius)
        bad = ~(left <= _NEAR)
        y = jnp.where(each(bad), start, y)
        gram = form.inner(y, form.apply(y))
        return y, gram, left, jnp.where(bad, fraction, 1), before

    def turn(carry):
        k, *state = carry
        bad = (k == _ROUNDS) & ~jnp.all(state[2] <= _NEAR)
        y, gram, _, *rest = lax.cond(bad, anew, lambda *same: same, *state)
        y = mm(y, inverse_root(gram, close)[0])
        gram = form.inner(y, form.apply(y))
        return k + 1, y, gram, frobenius(gram - eye(gram)), *rest

    def goes_on(carry):
        k, _, _, left, *_ = carry
        return (k < 4 * _ROUNDS) & ~jnp.all(left <= tight)

    ones = jnp.ones(x.shape[:-2], x.dtype)
    unknown = jnp.inf * ones
    carry = (0, z, gram, unknown, ones, unknown)
    _, y, _, *rest = loop(goes_on, turn, carry, 4 * _ROUNDS)
    return y, *rest


def _replacement(x, u, form, radius):
    """What takes the place of z, the fraction of u in it, and ‖E‖_F."""
    before = frobenius(form.residual(x, form.apply(x)))
    inside = before <= radius
    size = jnp.sqrt(lax.stop_gradient(form.length(u, form.apply(u))))
    finite = jnp.isfinite(size) & inside
    most = jnp.sqrt(1 - radius) / 2
    fraction = jnp.where(finite, most / jnp.maximum(size, most), 0)
    with_some = x + each(fraction) * jnp.where(each(finite), u, 0)
    # In two halves, since the reciprocal of a huge number is flushed to zero.
    top = form.largest(x)
    root = each(jnp.sqrt(jnp.where(top >= jnp.finfo(x.dtype).tiny, top, jnp.inf)))
    alone = x / root / root + 1e-3 * _full_rank(x, form)
    return jnp.where(each(inside), with_some, alone), fraction, before


def _full_rank(x, form):
    """Columns of a discrete cosine transform (DCT-IV), which are orthogonal.

    Without the rows that are padding they still have full rank, since cos((k + ½)θ) for
    k < p are a Chebyshev system on (0, π).
    """
    n, p = x.shape[-2:]
    first = 0 if form.axis_name is None else n * lax.axis_index(form.axis_name)
    whole = n if form.axis_name is None else lax.psum(n, form.axis_name)
    row = (first + jnp.arange(n)).astype(x.dtype) + 0.5
    column = jnp.arange(p).astype(x.dtype) + 0.5
    columns = jnp.cos(row[:, None] * column * (np.pi / whole))
    if form.indicator is None:
        return columns
    return columns * form.indicator().astype(x.dtype)
