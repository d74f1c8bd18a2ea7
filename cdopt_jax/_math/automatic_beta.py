"""A weight β that follows the size of the gradients, for Algorithm 1.

On the manifold a step −ηD along the tangential D = J_A(x)[g] adds η²DᵀD to the
residual E, and the penalty takes off 2ηβE. They balance at ‖E‖ ≈ η‖D‖²/(2β), and the
penalty does not overshoot while ηβ ≤ 1. With β = c‖D‖ both ask the same of the step:
η‖D‖ ≤ 1/c keeps the penalty steady and E below 1/(2c²). So β need only be a small
multiple of the gradient, not the 60 times of the worst case; c = 2 keeps E below 1/8,
which is inside the paper's 1/6. The size of g stands for that of D: it bounds it, is at
hand before the products are made, and does not vanish at a solution.
"""

import jax.numpy as jnp
from jax import Array

from .products import Form, norm

MULTIPLE = 2.0
"""The constant c above."""

DECAY = 0.99
"""By how much β falls in a step, unless the gradient asks for more."""

EDGE = 0.5
"""The ‖E‖_F at which the gradient of f is switched off, and only the penalty acts."""


def weight(g: Array, form: Form) -> Array:
    """The weight that the gradient of each matrix asks for: c‖g‖_F/√p."""
    size = jnp.sqrt(form.dot(g, g) / g.shape[-1])
    return MULTIPLE * jnp.where(jnp.isfinite(size), size, 0)


def follow(previous: Array, new: Array) -> Array:
    """The weight after one more gradient: the largest so far, slowly forgotten."""
    return jnp.maximum(DECAY * previous, new.astype(previous.dtype))


def damping(e: Array) -> Array:
    """How much of the gradient of f is used where the residual is ``e``."""
    return jnp.clip(1 - norm(e) / EDGE, 0, 1)
