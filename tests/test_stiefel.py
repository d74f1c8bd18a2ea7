"""The array functions against autodiff of the plain formulas.

Everything is a polynomial of degree at most five in matrices of norm about two, so in
float64 the two sides may differ by some hundred roundings: TOL is 1e-12, relative.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cdopt_jax import stiefel
from tests.compiled import array_functions
from tests.oracles import (
    FIELDS,
    METRICS,
    assert_close,
    each_case,
    each_field,
    each_metric,
    each_shape,
    gradient,
    gram_residual,
    inner,
    metric_of,
    normal,
    plain_dissolve,
    plain_penalty,
    points,
    polar,
    pulled_back,
    symmetric,
    transpose,
)

TOL = 1e-12


@each_field
@each_case
def test_values_follow_their_formulas(shape, metric, dtype):
    b = np.asarray(metric_of(metric, shape[-2], dtype)[1])
    for x, d, w in points(shape, 3, dtype):
        found = array_functions(metric, shape[-2], dtype)(x, d, w)
        e = gram_residual(x, b)
        assert_close(found["dissolve"], plain_dissolve(x, b), TOL)
        assert_close(found["residual"], e, TOL)
        assert_close(found["feasibility"], np.linalg.norm(e, axis=(-2, -1)), TOL)
        assert_close(found["penalty"], plain_penalty(x, b), TOL)


@each_metric
def test_values_without_jit_are_those_with(metric):
    B, _ = metric_of(metric, 12)
    x, d, w = next(points((12, 4), 3))
    found = array_functions(metric, 12, "float64")(x, d, w)
    assert_close(stiefel.dissolve(x, B=B), found["dissolve"], TOL)
    assert_close(stiefel.residual(x, B=B), found["residual"], TOL)
    assert_close(stiefel.feasibility(x, B=B), found["feasibility"], TOL)
    assert_close(stiefel.penalty(x, B=B), found["penalty"], TOL)
    assert_close(stiefel.penalty_grad(x, B=B), found["penalty_grad"], TOL)
    assert_close(stiefel.jvp(x, d, B=B), found["jvp of d"], TOL)
    assert_close(stiefel.vjp(x, w, B=B), found["vjp of w"], TOL)
    assert_close(stiefel.tangent(x, d, B=B), found["tangent of d"], TOL)


@jax.jit
def derivatives(x, d, w, b):
    """Of the plain formulas, by autodiff: forward, backward, and of the penalty."""
    _, forward = jax.jvp(lambda x: plain_dissolve(x, b), (x,), (d,))
    reverse = pulled_back(lambda x: plain_dissolve(x, b), x, w)
    return forward, reverse, gradient(lambda x: plain_penalty(x, b).sum())(x)


@each_field
@each_case
def test_derivatives_agree_with_autodiff_of_the_plain_formula(shape, metric, dtype):
    _, b = metric_of(metric, shape[-2], dtype)
    for x, d, w in points(shape, 3, dtype):
        forward, reverse, slope = derivatives(x, d, w, b)
        found = array_functions(metric, shape[-2], dtype)(x, d, w)
        assert_close(found["jvp of d"], forward, TOL)
        assert_close(found["vjp of w"], reverse, TOL)
        assert_close(found["penalty_grad"], slope, TOL)


@each_field
@each_case
def test_jvp_and_vjp_are_adjoint_and_the_same_only_without_a_metric(
    shape, metric, dtype
):
    for x, d, w in points(shape, 3, dtype):
        found = array_functions(metric, shape[-2], dtype)(x, d, w)
        jd, jw = (np.asarray(found[name]) for name in ("jvp of d", "vjp of w"))
        size = 1 + np.linalg.norm(jd.ravel()) * np.linalg.norm(w.ravel())
        assert abs(inner(jd, w) - inner(d, jw)) <= TOL * size
        gap = np.linalg.norm(np.ravel(np.asarray(found["jvp of w"]) - jw))
        if metric == "none":
            assert gap <= TOL * size
        elif shape[-2] > 1:  # one by one, everything commutes
            assert gap > 1e-2 * np.linalg.norm(jw.ravel())


def _loss(y):
    return jnp.sum(jnp.sin(y.real) + y.imag * jnp.cos(y.real))


def _slope(a):
    return gradient(lambda x: _loss(a(x)))


def _push(f, d):
    return lambda x: jax.jvp(f, (x,), (d,))[1]


TRANSFORMS = {
    "jvp": lambda a, x, d: _push(a, d)(x),
    "vjp": lambda a, x, d: jax.vjp(a, x)[1](d)[0],
    "hessian": lambda a, x, _: _hessian(lambda x: _loss(a(x)), x),
    "grad of grad": lambda a, x, d: gradient(
        lambda x: jnp.sum((_slope(a)(x).conj() * d).real)
    )(x),
    "third order": lambda a, x, d: _push(_push(_slope(a), d), d)(x),
    "jvp of vmap": lambda a, x, d: _push(jax.vmap(a), d[None])(x[None]),
    "grad of jit": lambda a, x, _: _slope(jax.jit(a))(x),
    "grad of scan": lambda a, x, _: _slope(_thrice(a))(x),
    "grad of checkpoint": lambda a, x, _: _slope(jax.checkpoint(a))(x),
}


def _hessian(f, x):
    """The Hessian; with respect to real and imaginary parts where x is complex."""
    if not jnp.iscomplexobj(x):
        return jax.hessian(f)(x)
    return jax.hessian(lambda parts: f(parts[0] + 1j * parts[1]))(
        jnp.stack([x.real, x.imag])
    )


def _thrice(a):
    return lambda x: jax.lax.scan(lambda x, _: (a(x), None), x, length=3)[0]


@partial(jax.jit, static_argnums=0)
def transformed(f, x, d, b):
    return {k: of(lambda x: f(x, b), x, d) for k, of in TRANSFORMS.items()}


# The two fields and the three metrics meet elsewhere; each pair takes seconds here.
PAIRS = [("none", "float64"), ("array", "complex128"), ("callable", "float64")]
OTHERS = [(m, d) for m in METRICS for d in FIELDS if (m, d) not in PAIRS]


@pytest.mark.parametrize(
    ("metric", "dtype"),
    [*PAIRS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)],
)
def test_dissolve_differentiates_like_the_plain_formula(metric, dtype):
    x, d = normal((2, 4, 2), 0, dtype) / 2
    _, b = metric_of(metric, 4, dtype)

    def ours(x, b):
        B = {"none": None, "array": b}.get(metric, lambda v: b @ v)
        return stiefel.dissolve(x, B=B)

    found, expected = (transformed(f, x, d, b) for f in (ours, plain_dissolve))
    for name in TRANSFORMS:
        assert_close(found[name], expected[name], TOL)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((7, 1), "float64"), ((5, 5), "complex128")], ids=str
)
def test_dissolve_differentiates_without_jit(shape, dtype):
    for x, d in points(shape, 2, dtype):
        assert_close(_push(stiefel.dissolve, d)(x), stiefel.jvp(x, d), TOL)
        assert_close(pulled_back(stiefel.dissolve, x, d), stiefel.vjp(x, d), TOL)


KINKED = {
    "abs": lambda y: jnp.sum(jnp.abs(y)),
    "max": lambda y: (
        jnp.max(y.real) + jnp.sum(jnp.maximum(y.imag, y[..., ::-1, :].real ** 2))
    ),
    "relu": lambda y: jnp.sum(jax.nn.relu(y.real - 0.1) * jnp.cos(y.real + y.imag)),
    "all": lambda y: _loss(y) + jnp.sum(jnp.abs(y)) + jnp.max(y.real - y.imag),
}


@each_field
@pytest.mark.parametrize(
    ("loss", "shape", "metric"),
    [(loss, (12, 4), "none") for loss in KINKED]
    + [("all", (1, 1), "array"), ("all", (7, 1), "none"), ("all", (5, 5), "callable")]
    + [("all", (3, 8, 3), "array"), ("all", (2, 3, 6, 2), "callable")],
)
def test_gradient_is_that_of_the_dissolving_function(loss, shape, metric, dtype):
    B, b = metric_of(metric, shape[-2], dtype)
    f, count = KINKED[loss], int(np.prod(shape[:-2]))
    beta = 0.5 + jnp.arange(count).reshape(shape[:-2])  # one for each matrix

    def h(x):
        return f(plain_dissolve(x, b)) + jnp.sum(beta * plain_penalty(x, b))

    @jax.jit
    def both(x, beta):
        g = gradient(f)(plain_dissolve(x, b))
        return stiefel.gradient(x, g, beta, B=B), gradient(h)(x)

    for (x,) in points(shape, 1, dtype):
        found, expected = both(x, beta)
        assert_close(found, expected, TOL)


@pytest.mark.parametrize("shape", [(5, 2), (3, 5, 2)])
def test_gradient_takes_a_known_beta_inside_of_jit(shape):
    x, g = next(points(shape, 2))
    beta = jnp.arange(1.0, 1 + int(np.prod(shape[:-2]))).reshape(shape[:-2])
    found = jax.jit(lambda x: stiefel.gradient(x, g, beta))(x)
    assert_close(found, stiefel.gradient(x, g, beta), TOL)
    with pytest.raises(ValueError, match="beta must be a number of zero or above"):
        jax.jit(lambda x, negative=-beta: stiefel.gradient(x, g, negative))(x)


@each_field
@each_case
def test_tangent_is_the_projection_onto_the_tangent_space(shape, metric, dtype):
    b = np.asarray(metric_of(metric, shape[-2], dtype)[1])
    found = array_functions(metric, shape[-2], dtype)
    for x, g, w in points(shape, 3, dtype):
        x = polar(x, b)
        t = np.asarray(found(x, g, w)["tangent of d"])
        assert_close(symmetric(transpose(x) @ b @ t), 0 * (transpose(x) @ x), TOL)
        assert_close(t, g - x @ symmetric(transpose(x) @ b @ g), TOL)
        assert_close(found(x, t, w)["tangent of d"], t, TOL)


@each_field
@each_shape
def test_dissolve_commutes_with_rotations_of_rows_and_columns(shape, dtype):
    n, p = shape[-2:]
    q, r = polar(normal((n, n), 1, dtype)), polar(normal((p, p), 2, dtype))
    for (x,) in points(shape, 1, dtype):
        assert_close(stiefel.dissolve(q @ x @ r), q @ stiefel.dissolve(x) @ r, TOL)


MATRICES = {
    "dissolve": lambda x, _, B: stiefel.dissolve(x, B=B),
    "penalty_grad": lambda x, _, B: stiefel.penalty_grad(x, B=B),
    "jvp": lambda x, d, B: stiefel.jvp(x, d, B=B),
    "vjp": lambda x, d, B: stiefel.vjp(x, d, B=B),
    "tangent": lambda x, d, B: stiefel.tangent(x, d, B=B),
    "gradient": lambda x, d, B: stiefel.gradient(x, d, 2.0, B=B),
}
MEASURES = {
    "residual": lambda x, _, B: stiefel.residual(x, B=B),
    "feasibility": lambda x, _, B: stiefel.feasibility(x, B=B),
    "penalty": lambda x, _, B: stiefel.penalty(x, B=B),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("metric", ["none", "array"])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype, metric):
    x, d = normal((2, 12, 4), 0, dtype) / 2
    B, _ = metric_of(metric, 12, dtype)
    exact = [None if a is None else a.astype("float64") for a in (x, d, B)]
    wide = jnp.promote_types(dtype, jnp.float32)
    for name, f in (MATRICES | MEASURES).items():
        with jax.numpy_dtype_promotion("strict"):
            y = f(x, d, B)
        assert y.dtype == (wide if name in MEASURES else dtype)
        # Half an ulp for the last rounding, and the error of the computation itself.
        ulp, error = float(jnp.finfo(y.dtype).eps), 100 * float(jnp.finfo(wide).eps)
        expected = np.asarray(f(*exact))
        np.testing.assert_allclose(np.float64(y), expected, rtol=ulp / 2, atol=error)
