"""The part of a gradient that an optimiser should see."""

import jax.numpy as jnp
from jax import Array, lax

from .products import Form, mm, per_matrix, phi, squared_modulus

_FAR = 0.5
"""How far ‖x‖²/p may be from one before the gradient at x counts as zero."""


def tangential_gradient(x: Array, g: Array, form: Form) -> Array:
    """A gradient without its normal part: g − BxΦ(xᴴg).

    That is the adjoint of J_A(x) on the manifold, and cheaper; off the manifold nothing
    better was found in the adjoint itself.

    Entries that are no larger than the rounding of the difference become zero: at a
    stationary point Adam and Lion would make steps of full length of them. The gradient
    at an x whose norm is far from that of orthonormal columns becomes zero as well: the
    step will bring x to the manifold, where f has another gradient. So does a gradient
    that is not finite: an optimiser with a memory would never get rid of it.
    """
    n, p = x.shape[-2:]
    bx = form.apply(x)
    # Not xᴴg, for which x would be transposed before g is there, and kept: as much
    # memory as all parameters take.
    t = form.gram(g, x)
    w = mm(bx, phi(t))
    v = g - w
    # What rounding makes of an entry of BxΦ(t), where its row of Bx is up to 8 times
    # the mean row. Where it counts, t is nearly Hermitian.
    share = 64 * p / n
    if form.B is None:
        # Rows of x are no longer than one. With 1/4 nothing was left of gradients at
        # leading eigenvectors and at Procrustes solutions, from 50×1 to 3000×200; with
        # 1/64, a thousandth of the entries at 64×64. Without this limit SGD stayed at a
        # gap of 3e-6 on PCA of 800×600, whose gradient is spread over many entries.
        share = min(share, 1 / 4)
    noise = jnp.sum(squared_modulus(t), axis=-2, keepdims=True) * share
    # Behind the barrier XLA for CPU does not store it for every entry, which took 5 %
    # of the time of `constrain` at 300×64×16.
    noise = lax.optimization_barrier(noise)
    grain = (4 * float(jnp.finfo(x.dtype).eps)) ** 2
    near = per_matrix(jnp.abs(form.dot(x, bx) / p - 1) <= _FAR)
    # Not of g, which may be the same for many steps: XLA would store its squares. False
    # where v is not finite.
    square = squared_modulus(v)
    seen = square > grain * (4 * (squared_modulus(w) + square) + noise)
    return jnp.where(near & seen, v, 0)
