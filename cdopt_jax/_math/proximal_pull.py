"""As far towards a proximal point as the radius allows."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from .nearest_point import spectral_estimate
from .products import Form, beside, per_matrix
from .rounding import Stored, rounded


def pulled(
    x: Array,
    y: Array,
    z: Array,
    form: Form,
    bound: Array,
    radius: Any,
    stored: Stored,
) -> tuple[Array, Array]:
    """The point z, or one between y and z, and a bound of ‖E‖ there.

    With d = z − y, E(y + sd) = (1 − s)E(y) + sE(z) − s(1 − s)dᴴBd, so that its norm is
    at most (1 − s)‖E(y)‖ + s(‖E(z)‖ + ‖d‖²).

    Args:
        x: The matrices.
        y: Where the step has led them.
        z: The proximal point of y.
        form: The form in which they are orthonormal.
        bound: That of ‖E(y)‖.
        radius: The bound to keep.
        stored: The dtypes in which the result is stored; E(z) is measured so.
    """
    d = z - y
    there = rounded(x, z - x, stored)
    e = form.residual(there, form.apply(there))
    off = spectral_estimate(e)
    slope = off + form.dot(d, form.apply(d))
    s = jnp.where(off <= radius, 1, jnp.clip((radius - bound) / slope, 0, 1))
    end = jnp.where(per_matrix(s >= 1), z, y + beside(per_matrix(s), d) * d)
    rounding = 16 * jnp.finfo(x.dtype).eps * x.shape[-1] ** 0.5
    return end, jnp.where(s >= 1, off, bound + s * slope) + rounding
