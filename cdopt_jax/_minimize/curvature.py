"""How far a first step may go."""

import jax
import jax.numpy as jnp
from jax import Array

from cdopt_jax._minimize.landscape import Landscape, Point, length


def first_stepsize(land: Landscape, x: Point, d: Point) -> Array:
    """The inverse of the curvature of f along the projected gradient."""
    size = length(d)
    unit = [a / jnp.where(size > 0, size, 1) for a in d]
    _, bent = jax.jvp(jax.grad(land.smooth), (x,), (unit,))
    curvature = length(bent)
    # Where there is none, as far as a hundredth of the unknown's own size.
    fallback = 0.01 * length(x) / jnp.where(size > 0, size, 1)
    curved = curvature > size * 1e-6
    return jnp.where(curved, 1 / jnp.where(curved, curvature, 1), fallback)
