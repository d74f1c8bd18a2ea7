"""Long steps: the nearest point from far away, and what takes its place.

These are items 2 to 5 of `guarded_step`. Every program has them, and few steps take
them, so what counts is how much there is to compile: p×p algebra is done once for each
p, what is rare once for each shape, and numbers of a matrix are computed `together`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .nearest_point import (
    entry,
    factor,
    inverse_root,
    mean_eigenvalue,
    scaled,
    squared_norm,
    together,
)
from .products import eye, mm, per_matrix
from .rounding import Stored, full_storing_error, gram_rounding, storing_error
from .stacks import by_shape, greatest

_ROUNDS = 3
"""How often the nearest point is looked for, from the point that was found. One round
brings singular values of a thousandth of the largest one to the size of one."""

_SURE = 0.05
"""The bound up to which the result of the first round need not be measured, if it is
not above the radius."""

_NEAR = 0.25
"""The residual up to which `inverse_root` has succeeded."""

_LIKELY = 2.0
"""The rounding error, as bounded, up to which z counts as regular. The bound is some
ten times too large, and what comes of z is measured."""


def long_steps(
    proposals: Sequence[Any], close: Array, radius: Any, stored: Sequence[Stored]
) -> list[tuple[Array, Array]]:
    """The long steps of all groups.

    Args:
        proposals: What the updates propose.
        close: The residual that may be left.
        radius: The bound r of ‖E‖.
        stored: The dtypes in which each group is stored.

    Returns:
        For each group a matrix, and three numbers of each matrix: a bound of the
        residual, the fraction of the update, and a code. With code 1 the matrix is what
        is added to z, with 0 it is the next point, and with −1 the point stays at x.
    """
    rows = [(q.gram, q.numbers) for q in proposals]
    squares = by_shape(_square, rows)
    rows = [(*row, *found) for row, found in zip(rows, squares, strict=True)]

    def near():
        factors = by_shape(_degree_8, rows)
        pairs = zip(proposals, factors, strict=True)
        return [whole_step(q, w, close + 2 * q.rounding) for q, w in pairs]

    def far():
        return _far(proposals, rows, close, radius, stored)

    # All devices must choose the same branch.
    pairs = zip(proposals, squares, strict=True)
    sizes = [
        q.form.maximum(jnp.where(q.size < jnp.inf, s, jnp.inf)) for q, (_, s) in pairs
    ]
    return lax.cond(greatest(sizes) <= close ** (1 / 9), near, far)


def whole_step(proposal: Any, w: Array, bound: Any) -> tuple[Array, Array]:
    """The result of a step to z + zw, as that of `long_steps`."""
    one = jnp.ones_like(proposal.size)
    return mm(proposal.z, w), jnp.stack([bound * one, one, one], axis=-1)


def _square(gram, numbers):
    """F², and the Schatten-4 norm √‖F²‖_F, a bound of ‖F‖."""
    f = scaled(gram, numbers)
    square = mm(f, f)
    return square, jnp.sqrt(jnp.sqrt(squared_norm(square)))


def _degree_8(gram, numbers, square, _):
    """Item 2, where ‖F‖ is small enough for it: the factor less I."""
    return factor(gram, numbers, 8, square)


def _far(proposals, rows, close, radius, stored):
    """Items 2 to 5, where ‖F‖ is not small."""
    pairs = zip(proposals, rows, strict=True)
    rows = [
        (gram, numbers, spread, q.rounding) for q, (gram, numbers, _, spread) in pairs
    ]
    most = jnp.minimum(_SURE, radius)
    found = by_shape(partial(_first_round, close=close, most=most), rows)
    pairs = zip(proposals, found, strict=True)
    unsure = [q.form.maximum(entry(verdict, 3)) for q, (_, verdict) in pairs]

    def direct():
        pairs = zip(proposals, found, strict=True)
        return [(mm(q.z, w), verdict[..., :3]) for q, (w, verdict) in pairs]

    def indirect():
        singular = [entry(verdict, 4) for _, verdict in found]
        return _settled(proposals, singular, close, radius, stored)

    return lax.cond(greatest(unsure) == 0, direct, indirect)


def _first_round(gram, numbers, spread, rounding, close, most):
    """Item 2: the factor less I; and a bound, two ones, and 1 if it is not sure.

    The fifth number is 1 where z is singular, or nearly so.
    """
    w, left, condition = inverse_root(gram, numbers, close, spread)
    inverse, distance = entry(numbers, 0), entry(numbers, 3)
    bound = left + condition * jnp.sqrt(jnp.maximum(1 / inverse, 1)) * rounding
    # The sizes of x and z are those for which that holds.
    sane = (distance <= 15) & (inverse >= 0.01) & (inverse < jnp.inf)
    sure = (left <= close) & (bound <= most) & sane
    regular = (left <= _NEAR) & (inverse > 0) & (condition * rounding <= _LIKELY)
    one, zero = jnp.ones_like(bound), jnp.zeros_like(bound)
    verdict = (
        bound,
        one,
        one,
        jnp.where(sure, zero, one),
        jnp.where(regular, zero, one),
    )
    return w - eye(w), together(*verdict)


def _settled(proposals, singular, close, radius, stored):
    """Items 3 to 5: the next points, and the numbers of `long_steps`."""
    rows = []
    for q, bad in zip(proposals, singular, strict=True):
        x, form = q.x, q.form
        bx = form.apply(x)
        rows.append(
            (form.gram(x, bx), form.dot(bx, q.z), form.largest_entry(x), q.numbers, bad)
        )
    facts = by_shape(partial(_facts, radius=radius), rows)
    starts = [_start(q, f) for q, f in zip(proposals, facts, strict=True)]

    def root(gram):
        mean = mean_eigenvalue(gram)
        numbers = together(1 / mean, lax.rsqrt(mean), mean, mean)
        return inverse_root(gram, numbers, close, _square(gram, numbers)[1])[0]

    def grams(ys):
        images = [q.form.apply(y) for q, y in zip(proposals, ys, strict=True)]
        rows = zip(proposals, ys, images, strict=True)
        return images, [q.form.gram(y, by) for q, y, by in rows]

    def one_round(_, ys):
        roots = by_shape(root, [(gram,) for gram in grams(ys)[1]])
        return [mm(y, w) for y, w in zip(ys, roots, strict=True)]

    # A loop, so that a round is compiled once.
    ys = lax.fori_loop(0, _ROUNDS, one_round, starts)
    rows = []
    for q, y, by, gram, f, to in zip(
        proposals, ys, *grams(ys), facts, stored, strict=True
    ):
        rounding = gram_rounding(y, by, gram, q.form, jnp.ones_like(entry(f, 1)))
        lost = None
        if to.half or q.form.B is not None:
            lost = storing_error(q.x, y - q.x, y, q.form, to)
        rows.append((gram, rounding, lost, q.numbers, f, to.half))
    verdicts = by_shape(partial(_verdict, radius=radius), rows)
    return list(zip(ys, verdicts, strict=True))


def _facts(gram, product, top, numbers, singular, radius):
    """What is known of x and u: the fraction of u, ‖E‖_F, and how z is replaced.

    The third number is the square root of the largest entry of x, by which x is divided
    twice, since the reciprocal of a huge number is flushed to zero. The fourth says
    what takes the place of z: nothing (0), x + tu (1), or x alone (2).
    """
    p = gram.shape[-1]
    before = jnp.sqrt(squared_norm(gram - eye(gram)))
    # ‖u‖² = ‖z‖² − 2⟨x, z⟩ + ‖x‖²
    total = mean_eigenvalue(gram) + 1 / entry(numbers, 0)
    size = lax.stop_gradient(jnp.maximum(p * total - 2 * product, 0))
    inside = before <= radius
    most = jnp.sqrt(1 - radius) / 2
    part = most * lax.rsqrt(jnp.maximum(size, most**2))
    part = jnp.where(jnp.isfinite(size) & inside, part, 0)
    root = lax.rsqrt(jnp.where(top >= jnp.finfo(top.dtype).tiny, top, jnp.inf))
    way = jnp.where(inside, 1, jnp.full_like(root, 2))
    one, replaced = jnp.ones_like(root), singular > 0
    return together(
        jnp.where(replaced, part, one), before, root, jnp.where(replaced, way, 0), one
    )


def _start(q, facts):
    """z, or what takes its place."""
    part, _, root, way, _ = (per_matrix(entry(facts, i)) for i in range(5))
    some = q.x + part * jnp.where(part > 0, q.z - q.x, 0)
    alone = q.x * root * root + 1e-3 * _full_rank(q.x, q.form)
    return jnp.where(way > 1, alone, jnp.where(way > 0, some, q.z))


def _verdict(gram, rounding, lost, numbers, facts, half, radius):
    """Item 5: the numbers of `long_steps`."""
    if lost is None:
        lost = full_storing_error(entry(numbers, 3), gram.shape[-1])
    residual = jnp.sqrt(squared_norm(gram - eye(gram))) + rounding
    after, before = residual + lost, entry(facts, 1)
    stays = (before <= radius) & ~(after <= radius)
    # Of half precision, what storing adds is added to every step.
    bound = jnp.where(stays, before + rounding, residual if half else after)
    fraction = jnp.where(stays, 0, entry(facts, 0))
    code = jnp.where(stays, -jnp.ones_like(bound), 0)
    return jnp.stack([bound, fraction, code], axis=-1)


def _full_rank(x, form):
    """The first columns of the identity, with a little noise in every entry.

    Rows that are padding are zero, and may be among the first ones. Then the noise, a
    hash of row and column, is what makes the rank full.
    """
    n, p = x.shape[-2:]
    first = 0 if form.axis_name is None else n * lax.axis_index(form.axis_name)
    row = (first + jnp.arange(n))[:, None]
    column = jnp.arange(p)[None]
    mixed = row.astype(jnp.uint32) * np.uint32(0x9E3779B1)
    mixed = mixed + column.astype(jnp.uint32) * np.uint32(0x85EBCA77)
    for multiplier, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):
        mixed = (mixed ^ (mixed >> shift)) * np.uint32(multiplier)
    real = jnp.finfo(x.dtype).dtype
    noise = mixed.astype(real) * 2.0**-31 - 1
    columns = (row == column).astype(real) + (0.5 / n**0.5) * noise
    columns = jnp.broadcast_to(columns.astype(x.dtype), x.shape)
    if form.indicator is None:
        return columns
    return columns * form.indicator().astype(x.dtype).reshape(x.shape)
