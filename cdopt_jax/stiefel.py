"""The mathematics of one array of matrices, of shape ``(*batch, n, p)`` with n ≥ p.

Throughout, M = xᵀBx with B the identity unless it is given, E = M − I,
P = I − E/2 + 3E²/8 and Φ(s) = (s + sᵀ)/2. The constraint is M = I: the Stiefel
manifold, or the generalized one when there is a B. Everything here is a pure
function made of matrix products and elementwise operations. Half-precision arrays are
computed in float32, and every product asks for the highest precision, since
feasibility is lost in a product that a TPU or TF32 has rounded.

Matrices may be complex. Then the transpose in every formula is the conjugate transpose,
the inner product of a and b is Re tr(aᴴb), and a gradient is the direction of steepest
ascent, which is the conjugate of what ``jax.grad`` returns.

``B`` is a symmetric (or Hermitian) positive definite ``(n, n)`` array, or a callable
x ↦ Bx. Results can be differentiated with respect to B as well.

On a mesh with Explicit axes, rows, columns and batch may be split in any way; results
have the layout of ``x``. On Auto axes the compiler lays the products out, and does so
without moving the matrices where they are split along rows or batch. Inside
``shard_map``, ``axis_name`` names the axes that split the rows, if any.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike, DTypeLike

from ._checks import (
    check_dtype,
    check_key,
    check_shape,
    complex_metric_fault,
    definiteness_fault,
    is_known,
    metric_fault,
    projection_fault,
    takes,
)
from ._errors import public
from ._math.products import (
    AxisName,
    Form,
    Metric,
    beside,
    dissolved_gradient,
    eye,
    image_fault,
    is_complex,
    map_factor,
    mm,
    norm,
    normal_factor,
    of_rank,
    per_matrix,
    phi,
    real_dtype,
    squared_modulus,
    widen,
)
from ._math.sharding import plan

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

# q(σ) = σ(a + bσ² + cσ⁴) maps (0, 1.21] into itself, multiplies a small σ by a = 3.44,
# and leaves every singular value where A takes it to one (Jordan et al., "Muon", 2024).
_QUINTIC = (3.4445, -4.7750, 2.0315)

# A, in the same form.
_A = (15 / 8, -10 / 8, 3 / 8)


def residual(x: ArrayLike, *, B: Metric = None, axis_name: AxisName = None) -> Array:
    """E = xᵀBx − I, how far x is from the constraint; float32 for half precision."""
    (x,), form, _ = _prepare("residual", B, axis_name, x, lift=False)
    return form.residual(x, form.apply(x))


def feasibility(x: ArrayLike, *, B: Metric = None, axis_name: AxisName = None) -> Array:
    """‖E‖_F for each matrix, of shape ``batch``."""
    (x,), form, _ = _prepare("feasibility", B, axis_name, x, lift=False)
    return norm(form.residual(x, form.apply(x)))


def dissolve(x: ArrayLike, *, B: Metric = None, axis_name: AxisName = None) -> Array:
    """The constraint dissolving map A(x) = x(15I − 10M + 3M²)/8.

    A fixes the points of the manifold and is cubically close to it around it:
    ‖E(A(x))‖ ≤ ‖E(x)‖³ where ‖E(x)‖ ≤ 1. It is a homeomorphism, so the chain rule is
    exact for f∘A with f merely locally Lipschitz. Derivatives, in both modes and of
    any order, follow the closed form of `jvp`.

    Args:
        x: Matrices, of shape ``(*batch, n, p)`` with n ≥ p.
        B: The metric of the generalized constraint xᵀBx = I.
        axis_name: The axes that split the rows, inside ``shard_map``.

    Returns:
        A(x), of the shape and dtype of ``x``.

    Examples:
        >>> import jax.numpy as jnp
        >>> from cdopt_jax import stiefel
        >>> x = jnp.array([[1.1, 0.0], [0.0, 0.9], [0.0, 0.0]])
        >>> print(stiefel.feasibility(x), stiefel.feasibility(stiefel.dissolve(x)))
        0.2831... 0.0071...
    """
    (x,), form, done = _prepare("dissolve", B, axis_name, x)
    if form.B is None:
        return done(_dissolve(axis_name, x))
    if not callable(form.B):
        return done(_dissolve_in_metric(axis_name, _apply_array, x, form.B))
    apply, arrays = jax.closure_convert(form.apply, x)
    return done(_dissolve_in_metric(axis_name, apply, x, *arrays))


def jvp(
    x: ArrayLike, d: ArrayLike, *, B: Metric = None, axis_name: AxisName = None
) -> Array:
    """The derivative J_A(x)[d] = dP + x(−S + (3/2)Φ(SE)), where S = Φ(xᵀBd)."""
    (x, d), form, done = _prepare("jvp", B, axis_name, x, d=d)
    y, e, p = _expand(x, form)
    return done(mm(d, p) + mm(x, normal_factor(phi(form.gram(y, d)), e)))


def vjp(
    x: ArrayLike, w: ArrayLike, *, B: Metric = None, axis_name: AxisName = None
) -> Array:
    """The adjoint of `jvp`: wP + Bx(−T + (3/2)Φ(TE)), where T = Φ(xᵀw).

    Without B the derivative is self-adjoint and this is `jvp`.
    """
    (x, w), form, done = _prepare("vjp", B, axis_name, x, w=w)
    y, e, p = _expand(x, form)
    return done(mm(w, p) + mm(y, normal_factor(phi(form.gram(x, w)), e)))


def penalty(x: ArrayLike, *, B: Metric = None, axis_name: AxisName = None) -> Array:
    """‖E‖_F²/4 for each matrix, of shape ``batch``."""
    (x,), form, _ = _prepare("penalty", B, axis_name, x, lift=False)
    e = form.residual(x, form.apply(x))
    return jnp.sum(squared_modulus(e), axis=(-2, -1)) / 4


def penalty_grad(
    x: ArrayLike, *, B: Metric = None, axis_name: AxisName = None
) -> Array:
    """The gradient of `penalty`, BxE."""
    (x,), form, done = _prepare("penalty_grad", B, axis_name, x)
    y = form.apply(x)
    return done(mm(y, form.residual(x, y)))


def gradient(
    x: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    *,
    B: Metric = None,
    axis_name: AxisName = None,
) -> Array:
    """The gradient of h(x) = f(A(x)) + (β/4)‖E‖_F², given g = ∇f(A(x)).

    `vjp` and `penalty_grad` in one: gP + BxQ with Q = −T + (3/2)Φ(TE) + βE. That is
    four products of n×p×p and two of p×p×p, and there is no way with fewer.

    Args:
        x: Matrices, of shape ``(*batch, n, p)`` with n ≥ p.
        g: The gradient of f at A(x), or, in the paper's approximation, at x.
        beta: The weight β; a scalar, or one for each matrix, of shape ``batch``.
        B: The metric of the generalized constraint xᵀBx = I.
        axis_name: The axes that split the rows, inside ``shard_map``.

    Returns:
        The gradient of h, of the shape and dtype of ``x``.
    """
    (x, g), form, done = _prepare("gradient", B, axis_name, x, g=g)
    beta = _array("gradient", "beta", beta)
    # By NumPy: under jit an operation of JAX on known values gives an unknown one.
    negative = is_known(beta) and not np.all(np.asarray(beta) >= 0)
    fits = beta.shape in ((), x.shape[:-2], x.shape[1:-2])  # x may have been lifted
    if jnp.iscomplexobj(beta) or not fits or negative:
        raise ValueError(
            "stiefel.gradient: beta must be a number of zero or above, or one for each "
            f"matrix; it is {beta}."
        )
    beta = beta.astype(real_dtype(x.dtype))
    beta = per_matrix(of_rank(beta, x.ndim - 2)) if beta.ndim else beta
    return done(dissolved_gradient(x, g, form, beta, lambda _: 1))


def tangent(
    x: ArrayLike, g: ArrayLike, *, B: Metric = None, axis_name: AxisName = None
) -> Array:
    """The projection of ``g`` to the tangent space at ``x``: g − xΦ(xᵀBg).

    The tangent space at a point of the manifold is {d : Φ(xᵀBd) = 0}, and the
    projection is orthogonal in the metric of B. There it is J_A(x).
    """
    (x, g), form, done = _prepare("tangent", B, axis_name, x, g=g)
    return done(g - mm(x, phi(form.gram(form.apply(x), g))))


def project(x: ArrayLike, *, B: Metric = None, axis_name: AxisName = None) -> Array:
    """The nearest point of the manifold, by matrix products only.

    That is the polar factor UVᵀ of x = UΣVᵀ, or x(xᵀBx)^(−1/2) when there is a B. The
    singular values are scaled into (0, 1], grown by a steep quintic, then taken to one
    by A. The count of products is fixed, so it compiles small, runs under ``jit`` and
    ``vmap`` on any backend, and can be differentiated.

    Args:
        x: Matrices of full rank, ``(*batch, n, p)`` with n ≥ p, of any scale and
            with a condition number up to 1e3; what is beyond loses accuracy slowly.
        B: The metric of the generalized constraint xᵀBx = I.
        axis_name: The axes that split the rows, inside ``shard_map``.

    Returns:
        A point of the manifold, of the shape and dtype of ``x``.

    Raises:
        ValueError: On a concrete ``x`` that is rank-deficient or not finite: there is
            no nearest point. Under ``jit`` values cannot be checked.
    """
    (x,), form, done = _prepare("project", B, axis_name, x)
    if fault := projection_fault(x):
        raise ValueError(f"stiefel.project: x has shape {x.shape} and {fault}")
    if fault := definiteness_fault(form.B, x):
        raise ValueError(f"stiefel.project: {fault}.")
    polar = _polar if callable(form.B) else _compiled_polar
    return done(polar(x, form.B, axis_name))


def _polar(x, B, axis_name):
    form = Form(B=B, axis_name=axis_name)
    largest = per_matrix(form.largest_entry(x))
    # In two halves, since the reciprocal of a huge number may be flushed to zero.
    root = beside(jnp.sqrt(jnp.where(largest > 0, largest, 1)), x)
    x = x / root / root
    # √‖M‖_F, the Schatten-4 norm, bounds σ_max with less slack than ‖x‖_F does.
    m = form.gram(x, form.apply(x))
    size = jnp.max(jnp.abs(m), axis=(-2, -1), keepdims=True)
    size = jnp.where(size > 0, size, 1)
    rest = jnp.maximum(per_matrix(norm(m / beside(size, m))), 1)
    x = x / beside(jnp.sqrt(size), x) / beside(jnp.sqrt(rest), x)
    grow, polish = (11, 4) if jnp.finfo(x.dtype).bits == 32 else (15, 6)
    # One loop for both, since what is rarely run should compile quickly.
    quintics = jnp.array([_QUINTIC] * grow + [_A] * polish, x.dtype)

    def step(i, x):
        a, b, c = quintics[i]
        m = form.gram(x, form.apply(x))
        return mm(x, a * eye(m) + b * m + c * mm(m, m))

    return lax.fori_loop(0, grow + polish, step, x)


# Compiled once for each shape, for those who call it outside ``jit``.
_compiled_polar = jax.jit(_polar, static_argnames="axis_name")


@public("stiefel.random")
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
        dtype: The dtype of the point, real or complex; JAX's default float if None.
        B: The metric of the generalized constraint xᵀBx = I.

    Returns:
        A point drawn from the invariant distribution.
    """
    check_key(key)
    check_shape(shape)
    dtype = check_dtype(dtype)
    _check("random", "the point", tuple(shape), dtype)
    q, r = jnp.linalg.qr(jax.random.normal(key, shape, widen(dtype)))
    # Without the signs of R's diagonal, for complex matrices its phases, Q follows the
    # routine's convention instead.
    sign = jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))
    q = q * jnp.where(sign == 0, 1, sign)[..., None, :]
    return (q if B is None else project(q, B=B)).astype(dtype)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _dissolve(axis_name, x):
    return mm(x, _expand(x, Form(axis_name=axis_name))[2])


@_dissolve.defjvp
def _(axis_name, primals, tangents):
    (x,), (d,) = primals, tangents
    form = Form(axis_name=axis_name)
    _, e, p = _expand(x, form)
    return mm(x, p), mm(d, p) + mm(x, normal_factor(phi(form.gram(x, d)), e))


def _apply_array(x, B):
    return Form(B=B).apply(x)


# The arrays of the metric are arguments of their own, since a derivative rule must not
# close over what may be differentiated.
@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _dissolve_in_metric(axis_name, apply, x, *arrays):
    e = Form(axis_name=axis_name).residual(x, apply(x, *arrays))
    return mm(x, map_factor(e, mm(e, e)))


@partial(_dissolve_in_metric.defjvp, symbolic_zeros=True)
def _(axis_name, apply, primals, tangents):
    (x, *arrays), (d, *by_metric) = primals, tangents
    form = Form(axis_name=axis_name)
    y = apply(x, *arrays)
    e = form.residual(x, y)
    p = map_factor(e, mm(e, e))
    # Half of the derivative of M; B is Hermitian, so xᴴ(Bd) = yᴴd and Bd is not formed.
    half, moved = jnp.zeros_like(e), jnp.zeros_like(x)
    if not isinstance(d, SymbolicZero):
        half, moved = half + form.gram(y, d), mm(d, p)
    changes = [a for a in by_metric if not isinstance(a, SymbolicZero)]
    if changes:
        dense = [
            jnp.zeros_like(a) if isinstance(t, SymbolicZero) else t
            for a, t in zip(arrays, by_metric, strict=True)
        ]
        _, change = jax.jvp(lambda *a: apply(x, *a), tuple(arrays), tuple(dense))
        half = half + form.gram(x, change) / 2
    return mm(x, p), moved + mm(x, normal_factor(phi(half), e))


def _expand(x, form):
    """Bx, E and P."""
    y = form.apply(x)
    e = form.residual(x, y)
    return y, e, map_factor(e, mm(e, e))


def _prepare(
    name, B: Metric, axis_name: AxisName, x, *, lift=True, **others
) -> tuple[list[Array], Form, Any]:
    """The arrays, checked, as they are computed with; the form; and the way back.

    That is from the dtype of the computation to that of ``x``, and from split rows to
    the layout of ``x``. Results that are not like ``x`` should not be lifted.
    """
    x = _array(name, "x", x)
    shape, dtype = x.shape, x.dtype
    _check(name, "x", shape, dtype, axis_name)
    layout = None
    if axis_name is None:
        layout = plan(x, None, [x.ndim - 2], [x.ndim - 1])

    # With a batch of two axes, XLA's kernel for CPU is up to three times as fast.
    lifted = len(shape) == 3 and shape[0] > 1 and lift and not callable(B)

    def enter(v):
        v = v if layout is None else layout.enter(v)
        v = v[None] if lifted else v
        return v.astype(widen(dtype))

    def leave(v):
        v = v[0] if lifted else v
        v = v.astype(dtype)
        return v if layout is None else layout.leave(v)

    arrays, metric = [x := enter(x)], B
    if callable(B):
        if not takes(B, 1):
            raise ValueError(
                f"stiefel.{name}: B must be a function of one argument, x ↦ Bx, or an "
                f"array; {B!r} does not take one argument."
            )
        if fault := image_fault(jax.eval_shape(B, x), x):
            raise ValueError(f"stiefel.{name}: {fault}")
    elif B is not None:
        if fault := metric_fault(B, shape[-2], layout, axis_name):
            raise ValueError(f"stiefel.{name}: {fault}.")
        if fault := complex_metric_fault(B, x.dtype):
            raise ValueError(f"stiefel.{name}: {fault}.")
        metric = jnp.asarray(B, x.dtype)
    for label, v in others.items():
        d = _array(name, label, v)
        fits = jnp.issubdtype(d.dtype, jnp.inexact)
        if d.shape != shape or not fits or is_complex(d) != is_complex(dtype):
            kind = "complex" if is_complex(dtype) else "real floating-point"
            raise ValueError(
                f"stiefel.{name}: {label} must be a {kind} array of the shape of x, "
                f"{shape}; it has shape {d.shape} and dtype {d.dtype}."
            )
        arrays.append(enter(d))
    return arrays, Form(B=metric, axis_name=axis_name), leave


def _array(name, label, value):
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"stiefel.{name}: {label} must be an array; it is of type "
            f"{type(value).__name__}."
        ) from None


def _parts(name, axis_name):
    """Into how many parts the rows are split."""
    try:
        return 1 if axis_name is None else lax.psum(1, axis_name)
    except (NameError, TypeError, ValueError):
        raise ValueError(
            f"stiefel.{name}: axis_name must name axes that are mapped, and "
            f"{axis_name!r} is not here; give it inside of shard_map alone."
        ) from None


def _check(name, label, shape, dtype, axis_name=None):
    parts = _parts(name, axis_name)
    if len(shape) < 2 or shape[-2] * parts < shape[-1] or min(shape) < 1:
        raise ValueError(
            f"stiefel.{name}: {label} must have shape (*batch, n, p), n ≥ p ≥ 1; it "
            f"has shape {shape} and dtype {dtype}. Transpose wide matrices."
        )
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise ValueError(
            f"stiefel.{name}: {label} must be floating point, real or complex; it has "
            f"shape {shape} and dtype {dtype}."
        )
