"""The projection against the SVD, and the uniform distribution against statistics."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from cdopt_jax import stiefel
from tests.oracles import (
    SEEDS,
    SHAPES,
    assert_close,
    double,
    each_field,
    each_shape,
    gram_residual,
    inner,
    metric_of,
    normal,
    polar,
    pulled_back,
    transpose,
)

project = jax.jit(stiefel.project)
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
EPS |= {"complex64": EPS["float32"], "complex128": EPS["float64"]}
FEASIBLE = {"float32": 1e-5, "float64": 1e-12}  # what is promised, for each √p
FEASIBLE |= {"complex64": 1e-5, "complex128": 1e-12}
each_dtype = pytest.mark.parametrize("dtype", EPS)


def _conditioned(shape, seed, condition, dtype):
    """Matrices of norm one with a given condition number."""
    *batch, n, p = shape
    wide = np.result_type(dtype, np.float64)
    u = polar(normal((*batch, n, p), seed, wide))
    v = polar(normal((*batch, p, p), seed + 9, wide))
    return jnp.asarray((u * np.geomspace(1, 1 / condition, p)) @ v, dtype)


def _assert_projected(y, x, b=None, *, condition=1.0):
    """On the manifold, and nearest: a polar factor moves by ε·cond(x), relatively."""
    p, dtype = y.shape[-1], str(y.dtype)
    e = gram_residual(double(y), 1.0 if b is None else np.asarray(b))
    assert np.linalg.norm(e, axis=(-2, -1)).max() <= FEASIBLE[dtype] * p**0.5
    assert_close(y, polar(x, b), 20 * EPS[dtype] * max(condition, 10))


@each_dtype
@pytest.mark.parametrize("condition", [1, 10, 1e3], ids=str)
def test_project_is_the_polar_factor(condition, dtype):
    for seed, shape in itertools.product(SEEDS, SHAPES):
        x = _conditioned(shape, seed, condition, dtype)
        _assert_projected(project(x), x, condition=condition)


@each_dtype
@pytest.mark.parametrize("shape", [(500, 50), (128, 128)], ids=str)
def test_project_of_a_large_matrix_is_its_polar_factor(shape, dtype):
    for condition in (1, 10, 1e3):
        x = _conditioned(shape, 0, condition, dtype)
        _assert_projected(project(x), x, condition=condition)


@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [("float32", e) for e in (-30, -20, -5, 5, 20, 30)]
    + [("float64", e) for e in (-100, -30, 30, 100)]
    + [("complex64", e) for e in (-30, 30)]
    + [("complex128", e) for e in (-100, 100)],
)
def test_project_does_not_depend_on_the_scale(dtype, exponent):
    for shape in ((1, 1), (12, 4), (3, 8, 3)):
        x = _conditioned(shape, 0, 10, dtype) * np.dtype(dtype).type(10.0**exponent)
        _assert_projected(project(x), double(x) / 10.0**exponent)


@pytest.mark.parametrize(
    ("shape", "metric", "dtype"),
    [(shape, "array", "float64") for shape in SHAPES]
    + [(shape, "array", "complex128") for shape in SHAPES[1:5]]
    + [((12, 4), "array", "float32"), ((3, 8, 3), "callable", "float32")],
    ids=str,
)
def test_project_multiplies_with_the_inverse_root_of_the_gram_matrix(
    shape, metric, dtype
):
    B, b = metric_of(metric, shape[-2], dtype)
    x, project = _conditioned(shape, 1, 10, dtype), _with_metric(B)
    y = project(x)
    _assert_projected(y, x, b, condition=30)  # cond(√B x) ≤ √6·10
    m = gram_residual(double(x), double(b)) + np.eye(shape[-1])
    values, v = np.linalg.eigh(m)
    root = (v / np.sqrt(values)[..., None, :]) @ transpose(v)
    assert_close(y, double(x) @ root, 600 * EPS[dtype])
    assert_close(project(y), y, 10 * EPS[dtype])


def _with_metric(B):
    return jax.jit(lambda x: stiefel.project(x, B=B))


@each_dtype
@each_shape
def test_points_of_the_manifold_stay_where_they_are(shape, dtype):
    x = jnp.asarray(polar(normal(shape, 0, dtype)), dtype)
    assert_close(project(x), x, 10 * EPS[dtype])


@pytest.mark.parametrize("shape", [(1, 1), (3, 8, 3)], ids=str)
def test_project_under_jit_and_vmap_is_project(shape):
    x = normal((2, *shape), 0)
    y = stiefel.project(x)
    assert_close(project(x), y, 1e-14)
    assert_close(jax.vmap(stiefel.project)(x), y, 1e-14)


@each_field
@pytest.mark.parametrize("metric", ["none", "array"])
def test_project_has_the_derivative_of_the_polar_factor(metric, dtype):
    B, b = metric_of(metric, 6, dtype)
    x, d = normal((2, 6, 3), 0, dtype)
    slope = jax.jvp(_with_metric(B), (x,), (d,))[1]
    step = 1e-5  # central differences: 1e-10 of truncation, 1e-11 of rounding
    expected = (polar(x + step * d, b) - polar(x - step * d, b)) / (2 * step)
    assert_close(slope, expected, 1e-8)
    back = pulled_back(_with_metric(B), x, d)
    assert_close(inner(back, d), inner(slope, d), 1e-12)


def test_project_of_half_precision_is_the_rounded_polar_factor():
    for dtype in (jnp.float16, jnp.bfloat16):
        y = stiefel.project(normal((12, 4), 0, dtype))
        assert y.dtype == dtype
        expected = polar(normal((12, 4), 0, dtype).astype(jnp.float64))
        rounding = float(jnp.finfo(dtype).eps) / 2
        np.testing.assert_allclose(np.float64(y), expected, rtol=rounding, atol=1e-5)


DEFICIENT = {
    "zero": jnp.zeros((4, 2)),
    "scalar": jnp.zeros((1, 1)),
    "zero column": jnp.eye(4, 2).at[1, 1].set(0.0),
    "repeated column": jnp.stack([jnp.arange(1.0, 5.0)] * 2, axis=1),
    "one of a stack": jnp.stack([jnp.eye(4, 2), jnp.ones((4, 2))]),
    "rank one in single precision": jnp.ones((5, 3), jnp.float32) * 1e-20,
}


@pytest.mark.parametrize("name", DEFICIENT)
def test_rank_deficient_matrices_have_no_projection(name):
    with pytest.raises(ValueError, match="rank"):
        stiefel.project(DEFICIENT[name])


@pytest.mark.parametrize(
    ("shape", "metric", "dtype"),
    [(shape, "none", "float64") for shape in SHAPES]
    + [(shape, "none", "complex128") for shape in SHAPES]
    + [((12, 4), "array", "complex64"), ((3, 8, 3), "callable", "complex128")]
    + [((1, 1), "array", "float32"), ((3, 8, 3), "array", "float32")]
    + [((12, 4), "callable", "bfloat16"), ((12, 4), "none", "float16")],
    ids=str,
)
def test_random_points_are_on_the_manifold(shape, metric, dtype):
    B, b = metric_of(metric, shape[-2], "float32" if "16" in dtype else dtype)
    draw = jax.jit(lambda key: stiefel.random(key, shape, dtype, B=B))
    x = draw(jax.random.key(0))
    assert x.shape == shape
    assert x.dtype == dtype
    e = gram_residual(double(x), double(b))
    # Rounding to half precision moves an entry of M = XᵀBX by a few ε.
    tol = FEASIBLE.get(dtype, 4 * float(jnp.finfo(dtype).eps)) * shape[-1] ** 0.5
    assert np.linalg.norm(e, axis=(-2, -1)).max() <= tol


def test_random_is_determined_by_its_key():
    first, again = (stiefel.random(jax.random.key(0), (6, 3)) for _ in range(2))
    assert (first == again).all()
    assert (first != stiefel.random(jax.random.key(1), (6, 3))).any()
    assert first.dtype == jnp.float64


def _samples(n, p, dtype=None):
    draw = jax.jit(lambda key: stiefel.random(key, (4000, n, p), dtype))
    return [np.asarray(draw(jax.random.key(seed))) for seed in SEEDS]


@each_field
@pytest.mark.parametrize(("n", "p"), [(1, 1), (5, 1), (2, 2), (5, 2), (4, 4)])
def test_random_points_have_the_moments_of_the_uniform_distribution(n, p, dtype):
    for x in _samples(n, p, dtype):
        # Entries lie in [−1, 1], so five standard errors are at most 5/√count.
        slack = 5 / len(x) ** 0.5
        assert np.abs(x.mean(axis=0)).max() <= slack
        second = (x @ transpose(x)).mean(axis=0)
        assert np.abs(second - p / n * np.eye(n)).max() <= slack
        # No phase is preferred, nor does one of a row follow that of another.
        if np.iscomplexobj(x):
            turned = (x @ x.swapaxes(-1, -2)).mean(axis=0)
            assert np.abs(turned).max() <= slack
        elif n == p:  # both components of O(n), equally often
            assert abs((np.linalg.det(x) > 0).mean() - 0.5) <= slack / 2


def test_eigenvalues_of_random_unitary_matrices_repel_each_other_uniformly():
    """Mezzadri, "How to generate random matrices from the classical compact groups":
    E|tr U|² = 1, and the phases of eigenvalues are uniform."""
    for u in _samples(4, 4, "complex128"):
        traces = np.abs(np.trace(u, axis1=-2, axis2=-1)) ** 2
        assert abs(traces.mean() - 1) <= 5 / len(u) ** 0.5
        # Of one eigenvalue each, since those of a matrix are not independent.
        chosen = np.random.default_rng(0).integers(0, 4, len(u))
        phases = np.angle(np.linalg.eigvals(u)[np.arange(len(u)), chosen])
        uniform = scipy.stats.kstest(phases, "uniform", args=(-np.pi, 2 * np.pi))
        assert uniform.pvalue > 1e-3


def test_random_points_of_the_sphere_have_uniform_coordinates():
    for x in _samples(3, 1):
        for row in range(3):  # Archimedes' hat-box theorem
            entries = x[:, row, 0]
            assert scipy.stats.kstest(entries, "uniform", args=(-1, 2)).pvalue > 1e-3
