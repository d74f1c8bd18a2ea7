"""The part of a gradient that an optimiser should see."""

import jax.numpy as jnp
from jax import Array, lax

from ._algebra import Form, each, mm, phi


def tangential_gradient(x: Array, g: Array, form: Form) -> Array:
    """A gradient without its normal part: g − BxΦ(xᵀg).

    That is the adjoint of J_A(x) on the manifold, and cheaper; off the manifold nothing
    better was found in the adjoint itself.

    Entries that are no larger than the rounding of the difference are zero: at a
    stationary point Adam and Lion would make steps of full length of them. The gradient
    of a matrix whose norm is far from that of orthonormal columns is zero as well: the
    step will bring the matrix in, and it has another gradient there.
    """
    n, p = x.shape[-2:]
    y = form.apply(x)
    # Not xᵀg, for which x would be transposed before g is there, and kept: as much
    # memory as all parameters take.
    s = phi(form.inner(g, x))
    v = g - mm(y, s)
    # What rounding makes of an entry of yS, where its row of y is up to 8 times the
    # mean row. Behind the barrier XLA for CPU does not store it for every entry, which
    # took 5 % of the time of `constrain` at 300×64×16.
    spread = jnp.sum(s * s, axis=-2, keepdims=True) * (64 * p / n)
    spread = lax.optimization_barrier(spread)
    grain = (4 * float(jnp.finfo(x.dtype).eps)) ** 2
    off = jnp.abs(form.length(x, y) / p - 1) > 0.5
    return jnp.where(each(off) | (v * v <= grain * (4 * g * g + spread)), 0, v)
