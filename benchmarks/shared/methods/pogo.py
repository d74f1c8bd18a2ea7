"""POGO: a Riemannian gradient step, then one step back towards the manifold."""

import jax
import jax.numpy as jnp

from benchmarks.shared.algebra import product


def pogo(x: jax.Array, g: jax.Array, rate: float, *, normal: float = 0.5) -> jax.Array:
    """Step to Y = X − ηR with R = skew(GXᵀ)X, and on to Y − λY(YᵀY − I).

    R = (GM − XGᵀX)/2 is half the gradient in the canonical metric on the manifold.
    With λ = 1/2, the default of the authors, the second step is Y(3I − YᵀY)/2, one
    Newton–Schulz iteration. XᵀR is skew, so YᵀY = M + η²RᵀR, and from a point of the
    manifold ‖E⁺‖ is of fourth order in η. Six products: YᵀY from p×p algebra would
    save one of them for seven of p×p×p.

    Args:
        x: The points.
        g: The Euclidean gradients.
        rate: The learning rate η.
        normal: The step λ towards the manifold.

    Returns:
        The next points.

    References:
        Javaloy and others, "An embarrassingly simple way to optimize orthogonal
        matrices at scale", 2026; the package pogo-torch 1.0.2 with its defaults.
    """
    r = product(g, product(x.mT, x)) - product(x, product(g.mT, x))
    y = x - (rate / 2) * r
    eye = jnp.eye(x.shape[-1], dtype=x.dtype)
    return product(y, (1 + normal) * eye - normal * product(y.mT, y))
