"""The methods compared with, each against NumPy, SciPy or the package itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

from benchmarks.shared.methods import torch_packages
from benchmarks.shared.methods.landing import landing
from benchmarks.shared.methods.penalties import (
    cubic,
    expen,
    expen_autodiff,
    soft_penalty,
)
from benchmarks.shared.methods.pogo import pogo
from benchmarks.shared.methods.retraction import (
    cayley,
    descent,
    polar_gram,
    polar_svd,
    qr,
    retracted,
)
from benchmarks.shared.timing import compiled, floor, interleaved
from tests.oracles import (
    assert_close,
    each_seed,
    gram_residual,
    near,
    normal,
    plain_penalty,
    polar,
    symmetric,
    traced,
    traced_products,
    transpose,
)

SHAPES = ((7, 1), (5, 5), (3, 8, 3))
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
RIEMANNIAN = {
    "polar, SVD": descent(polar_svd),
    "polar, Gram": descent(polar_gram),
    "QR": descent(qr),
    "Cayley": cayley,
    "landing": landing,
    "POGO": pogo,
}
each_riemannian = pytest.mark.parametrize(
    "step", RIEMANNIAN.values(), ids=list(RIEMANNIAN)
)


def problem(shape, seed=0):
    """A point of the manifold, and a gradient."""
    x, g = normal((2, *shape), seed)
    return jnp.asarray(polar(x)), g


def one_by_one(f, *arrays):
    """What a function of matrices makes of each matrix of the stacks, in float64."""
    shape = arrays[0].shape
    stacks = [np.asarray(a, np.float64).reshape(-1, *shape[-2:]) for a in arrays]
    return np.stack([f(*each) for each in zip(*stacks, strict=True)]).reshape(shape)


def tangent(x, g):
    return g - x @ symmetric(x.T @ g)


def skew_product(x, g):
    """skew(GXᵀ)X, through the n×n matrix."""
    s = g @ x.T
    return (s - s.T) / 2 @ x


@each_shape
@pytest.mark.parametrize("retract", [polar_svd, polar_gram], ids=["svd", "gram"])
def test_polar_steps_end_at_the_polar_factor(shape, retract):
    x, g = problem(shape)
    expected = one_by_one(
        lambda x, g: scipy.linalg.polar(x - 0.3 * tangent(x, g))[0], x, g
    )
    assert_close(descent(retract)(x, g, 0.3), expected, 1e-12)


@each_shape
def test_the_qr_step_has_a_positive_triangular_factor(shape):
    x, g = problem(shape)

    def expected(x, g):
        # The factor with a positive diagonal is that of Cholesky.
        y = x - 0.3 * tangent(x, g)
        return scipy.linalg.solve_triangular(
            np.linalg.cholesky(y.T @ y), y.T, lower=True
        ).T

    assert_close(descent(qr)(x, g, 0.3), one_by_one(expected, x, g), 1e-12)


@each_shape
def test_the_cayley_step_is_that_of_the_full_matrix(shape):
    x, g = problem(shape)

    def expected(x, g):
        a, eye = 0.15 * (g @ x.T - x @ g.T), np.eye(len(x))
        return np.linalg.inv(eye + a) @ (eye - a) @ x

    reached = cayley(x, g, 0.3)
    assert_close(reached, one_by_one(expected, x, g), 1e-12)
    assert_close(gram_residual(reached), np.zeros_like(gram_residual(x)), 1e-12)


@pytest.mark.parametrize(("n", "p", "side"), [(40, 4, 8), (10, 6, 10)], ids=str)
def test_the_cayley_step_solves_the_smaller_system(n, p, side):
    x, g = problem((n, p))
    factored = [
        equation.invars[0].aval.shape
        for equation in traced(lambda x, g: cayley(x, g, 0.1), x, g)
        if equation.primitive.name == "lu"
    ]
    assert factored == [(side, side)]


@each_shape
def test_the_landing_field_needs_no_square_matrix_of_rows(shape):
    x, g = normal((2, *shape), 0)
    x = 0.9 * jnp.asarray(polar(x))

    def expected(x, g):
        return x - 1e-3 * (2 * skew_product(x, g) + 2.0 * x @ gram_residual(x))

    reached = landing(x, g, 1e-3, attraction=2.0, radius=1.0)
    assert_close(reached, one_by_one(expected, x, g), 1e-12)


@each_seed
@pytest.mark.parametrize("attraction", [0.1, 1.0, 10.0])
def test_the_landing_never_leaves_its_radius(seed, attraction):
    rng = np.random.default_rng(seed)
    step = jax.jit(landing, static_argnames=("attraction", "radius"))
    x = near(12, 4, seed, 0.5, "spread")
    for _ in range(60):
        g = jnp.asarray(rng.standard_normal(x.shape)) * 10.0 ** rng.uniform(-3, 4)
        x = step(x, g, 10.0 ** rng.uniform(-3, 4), attraction=attraction, radius=0.5)
        assert np.linalg.norm(gram_residual(x)) <= 0.5 + 1e-12


def test_the_landing_takes_the_learning_rate_where_it_is_safe():
    x, g = problem((12, 4))
    moved = landing(x, g, 1e-3) - x
    assert_close(moved, -1e-3 * 2 * skew_product(x, g), 1e-12)


@each_shape
def test_pogo_is_a_relative_gradient_step_and_a_newton_schulz_step(shape):
    x, g = normal((2, *shape), 1)
    x = 0.9 * jnp.asarray(polar(x))

    def expected(x, g):
        y = x - 0.3 * skew_product(x, g)
        return y @ (3 * np.eye(y.shape[1]) - y.T @ y) / 2

    assert_close(pogo(x, g, 0.3), one_by_one(expected, x, g), 1e-12)


def test_pogo_leaves_the_manifold_at_fourth_order():
    x, g = problem((12, 4))
    rates = np.array([0.01, 0.02, 0.04])
    sizes = [np.linalg.norm(gram_residual(pogo(x, g, rate))) for rate in rates]
    slope = np.polyfit(np.log(rates), np.log(sizes), 1)[0]
    assert abs(slope - 4) < 0.1


@each_shape
@each_riemannian
def test_a_stationary_point_is_a_fixed_point(shape, step):
    x, s = problem(shape)
    s = symmetric(transpose(s) @ s)  # there the gradient is XΛ with a symmetric Λ
    assert_close(step(x, x @ s, 0.3), x, 1e-12)


@each_riemannian
def test_steps_descend_along_the_tangent_projection(step):
    x, g = problem((12, 4))
    moved = (step(x, g, 1e-7) - x) / 1e-7
    assert_close(symmetric(x.T @ moved), np.zeros((4, 4)), 1e-5)
    assert float((moved * g).sum()) < 0


@each_shape
def test_the_soft_penalty_is_descended_by_its_gradient(shape):
    x, g = normal((2, *shape), 2)

    def value(x):
        return (x * g).sum() + 3 * plain_penalty(x).sum()

    expected = x - 0.1 * jax.grad(value)(x)
    assert_close(soft_penalty(x, g, 0.1, weight=3.0), expected, 1e-12)


@each_shape
@pytest.mark.parametrize("step", [expen, expen_autodiff], ids=["closed", "autodiff"])
def test_expen_is_descended_by_its_gradient(shape, step):
    x, g = normal((2, *shape), 2)

    def value(x):
        image = (3 * x - x @ (transpose(x) @ x)) / 2
        return (image * g).sum() + 3 * plain_penalty(x).sum()

    expected = x - 0.1 * jax.grad(value)(x)
    assert_close(step(x, g, 0.1, beta=3.0), expected, 1e-12)
    assert_close(cubic(x), (3 * x - x @ (transpose(x) @ x)) / 2, 1e-12)


@pytest.mark.parametrize(
    ("step", "tall", "small"),
    [
        (descent(polar_gram), 4, 1),
        (landing, 4, 0),
        (pogo, 6, 0),
        (expen, 4, 0),
        (soft_penalty, 2, 0),
        (cayley, 5, 0),
        (lambda x, g, _: floor(x, g), 4, 2),
    ],
    ids=["polar, Gram", "landing", "POGO", "ExPen", "penalty", "Cayley", "floor"],
)
def test_no_rival_wastes_a_product(step, tall, small):
    n, p = 20, 3
    x, g = problem((n, p))
    work = traced_products(lambda x, g: step(x, g, 0.1), x, g)
    # What solves a system is traced with products of 2p×2p×p that are never made.
    made = [product for product in work if product != (2 * p) ** 2 * p]
    assert made == [p**3] * small + [n * p * p] * tall


@each_riemannian
def test_single_precision_stays_single_and_stacks_are_done_one_by_one(step):
    x, g = problem((3, 8, 3))
    x, g = x.astype(jnp.float32), g.astype(jnp.float32)
    reached = jax.jit(step)(x, g, 0.1)
    assert reached.dtype == jnp.float32
    alone = jnp.stack([step(*each, 0.1) for each in zip(x, g, strict=True)])
    assert_close(reached, alone, 1e-5)


def test_an_optimiser_is_retracted_to_where_the_single_step_leads():
    x, g = problem((12, 4))
    tx = retracted(optax.sgd(0.3), None)
    updates, _ = tx.update(g, tx.init(x), x)
    assert_close(optax.apply_updates(x, updates), descent(qr)(x, g, 0.3), 1e-12)


def test_timing_takes_turns_and_gives_up_on_what_is_slow():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in "ab"}
    assert set(interleaved(functions, 5)) == {"a", "b"}
    assert calls.count("a") == calls.count("b") == 6
    calls.clear()
    interleaved(functions, 5, budget=-1.0, least=2)
    assert len(calls) == 2 * (1 + 2)


def test_a_compiled_program_computes_the_function():
    x, g = problem((6, 2))
    program = compiled(floor, x, g)
    m = x.T @ x
    assert program.seconds > 0
    assert program.temporary_bytes > 0
    assert_close(program.call(x, g), x @ (x.T @ g) @ m + g @ m @ m, 1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "step"), [("pogo", pogo), ("geoopt", descent(qr))], ids=["pogo", "geoopt"]
)
@pytest.mark.parametrize("shape", [(12, 4), (5, 5), (3, 8, 3)], ids=str)
def test_the_package_for_pytorch_takes_the_same_step(name, step, shape):
    torch = pytest.importorskip("torch")
    pytest.importorskip(name)
    x, g = (np.array(a, np.float32) for a in problem(shape))
    rival = getattr(torch_packages, name)(x, 0.3)
    rival.step(torch.tensor(g))
    assert_close(rival.point().numpy(), step(jnp.asarray(x), jnp.asarray(g), 0.3), 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_geotorch_stays_on_the_manifold_from_the_given_point():
    torch = pytest.importorskip("torch")
    pytest.importorskip("geotorch")
    x, g = (np.array(a, np.float32) for a in problem((12, 4)))
    rival = torch_packages.geotorch(x, 0.1)
    assert_close(rival.point().numpy(), x, 1e-5)
    rival.step(torch.tensor(g))
    moved = rival.point().numpy()
    assert np.sum((moved - x) * g) < 0
    assert_close(gram_residual(moved), np.zeros((4, 4)), 1e-5)
