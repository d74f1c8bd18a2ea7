"""Riemannian Adam on the complex Stiefel manifold, in the form of QGOpt and qgoptax."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks.shared.algebra import product


class AdamState(NamedTuple):
    """The memory of the optimiser.

    Attributes:
        num_steps: How many steps were taken.
        momentum: A tangent at the present point, for each matrix.
        square: The mean of ‖grad f‖², a number for each matrix.
    """

    num_steps: jax.Array
    momentum: jax.Array
    square: jax.Array


def tangent(x: jax.Array, g: jax.Array) -> jax.Array:
    """The projection G − XΦ(XᴴG) to the tangents at X, Φ(S) = (S + Sᴴ)/2."""
    k = product(x.conj().mT, g)
    return g - product(x, k + k.conj().mT) / 2


def nearest(y: jax.Array) -> jax.Array:
    """The retraction: the nearest point UVᴴ of Y = UΣVᴴ."""
    u, _, vh = jnp.linalg.svd(y, full_matrices=False)
    return product(u, vh)


def riemannian_adam(
    schedule: optax.Schedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """The optimiser of a stack of matrices with XᴴX = I.

    With the tangential gradient D at X, for each matrix of the stack,

        M ← b₁M + (1 − b₁)D,  v ← b₂v + (1 − b₂)‖D‖²,
        X⁺ = nearest(X − η·M̂/(√v̂ + ε)),  M ← tangent(X⁺, M),

    where the hats are Adam's corrections of the first steps: one step length for a
    whole matrix, in the Euclidean metric, with the projection as vector transport. As
    Optax's optimisers, it expects the conjugate of what `jax.grad` returns.

    References:
        Bécigneul and Ganea, "Riemannian adaptive optimization methods", 2019.
        Luchnikov, Krechetov and Filippov, "Riemannian geometry and automatic
        differentiation for optimization problems of quantum physics and quantum
        technologies", 2021.
    """

    def init(params):
        real = params.real.dtype
        return AdamState(
            num_steps=jnp.zeros([], jnp.int32),
            momentum=jnp.zeros_like(params),
            square=jnp.zeros((*params.shape[:-2], 1, 1), real),
        )

    def update(updates, state, params: Any = None, **extra_args):
        del extra_args
        step = state.num_steps + 1
        d = tangent(params, updates)
        size = jnp.sum(jnp.abs(d) ** 2, axis=(-2, -1), keepdims=True)
        momentum = b1 * state.momentum + (1 - b1) * d
        square = b2 * state.square + (1 - b2) * size
        length = jnp.sqrt(square / (1 - b2**step)) + eps
        move = momentum / (1 - b1**step) / length
        x = nearest(params - schedule(state.num_steps) * move)
        new = AdamState(num_steps=step, momentum=tangent(x, momentum), square=square)
        return x - params, new

    return optax.GradientTransformationExtraArgs(init, update)
