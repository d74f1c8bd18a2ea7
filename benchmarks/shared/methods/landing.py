"""The landing algorithm: no retraction, and a step size that keeps the point near."""

import jax
import jax.numpy as jnp

from benchmarks.shared.algebra import product


def landing(
    x: jax.Array,
    g: jax.Array,
    rate: float,
    *,
    attraction: float = 1.0,
    radius: float = 0.5,
) -> jax.Array:
    """Descend along the landing field, no farther than is safe.

    The field is Λ = 2 skew(GXᵀ)X + λX(XᵀX − I), with skew(S) = (S − Sᵀ)/2, and takes
    four products: GM + X(λE − GᵀX) with M = XᵀX and E = M − I. Its first term is
    tangent to the level set of E, so

        E⁺ = E − 2ηλ(E + E²) + η²ΛᵀΛ,

    and with d = ‖E‖, a = ‖Λ‖ (Frobenius) and η ≤ 1/(2λ) there is
    ‖E⁺‖ ≤ d − 2ηλd(1 − d) + η²a². That is at most ε for every η up to

        min{(λd(1 − d) + √(λ²d²(1 − d)² + a²(ε − d)))/a², 1/(2λ)}.

    Args:
        x: The points, with ‖XᵀX − I‖ ≤ ``radius``.
        g: The Euclidean gradients.
        rate: The learning rate η, taken where it is safe.
        attraction: The weight λ.
        radius: The bound ε ≤ 1 of ‖XᵀX − I‖, kept by every step.

    Returns:
        The next points.

    References:
        Ablin and Peyré, "Fast and accurate optimization on the orthogonal manifold
        without retraction", AISTATS 2022. Ablin, Vary, Gao and Absil, "Infeasible
        deterministic, stochastic, and variance-reduction algorithms for optimization
        under orthogonality constraints", JMLR 2024, the lemma on the safe step size.
    """
    m = product(x.mT, x)
    e = m - jnp.eye(x.shape[-1], dtype=x.dtype)
    field = product(g, m) + product(x, attraction * e - product(g.mT, x))
    safe = safe_step(_norm(e), _norm(field), attraction, radius)
    return x - jnp.minimum(rate, safe) * field


def safe_step(
    d: jax.Array, a: jax.Array, attraction: float, radius: float
) -> jax.Array:
    """The longest step that the bound of `landing` allows."""
    pull = attraction * d * (1 - d)
    # Rounding may lead across the boundary: there, what does not lead farther is safe.
    room = jnp.maximum(radius - d, 0)
    square = jnp.maximum(a**2, jnp.finfo(a.dtype).tiny)
    longest = (pull + jnp.sqrt(pull**2 + square * room)) / square
    return jnp.minimum(longest, 1 / (2 * attraction))


def _norm(s):
    return jnp.linalg.norm(s, axis=(-2, -1), keepdims=True)
