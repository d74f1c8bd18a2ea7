"""The mathematics of one array of matrices, of shape ``(*batch, n, p)`` with n ≥ p.

Throughout, M = xᵀBx with B the identity unless it is given, E = M − I,
P = I − E/2 + 3E²/8 and Φ(s) = (s + sᵀ)/2. The constraint is M = I: the Stiefel
manifold, or the generalized one when there is a B. Everything here is a pure
function made of matrix products and elementwise operations. Half-precision arrays are
computed in float32, and every product asks for the highest precision, since
feasibility is lost in a product that a TPU or TF32 has rounded.

``B`` is a symmetric positive definite ``(n, n)`` array, or a callable x ↦ Bx. It is a
constant of the problem: no derivative is taken with respect to it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from ._algebra import (
    apply_metric,
    each,
    eye,
    factor,
    inner,
    mm,
    norm,
    phi,
    residual as compute_residual,
    turn,
    widen,
)
from ._faults import metric_fault, projection_fault

__all__ = [
    "dissolve",
    "feasibility",
    "gradient",
    "jvp",
    "penalty",
    "penalty_grad",
    "project",
    "random",
    "residual",
    "tangent",
    "vjp",
]

Metric = ArrayLike | Callable[[Array], Array] | None

# q(σ) = σ(a + bσ² + cσ⁴) maps (0, 1.21] into itself, multiplies a small σ by a = 3.44,
# and leaves every singular value where A takes it to one (Jordan et al., "Muon", 2024).
_QUINTIC = (3.4445, -4.7750, 2.0315)


def residual(x: ArrayLike, *, B: Metric = None) -> Array:
    """E = xᵀBx − I, how far x is from the constraint; float32 for half precision."""
    x, B, _ = _prepare("residual", B, x)
    return compute_residual(x, apply_metric(B, x))


def feasibility(x: ArrayLike, *, B: Metric = None) -> Array:
    """‖E‖_F for each matrix, of shape ``batch``."""
    x, B, _ = _prepare("feasibility", B, x)
    return norm(compute_residual(x, apply_metric(B, x)))


def dissolve(x: ArrayLike, *, B: Metric = None) -> Array:
    """The constraint dissolving map A(x) = x(15I − 10M + 3M²)/8.

    A fixes the points of the manifold and is cubically close to it around it:
    ‖E(A(x))‖ ≤ ‖E(x)‖³ where ‖E(x)‖ ≤ 1. It is a homeomorphism, so the chain rule is
    exact for f∘A with f merely locally Lipschitz. Derivatives, in both modes and of
    any order, follow the closed form of `jvp`.

    Args:
        x: Matrices, of shape ``(*batch, n, p)`` with n ≥ p.
        B: The metric of the generalized constraint xᵀBx = I.

    Returns:
        A(x), of the shape and dtype of ``x``.

    Examples:
        >>> import jax.numpy as jnp
        >>> from cdopt_jax import stiefel
        >>> x = jnp.array([[1.1, 0.0], [0.0, 0.9], [0.0, 0.0]])
        >>> print(stiefel.feasibility(x), stiefel.feasibility(stiefel.dissolve(x)))
        0.2831... 0.0071...
    """
    x, B, dtype = _prepare("dissolve", B, x)
    a = _dissolve(x) if B is None else _dissolve_in_metric(x, apply_metric(B, x))
    return a.astype(dtype)


def jvp(x: ArrayLike, d: ArrayLike, *, B: Metric = None) -> Array:
    """The derivative J_A(x)[d] = dP + x(−S + (3/2)Φ(SE)), where S = Φ(xᵀBd)."""
    x, d, B, dtype = _prepare_pair("jvp", "d", B, x, d)
    y, e, p = _expand(x, B)
    return (mm(d, p) + mm(x, turn(phi(inner(y, d)), e))).astype(dtype)


def vjp(x: ArrayLike, w: ArrayLike, *, B: Metric = None) -> Array:
    """The adjoint of `jvp`: wP + Bx(−T + (3/2)Φ(TE)), where T = Φ(xᵀw).

    Without B the derivative is self-adjoint and this is `jvp`.
    """
    x, w, B, dtype = _prepare_pair("vjp", "w", B, x, w)
    y, e, p = _expand(x, B)
    return (mm(w, p) + mm(y, turn(phi(inner(x, w)), e))).astype(dtype)


def penalty(x: ArrayLike, *, B: Metric = None) -> Array:
    """‖E‖_F²/4 for each matrix, of shape ``batch``."""
    x, B, _ = _prepare("penalty", B, x)
    return jnp.sum(compute_residual(x, apply_metric(B, x)) ** 2, axis=(-2, -1)) / 4


def penalty_grad(x: ArrayLike, *, B: Metric = None) -> Array:
    """The gradient of `penalty`, BxE."""
    x, B, dtype = _prepare("penalty_grad", B, x)
    y = apply_metric(B, x)
    return mm(y, compute_residual(x, y)).astype(dtype)


def gradient(x: ArrayLike, g: ArrayLike, beta: ArrayLike, *, B: Metric = None) -> Array:
    """The gradient of h(x) = f(A(x)) + (β/4)‖E‖_F², given g = ∇f(A(x)).

    `vjp` and `penalty_grad` in one: gP + BxQ with Q = −T + (3/2)Φ(TE) + βE. That is
    four products of n×p×p and two of p×p×p, and there is no way with fewer.

    Args:
        x: Matrices, of shape ``(*batch, n, p)`` with n ≥ p.
        g: The gradient of f at A(x), or, in the paper's approximation, at x.
        beta: The weight β; a scalar, or one for each matrix, of shape ``batch``.
        B: The metric of the generalized constraint xᵀBx = I.

    Returns:
        The gradient of h, of the shape and dtype of ``x``.
    """
    x, g, B, dtype = _prepare_pair("gradient", "g", B, x, g)
    y, e, p = _expand(x, B)
    beta = each(jnp.asarray(beta, x.dtype))
    q = turn(phi(inner(x, g)), e) + beta * e
    return (mm(g, p) + mm(y, q)).astype(dtype)


def tangent(x: ArrayLike, g: ArrayLike, *, B: Metric = None) -> Array:
    """The projection of ``g`` to the tangent space at ``x``: g − xΦ(xᵀBg).

    The tangent space at a point of the manifold is {d : Φ(xᵀBd) = 0}, and the
    projection is orthogonal in the metric of B. There it is J_A(x).
    """
    x, g, B, dtype = _prepare_pair("tangent", "g", B, x, g)
    return (g - mm(x, phi(inner(apply_metric(B, x), g)))).astype(dtype)


def project(x: ArrayLike, *, B: Metric = None) -> Array:
    """The nearest point of the manifold, by matrix products only.

    That is the polar factor UVᵀ of x = UΣVᵀ, or x(xᵀBx)^(−1/2) when there is a B. The
    singular values are scaled into (0, 1], grown by a steep quintic, then taken to one
    by A. The count of products is fixed, so it compiles small, runs under ``jit`` and
    ``vmap`` on any backend, and can be differentiated.

    Args:
        x: Matrices of full rank, ``(*batch, n, p)`` with n ≥ p, of any scale and
            with a condition number up to 1e3; what is beyond loses accuracy slowly.
        B: The metric of the generalized constraint xᵀBx = I.

    Returns:
        A point of the manifold, of the shape and dtype of ``x``.

    Raises:
        ValueError: On a concrete ``x`` that is rank-deficient or not finite: there is
            no nearest point. Under ``jit`` values cannot be checked.
    """
    x, B, dtype = _prepare("project", B, x)
    if fault := projection_fault(x):
        raise ValueError(f"stiefel.project: x has shape {x.shape} and {fault}")
    polar = _polar if callable(B) else _compiled_polar
    return polar(x, B).astype(dtype)


def _polar(x, B):
    largest = jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True)
    # In two halves, since the reciprocal of a huge number may be flushed to zero.
    root = jnp.sqrt(jnp.where(largest > 0, largest, 1))
    x = x / root / root
    # √‖M‖_F, the Schatten-4 norm, bounds σ_max with less slack than ‖x‖_F does.
    m = inner(x, apply_metric(B, x))
    size = jnp.max(jnp.abs(m), axis=(-2, -1), keepdims=True)
    size = jnp.where(size > 0, size, 1)
    x = x / jnp.sqrt(size) / jnp.sqrt(jnp.maximum(each(norm(m / size)), 1))
    single = x.dtype == jnp.float32
    a, b, c = _QUINTIC

    def grow(_, x):
        m = inner(x, apply_metric(B, x))
        return mm(x, a * eye(m) + b * m + c * mm(m, m))

    def polish(_, x):
        return mm(x, _expand(x, B)[2])

    x = lax.fori_loop(0, 11 if single else 15, grow, x)
    return lax.fori_loop(0, 4 if single else 6, polish, x)


# Compiled once for each shape, for those who call it outside ``jit``.
_compiled_polar = jax.jit(_polar)


def random(
    key: Array,
    shape: tuple[int, ...],
    dtype: DTypeLike | None = None,
    *,
    B: Metric = None,
) -> Array:
    """A uniformly random point of the manifold (with B, its image under `project`).

    Args:
        key: A JAX random key.
        shape: ``(*batch, n, p)`` with n ≥ p.
        dtype: The dtype of the point; JAX's default float if None.
        B: The metric of the generalized constraint xᵀBx = I.

    Returns:
        A point drawn from the invariant distribution.
    """
    dtype = jnp.result_type(float if dtype is None else dtype)
    if not isinstance(shape, tuple | list):
        raise ValueError(
            f"stiefel.random: shape must be a tuple (*batch, n, p); it is {shape!r}."
        )
    _check("random", "the point", shape, dtype)
    q, r = jnp.linalg.qr(jax.random.normal(key, shape, widen(dtype)))
    # Without the signs of R's diagonal, Q follows the routine's convention instead.
    sign = jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))
    q = q * jnp.where(sign == 0, 1, sign)[..., None, :]
    return (q if B is None else project(q, B=B)).astype(dtype)


@jax.custom_jvp
def _dissolve(x):
    return mm(x, _expand(x, None)[2])


@_dissolve.defjvp
def _(primals, tangents):
    (x,), (d,) = primals, tangents
    _, e, p = _expand(x, None)
    return mm(x, p), mm(d, p) + mm(x, turn(phi(inner(x, d)), e))


# y = Bx is an argument of its own, since a derivative rule must not close over a B that
# may be traced.
@jax.custom_jvp
def _dissolve_in_metric(x, y):
    e = compute_residual(x, y)
    return mm(x, factor(e, mm(e, e)))


@_dissolve_in_metric.defjvp
def _(primals, tangents):
    (x, y), (d, _) = primals, tangents  # B is symmetric: xᵀ(Bd) = yᵀd
    e = compute_residual(x, y)
    p = factor(e, mm(e, e))
    return mm(x, p), mm(d, p) + mm(x, turn(phi(inner(y, d)), e))


def _expand(x, B):
    """Bx, E and P."""
    y = apply_metric(B, x)
    e = compute_residual(x, y)
    return y, e, factor(e, mm(e, e))


def _prepare(name, B, x) -> tuple[Array, Any, Any]:
    """The arguments, checked, in the dtype of the computation; and x's own dtype."""
    x = jnp.asarray(x)
    _check(name, "x", x.shape, x.dtype)
    wide = x.astype(widen(x.dtype))
    if callable(B):
        made = jax.eval_shape(B, wide).shape
        if made != wide.shape:
            raise ValueError(
                f"stiefel.{name}: B must map {wide.shape} to {wide.shape}; it returned "
                f"{made}."
            )
    elif B is not None:
        if fault := metric_fault(B, x.shape[-2]):
            raise ValueError(f"stiefel.{name}: {fault}.")
        B = lax.stop_gradient(jnp.asarray(B, wide.dtype))
    return wide, B, x.dtype


def _prepare_pair(name, label, B, x, d) -> tuple[Array, Array, Any, Any]:
    d = jnp.asarray(d)
    x, B, dtype = _prepare(name, B, x)
    if d.shape != x.shape or not jnp.issubdtype(d.dtype, jnp.floating):
        raise ValueError(
            f"stiefel.{name}: {label} must be a real floating-point array of the shape "
            f"of x, {x.shape}; it has shape {d.shape} and dtype {d.dtype}."
        )
    return x, d.astype(x.dtype), B, dtype


def _check(name, label, shape, dtype):
    if len(shape) < 2 or shape[-2] < shape[-1] or 0 in shape:
        raise ValueError(
            f"stiefel.{name}: {label} must have shape (*batch, n, p), n ≥ p ≥ 1; it "
            f"has shape {shape} and dtype {dtype}. Transpose wide matrices."
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"stiefel.{name}: {label} must be real floating point; it has shape "
            f"{shape} and dtype {dtype}."
        )
