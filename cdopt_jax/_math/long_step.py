"""Long steps: the nearest point from far away, and what takes its place.

These are items 2 to 5 of `guarded_step`. Every program has them, and few steps take
them, so what counts is how much there is to compile: p×p algebra is done once for each
p, numbers of a matrix are computed `together`, and both looks at the nearest point
consist of the same kernels, which XLA compiles once.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .nearest_point import (
    deviation,
    entry,
    inverse_root,
    mean_eigenvalue,
    squared_norm,
    together,
)
from .products import eye, mm, per_matrix, real_dtype
from .rounding import Stored, full_storing_error, gram_rounding, storing_error
from .stacks import by_shape, greatest

_SURE = 0.05
"""The bound up to which the first look is enough, if it is not above the radius."""

_NEAR = 0.25
"""The residual up to which `inverse_root` has succeeded."""

_FULL = 0.9
"""The ‖E‖_F up to which x counts as of full rank: σ_min(x)² is at least 1 − ‖E‖_F."""

_LIKELY = 2.0
"""The rounding error, as bounded, up to which z counts as regular. The bound is some
ten times too large, and what comes of z is measured."""


def long_steps(
    proposals: Sequence[Any], close: Any, radius: Any, stored: Sequence[Stored]
) -> list[tuple[Array, Array]]:
    """The long steps of all groups.

    Args:
        proposals: What the updates propose.
        close: The residual that may be left.
        radius: The bound r of ‖E‖.
        stored: The dtypes in which each group is stored.

    Returns:
        For each group a matrix, and numbers of each matrix `together`: a bound of the
        residual, the fraction of the update, a code, and two more. With code 1 the
        matrix is what is added to z, with 0 it is the next point, and with −1 the point
        stays at x.
    """
    pairs = zip(proposals, stored, strict=True)
    rows = [(q.gram, q.numbers, q.rounding, _grain(q, to)) for q, to in pairs]
    found = by_shape(partial(_first_look, close=close, radius=radius), rows)
    # All devices must choose the same branch.
    pairs = zip(proposals, found, strict=True)
    unsure = greatest([q.form.maximum(entry(n, 3)) for q, (_, n) in pairs])

    def first():
        pairs = zip(proposals, found, strict=True)
        return [(mm(q.z, w), numbers) for q, (w, numbers) in pairs]

    def second():
        return _second_look(proposals, found, close, radius, stored)

    return lax.cond(unsure > 0, second, first)


def whole_step(proposal: Any, w: Array, bound: Any) -> tuple[Array, Array]:
    """The result of a step to z + zw, as that of `long_steps`, with the code 1."""
    one = jnp.ones_like(proposal.size)
    return mm(proposal.z, w), together(bound * one, one, one, one, one)


def _grain(proposal, to):
    """About twice what storing in half precision is going to add."""
    return to.half * float(jnp.finfo(to.leaf).eps) * proposal.x.shape[-1] ** 0.5 / 2


def _first_look(gram, numbers, rounding, grain, close, radius):
    """Item 2: the factor, and the numbers of `long_steps`.

    The fourth number is 1 where those before it are doubtful, and the fifth where z is
    singular, or nearly so.
    """
    w, left, condition = inverse_root(gram, numbers, close)
    error = condition * rounding
    bound = left + error + full_storing_error(entry(numbers, 3), gram.shape[-1])
    regular = (left <= _NEAR) & (error <= _LIKELY)
    zero, one = jnp.zeros_like(bound), jnp.ones_like(bound)
    sure = (bound <= _SURE) & (bound + grain <= radius)
    unsure = jnp.where(sure, zero, one)
    return w, together(bound, one, zero, unsure, jnp.where(regular, zero, one))


def _second_look(proposals, found, close, radius, stored):
    """Items 3 to 5: the next points, and the numbers of `long_steps`."""
    rows = []
    for q, (_, n) in zip(proposals, found, strict=True):
        bx = q.form.apply(q.x)
        gram, product = q.form.gram(q.x, bx), q.form.dot(bx, q.z)
        top = q.form.largest_entry(q.x) * q.x.shape[-2] ** 0.5
        rows.append((gram, product, top, q.numbers, n))
    facts = by_shape(partial(_facts, radius=radius), rows)
    pairs = zip(proposals, found, facts, strict=True)
    ys = [_start(q, w, f) for q, (w, _), f in pairs]
    rows, roundings = [], []
    for q, y, f in zip(proposals, ys, facts, strict=True):
        by = q.form.apply(y)
        gram = q.form.gram(y, by)
        rounding = gram_rounding(y, by, gram, q.form, mean_eigenvalue(gram))
        roundings.append(rounding)
        rows.append((gram, rounding, f, entry(q.numbers, 3)))
    looks = by_shape(partial(_again, close=close, radius=radius), rows)
    steps = []
    for q, y, f, (w, bound, verdict), rounding, to in zip(
        proposals, ys, facts, looks, roundings, stored, strict=True
    ):
        y = mm(y, w)
        if to.half or q.form.B is not None:
            lost = storing_error(q.x, y - q.x, y, q.form, to)
            verdict = _verdict(bound, lost, rounding, f, radius, half=to.half)
        steps.append((y, verdict))
    return steps


def _facts(gram, product, top, numbers, found, radius):
    """The numbers r, s, t with which `_start` replaces a singular z by tz + rrx + sN.

    If ρ = max(‖E‖_F, radius) is below one, that is x + t(z − x) with t‖u‖_F at most
    √(1 − ρ)/2, else x and a little of N, which has full rank. There r² is one over the
    size of x, in two factors, since the reciprocal of a huge number is flushed to zero.
    Then come ‖E‖_F, and 1 where z is regular. The third number is also the fraction.
    """
    p = gram.shape[-1]
    before = jnp.sqrt(squared_norm(gram - eye(gram)))
    mean = lax.stop_gradient(mean_eigenvalue(gram))
    # ‖u‖² = ‖z‖² − 2⟨x, z⟩ + ‖x‖²
    total = mean + 1 / entry(numbers, 0)
    size = lax.stop_gradient(jnp.maximum(p * total - 2 * product, 0))
    rho = jnp.maximum(before, radius)
    near = rho <= jnp.maximum(radius, _FULL)
    most = jnp.where(near, jnp.sqrt(1 - rho) / 2, 1)
    regular = entry(found, 4) == 0
    part = most * lax.rsqrt(jnp.maximum(size, jnp.square(most)))
    part = jnp.where(near & jnp.isfinite(size), part, 0)
    # By the entries where squares are too large or too small.
    tiny = jnp.finfo(top.dtype).tiny
    entries = jnp.where(top >= tiny, top, jnp.inf)
    squares = (mean >= tiny) & (mean < jnp.inf)
    alone = lax.rsqrt(jnp.where(squares, jnp.sqrt(mean), entries))
    one, zero = jnp.ones_like(part), jnp.zeros_like(part)
    root = jnp.where(near, jnp.sqrt(1 - part), alone)
    noise = jnp.where(near, zero, 0.03)
    part = jnp.where(regular, one, part)
    return together(root, noise, part, before, jnp.where(regular, one, zero))


def _start(q, w, facts):
    """The point to look from again."""
    root, noise, part, _, regular = (per_matrix(entry(facts, i)) for i in range(5))
    some = jnp.where(part > 0, part * q.z, 0) + root * (root * q.x)
    some = some + noise * _full_rank(q.x, q.form)
    return jnp.where(regular > 0, mm(q.z, w), some)


def _again(gram, rounding, facts, distance, close, radius):
    """The factor, a bound of the residual that it leaves, and the verdict."""
    mean = mean_eigenvalue(gram)
    size = deviation(gram, mean) / lax.stop_gradient(mean)
    # As many as those of a proposal, for equal kernels.
    numbers = together(1 / mean, lax.rsqrt(mean), size, size, size)
    w, left, condition = inverse_root(gram, numbers, close)
    bound = left + condition * rounding
    lost = full_storing_error(distance, gram.shape[-1])
    return w, bound, _verdict(bound, lost, rounding, facts, radius, half=False)


def _verdict(bound, lost, rounding, facts, radius, half):
    """Item 5: the numbers of `long_steps`.

    ‖E‖_F may be above r where ‖E‖ is not. So x also stays where it would come no nearer
    to the manifold, unless it may be singular. In half precision x is that far away by
    what storing it has added.
    """
    fraction, before, after = entry(facts, 2), entry(facts, 3), bound + lost
    inside = before <= radius
    if not half:
        inside = inside | ((before <= _FULL) & ~(after < before))
    stays = inside & ~(after <= radius)
    # Of half precision, what storing adds is added to every step.
    bound = jnp.where(stays, before + rounding, bound if half else after)
    fraction = jnp.where(stays, 0, fraction)
    code = jnp.where(stays, -jnp.ones_like(bound), 0)
    return together(bound, fraction, code, code, code)


def _full_rank(x, form):
    """N: the first columns of the identity, with a little noise in every entry.

    Rows that are padding are zero, and may be among the first ones. Then the noise, the
    digits of products of row and column with an odd number, makes the rank full.
    """
    n, p = x.shape[-2:]
    first = 0 if form.axis_name is None else n * lax.axis_index(form.axis_name)
    row = (1 + first + jnp.arange(n)).astype(jnp.uint32)[:, None]
    column = jnp.arange(1, p + 1).astype(jnp.uint32)[None]
    digits = row * column * (row + column) * np.uint32(0x9E3779B1)
    digits = lax.bitcast_convert_type(digits, jnp.int32).astype(real_dtype(x.dtype))
    columns = jnp.where(row == column, 1, 2.0**-32 / n**0.5 * digits)
    columns = jnp.broadcast_to(columns.astype(x.dtype), x.shape)
    if form.indicator is None:
        return columns
    return columns * form.indicator().astype(x.dtype).reshape(x.shape)
