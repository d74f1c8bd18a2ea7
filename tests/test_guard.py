"""The guarded step: each claim of its proof, on the package."""

import functools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special

import cdopt_jax as cdx
from cdopt_jax._math.nearest_point import COEFFICIENTS
from tests.oracles import (
    gram_residual,
    metric_of,
    near,
    normal,
    polar,
    proposed,
    spectral,
    symmetric,
)

# What a short step may leave, and the Taylor polynomial of (1 + w)^(−1/2).
CLOSE = 2e-6
SERIES = scipy.special.binom(-0.5, np.arange(9))


@functools.cache
def stepper(kind: str = "none", n: int = 1, dtype: str = "float64") -> Any:
    """A step of `keep_feasible` as a function of x, u and the radius, compiled."""
    B, _ = metric_of(kind, n, dtype)

    @jax.jit
    def step(x, u, radius):
        tx = cdx.keep_feasible(cdx.Stiefel(rows=-2, columns=-1, B=B), radius=radius)
        updates, state = tx.update(u, tx.init(x), x)
        return optax.apply_updates(x, updates), state

    return step


def taken(x, u, *, kind="none", radius=0.5, dtype="float64") -> tuple[Any, Any]:
    return stepper(kind, x.shape[-2], dtype)(x, u, radius)


def metric(kind, n):
    return None if kind == "none" else metric_of(kind, n)[1]


def deviation(z, b):
    """m and F of the docstring."""
    gram = gram_residual(z, 1.0 if b is None else np.asarray(b)) + np.eye(z.shape[-1])
    mean = np.trace(gram) / z.shape[-1]
    return mean, gram / mean - np.eye(z.shape[-1])


def of_size(x, size, seed, b=None):
    """An update without a mean normal part, with ‖F‖_F about ``size``."""
    bx = x if b is None else b @ x
    u = np.asarray(normal(x.shape, seed))
    u = u - x * (np.sum(bx * u) / np.sum(bx * x))
    return u * (size / np.linalg.norm(2 * symmetric(bx.T @ u)))


# Sizes of ‖F‖_F, and the degree of q there; the low ones are for large matrices.
TIERS = {1: (7e-4, 1.2e-3), 2: (3e-3, 1e-2), 4: (0.03, 0.06)}
LARGE, SMALL, TALL = (160, 128), (12, 4), (70, 3)


@pytest.mark.parametrize(
    ("shape", "degrees", "kind"),
    [
        (LARGE, (1, 2, 4), "none"),
        (LARGE, (1,), "array"),
        (SMALL, (4,), "none"),
        (SMALL, (4,), "array"),
        (TALL, (4,), "none"),
    ],
    ids=str,
)
def test_what_a_step_leaves_is_a_power_of_its_size(shape, degrees, kind):
    """Item 1: z·q(F)/√m, of which e starts with w^(d+1) and adds up to one."""
    b = metric(kind, shape[0])
    x = polar(normal(shape, 0), b)
    for degree in degrees:
        check_degree(x, degree, kind, b)


def check_degree(x, degree, kind, b):
    left, sizes = [], []
    for size in TIERS[degree]:
        u = of_size(x, size, 1, b)
        y, state = taken(x, u, kind=kind)
        z = proposed(x, u, b)
        mean, f = deviation(z, b)
        w = sum(SERIES[k] * np.linalg.matrix_power(f, k) for k in range(degree + 1))
        np.testing.assert_allclose(y, z @ w / mean**0.5, atol=1e-13)
        left.append(spectral(y, b))
        sizes.append(np.linalg.norm(f, 2))
        assert left[-1] <= sizes[-1] ** (degree + 1)
        assert left[-1] <= CLOSE
        assert state.num_long[0] == 0
        assert state.step_fraction[0] == 1
    slope = np.log(left[1] / left[0]) / np.log(sizes[1] / sizes[0])
    assert abs(slope - degree - 1) < 0.2


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_what_a_polynomial_leaves_has_coefficients_that_add_up_to_one(degree):
    """The sums of `nearest_point`, in exact arithmetic."""
    q = [Fraction(c) for c in COEFFICIENTS[: degree + 1]]
    square = [Fraction(0)] * (2 * degree + 2)
    for i, a in enumerate(q):
        for j, b in enumerate(q):
            square[i + j] += a * b
            square[i + j + 1] += a * b
    e = [square[0] - 1, *square[1:]]
    assert not any(e[: degree + 1])
    assert sum(map(abs, e)) == 1


# The rounding of p×p products of order one, and of storing the point.
ROUNDING = {"float32": 2e-6, "float64": 1e-13}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", ["none", "array", "callable"])
def test_a_short_step_ends_next_to_the_nearest_point(kind, dtype):
    """Item 1: within 2e-6 of the polar factor of z, whatever the normal part of u."""
    b = metric(kind, 12)
    for seed, mean in enumerate((-0.5, -0.01, 0.01, 0.1, 0.3)):
        x = polar(normal((12, 4), seed), b)
        u = of_size(x, 0.05, seed + 10, b) + mean * x
        y, state = taken(*cast(dtype, x, u), kind=kind, dtype=dtype)
        assert state.num_long[0] == 0
        gap = np.linalg.norm(y - polar(proposed(x, u, b), b), 2)
        assert gap <= CLOSE + ROUNDING[dtype]


def cast(dtype, *arrays):
    return (jnp.asarray(a, dtype) for a in arrays)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("kind", ["none", "array", "callable"])
def test_a_long_step_ends_at_the_nearest_point_and_counts_as_whole(kind, dtype):
    """Items 2 and 3, for steps of every length, from on and off the manifold."""
    b = metric(kind, 12)
    for seed, size in enumerate((0.1, 0.7, 1.0, 7.0, 50.0, 1e4)):
        x = near(12, 4, seed, 0.2 * (seed % 3), "spread", b)
        u = size * normal(x.shape, seed + 10)
        y, state = taken(*cast(dtype, x, u), kind=kind, dtype=dtype)
        z = proposed(x, u, b)
        # A Gram matrix has the square of the condition number.
        grain = ROUNDING[dtype] * np.linalg.cond(z) ** 2
        assert np.linalg.norm(y - polar(z, b), 2) <= CLOSE + grain
        assert state.num_long[0] == 1
        assert state.num_shortened[0] == 0
        assert state.step_fraction[0] == 1


def beside(lengths):
    """A point x, and an update u without a mean normal part to columns of x + u that
    are orthogonal, not along those of x, and have such lengths."""
    p = len(lengths)
    both = polar(normal((12, 2 * p), 0))
    x, other = both[:, :p], both[:, p:]
    return x, (x + 0.5 * other) * np.array(lengths) - x


@pytest.mark.parametrize("least", [0.3, 1e-2, 1e-3])
def test_a_nearly_singular_point_is_brought_to_its_polar_factor(least):
    """Item 3: convergence for every z that is not singular."""
    x, u = beside([2 - least, 1.4, 0.6, least])
    y, state = taken(x, u)
    np.testing.assert_allclose(y, polar(x + u), atol=CLOSE)
    assert state.num_shortened[0] == 0


def low_rank(size):
    x, _ = beside([1, 1, 1, 1])
    a, b = normal((12, 1), 5), normal((1, 4), 6)
    # Outward on average, since what is inward is left out.
    return x, size * a @ b * jnp.sign(jnp.sum(x * (a @ b)))


SINGULAR = {
    "a zero column": beside([0, 2, 1, 1]),
    "two zero columns": beside([0, 2, 2, 0]),
    "nearly a zero column": beside([1e-9, 2 - 1e-9, 1, 1]),
    "low rank and huge": low_rank(1e6),
    "low rank, beyond rounding": low_rank(1e14),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", SINGULAR)
def test_where_the_proposed_point_is_singular_the_step_is_shortened(name, dtype):
    """Item 4: the nearest point of x + tu instead, with t‖u‖ ≤ √(1 − r)/2."""
    x, u = SINGULAR[name]
    y, state = taken(*cast(dtype, x, u), dtype=dtype)
    t, v = float(state.step_fraction[0]), proposed(x, u) - x
    assert 0 < t < 1
    assert t * np.linalg.norm(v) <= np.sqrt(1 - 0.5) / 2 * (1 + 1e-5)
    np.testing.assert_allclose(y, polar(x + t * v), atol=CLOSE + ROUNDING[dtype])
    assert state.num_shortened[0] == 1
    assert np.linalg.norm(y - x) > 0.01


BAD = {
    "nan": lambda x: x.at[2, 1].set(np.nan),
    "inf": lambda x: x.at[2, 1].set(np.inf),
    "all minus inf": lambda x: jnp.full_like(x, -np.inf),
    "both infinities": lambda x: x.at[2, 1].set(np.inf).at[3, 1].set(-np.inf),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", BAD)
def test_an_update_that_is_not_finite_is_not_made(name, dtype):
    """Item 4 with t = 0."""
    x = near(12, 4, 0, 0.2, "spread").astype(dtype)
    y, state = taken(x, BAD[name](jnp.zeros_like(x)), dtype=dtype)
    np.testing.assert_allclose(y, polar(x), atol=CLOSE + ROUNDING[dtype])
    assert state.step_fraction[0] == 0
    assert state.num_shortened[0] == 1


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e30), ("float64", 1e200)])
def test_an_update_whose_square_overflows_leaves_a_point_of_the_manifold(dtype, size):
    x = near(12, 4, 0, 0.2, "spread").astype(dtype)
    y, state = taken(x, (size * normal(x.shape, 1)).astype(dtype), dtype=dtype)
    assert spectral(y) <= CLOSE + ROUNDING[dtype]
    assert 0 <= state.step_fraction[0] <= 1


def test_where_a_shortened_step_would_be_rounded_out_of_the_radius_the_point_stays():
    """Item 5: bfloat16 has hardly a point but the start inside this radius."""
    x, other = jnp.eye(12, 4), jnp.eye(12, 4, -4)
    u = (x + 0.5 * other) * jnp.array([0.0, 2, 1, 1]) - x
    x, u = cast("bfloat16", x, u)
    y, state = taken(x, u, radius=1e-4, dtype="float32")
    np.testing.assert_array_equal(y, x)
    assert state.step_fraction[0] == 0
    assert state.bound[0] <= 1e-4


def test_where_a_short_step_is_rounded_out_of_the_radius_the_bound_says_so():
    x = jnp.eye(12, 4, dtype=jnp.bfloat16)
    u = (1e-2 * normal(x.shape, 1)).astype(x.dtype)
    y, state = taken(x, u, radius=1e-4, dtype="float32")
    assert 1e-4 < spectral(y) <= state.bound[0]


def test_where_a_long_step_is_rounded_out_of_the_radius_the_point_stays():
    x = jnp.eye(12, 4, dtype=jnp.bfloat16)
    u = normal(x.shape, 1).astype(x.dtype)
    y, state = taken(x, u, radius=1e-4, dtype="float32")
    np.testing.assert_array_equal(y, x)
    assert state.step_fraction[0] == 0


@pytest.mark.parametrize("scale", [-1.0, -2.0, -0.999, 1.0, 1e6])
def test_a_multiple_of_the_point_is_no_step(scale):
    """The mean normal part: what points inward is left out, what points outward ends
    at the same nearest point."""
    x = near(12, 4, 0, 0.3, "spread")
    y, state = taken(x, scale * x)
    np.testing.assert_allclose(y, polar(x), atol=CLOSE)
    assert state.num_shortened[0] == 0


def test_only_the_matrix_that_is_outside_is_moved():
    x = jnp.asarray(polar(normal((3, 12, 2), 0)))
    y, state = taken(x.at[1].mul(5.0), jnp.zeros_like(x))
    np.testing.assert_allclose(y, x, atol=CLOSE)
    assert state.step_fraction[0] == 1
    assert state.num_long[0] == 1


def test_a_matrix_whose_update_is_not_finite_does_not_hold_up_its_stack():
    x = jnp.asarray(polar(normal((3, 12, 2), 0)))
    u = 1e-3 * normal(x.shape, 1)
    y, state = taken(x, u.at[1, 0, 0].set(np.nan))
    np.testing.assert_allclose(y[1], x[1], atol=CLOSE)
    np.testing.assert_allclose(y[::2], polar(proposed(x, u))[::2], atol=CLOSE)
    assert state.step_fraction[0] == 0


def test_matrices_of_a_stack_have_steps_of_their_own():
    point, singular = beside([0, 2])
    x = jnp.asarray([*polar(normal((2, 12, 2), 0)), point])
    u = normal(x.shape, 1) * jnp.array([1e-3, 1e3, 0])[:, None, None]
    y, state = taken(x, u.at[2].set(singular))
    np.testing.assert_allclose(y[:2], polar(proposed(x, u))[:2], atol=CLOSE)
    assert np.linalg.norm(y[2] - x[2]) > 0.01
    assert spectral(y) <= CLOSE
    assert 0 < state.step_fraction[0] < 1


def test_updates_of_higher_precision_than_the_leaf_are_accepted():
    x = jnp.asarray(polar(normal((12, 4), 0)), jnp.float32)
    y, _ = taken(x, 1e-2 * normal(x.shape, 1), dtype="float32")
    assert y.dtype == jnp.float32
    assert spectral(y) < 1e-5
