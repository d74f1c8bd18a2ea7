"""Every public transformation: its formula on every reading of a leaf, its dtypes.

CASES is the one table of transformations, here and in the two files of contracts
beside this one, JAX's and Optax's: a new transformation is a new row.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx
from tests.oracles import (
    assert_close,
    plain_dissolve,
    polar,
    spd,
    step,
    symmetric,
    transpose,
)

# A step is a polynomial of degree five in matrices of norm about two; in float64 two
# ways to order its sums differ by some hundred roundings, of the largest entry.
TOL = 1e-12
BETA, RATE = 3.0, 0.1
WEIGHT: Any = 0.5
BETA_FALLS = optax.linear_schedule(3.0, 1.0, 10)
RATE_FALLS = optax.linear_schedule(0.1, 0.05, 10)


def adjoint(x, u, b):
    """The transpose of A's derivative, as the paper writes it."""
    bx, gram = b @ x, transpose(x) @ b @ x
    eye, t = np.eye(x.shape[-1]), symmetric(transpose(x) @ u)
    scaled = u @ (15 * eye - 10 * gram + 3 * gram @ gram) / 8
    return scaled - bx @ t + 1.5 * bx @ symmetric(t @ (gram - eye))


def penalty_gradient(x, b):
    return b @ x @ (transpose(x) @ b @ x - np.eye(x.shape[-1]))


def soft(y, threshold):
    return np.where(np.abs(y) > threshold, y - np.copysign(threshold, y), 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A transformation: how it is made, where it stands, and what it computes."""

    factory: Callable[..., optax.GradientTransformationExtraArgs]
    arguments: Mapping[str, Any]
    stands: str
    """First or last in a chain with an optimiser, or alone."""
    plain: Callable[..., Any] | None = None
    """From matrices x and u, the metric b and the step to the new u."""
    free_as_they_are: bool = True
    """Whether the updates of leaves that are not constrained pass through."""
    optimises: bool = False
    """Whether it holds an optimiser, with a state in the dtype of the gradients."""
    heavy: bool = False
    """Whether it takes seconds to compile, and eager updates compile every time."""

    def make(self, mask: Any) -> Any:
        return self.factory(**self.arguments, mask=mask)

    def links(self, mask: Any) -> list[Any]:
        """The chain in which it stands, link by link."""
        link, partner = self.make(mask), optax.adam(1e-2)
        orders = {"first": [link, partner], "last": [partner, link], "alone": [link]}
        return orders[self.stands]

    def optimiser(self, mask: Any) -> Any:
        return optax.chain(*self.links(mask))


CASES = {
    "dissolve_gradients": Case(
        cdx.dissolve_gradients,
        {"beta": BETA},
        "first",
        lambda x, u, b, _: adjoint(x, u, b) + BETA * penalty_gradient(x, b),
    ),
    "dissolve_gradients-scheduled": Case(
        cdx.dissolve_gradients,
        {"beta": BETA_FALLS},
        "first",
        lambda x, u, b, t: adjoint(x, u, b) + BETA_FALLS(t) * penalty_gradient(x, b),
    ),
    "dissolve_gradients-auto": Case(cdx.dissolve_gradients, {"beta": "auto"}, "first"),
    "add_penalty": Case(
        cdx.add_penalty,
        {"beta": BETA},
        "first",
        lambda x, u, b, _: u + BETA * penalty_gradient(x, b),
    ),
    "restore_feasibility": Case(
        cdx.restore_feasibility,
        {},
        "last",
        lambda x, u, b, _: u + plain_dissolve(x, b) - x,
    ),
    "proximal_step": Case(
        cdx.proximal_step,
        {"learning_rate": RATE, "regularizer": cdx.prox.l1(WEIGHT)},
        "alone",
        lambda x, u, b, _: soft(plain_dissolve(x, b) - RATE * u, RATE * WEIGHT) - x,
        free_as_they_are=False,
    ),
    "proximal_step-tangential-scheduled": Case(
        cdx.proximal_step,
        {
            "learning_rate": RATE_FALLS,
            "regularizer": cdx.prox.l1(WEIGHT),
            "tangential": True,
        },
        "alone",
        lambda x, u, b, t: (
            soft(
                plain_dissolve(x, b) - RATE_FALLS(t) * adjoint(x, u, b),
                RATE_FALLS(t) * WEIGHT,
            )
            - x
        ),
        free_as_they_are=False,
    ),
    "keep_feasible": Case(cdx.keep_feasible, {}, "last", heavy=True),
    "constrain": Case(
        cdx.constrain,
        {"optimizer": optax.adam(1e-2)},
        "alone",
        free_as_they_are=False,
        optimises=True,
        heavy=True,
    ),
}


def cases(
    only: Callable[[Case], Any] = lambda _: True,
    *,
    quick: bool = False,
) -> pytest.MarkDecorator:
    """The rows of the table as a parameter of a test.

    Heavy rows are slow tests, unless the test is quick: it compiles at most once.
    """

    slow = pytest.mark.slow
    rows = [
        pytest.param(case, id=name, marks=slow if case.heavy and not quick else ())
        for name, case in CASES.items()
        if only(case)
    ]
    return pytest.mark.parametrize("case", rows)


def matrices(tree: Any) -> Any:
    """A mask that fits any tree: whatever has two axes is constrained."""
    return jax.tree.map(lambda leaf: leaf.ndim == 2, tree)


def problem(seed: int, dtype: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters, of which the kernel is near the manifold, and gradients."""
    rng = np.random.default_rng(seed)
    kernel = polar(rng.standard_normal((6, 3))) + 0.05 * rng.standard_normal((6, 3))
    params = {"bias": rng.standard_normal(3), "kernel": kernel}
    grads = {"bias": rng.standard_normal(3), "kernel": rng.standard_normal((6, 3))}
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), (params, grads))


def assert_trees_close(actual: Any, desired: Any, tol: float = TOL) -> None:
    chex.assert_trees_all_equal_structs(actual, desired)
    jax.tree.map(lambda a, d: assert_close(a, d, tol), actual, desired)


B = jnp.asarray(spd(6))
READINGS = {
    "tall": ((6, 3), cdx.Stiefel(), lambda a: a),
    "square": ((6, 6), cdx.Stiefel(), lambda a: a),
    "one-by-one": ((1, 1), cdx.Stiefel(), lambda a: a),
    "wide": ((3, 6), cdx.Stiefel(), lambda a: a.T),
    "conv": ((1, 2, 3, 3), cdx.Stiefel(), lambda a: a.reshape(6, 3)),
    "batch": ((2, 6, 3), cdx.Stiefel(rows=1), lambda a: a),
    "query-heads": (
        (6, 2, 3),
        cdx.Stiefel(rows=0, columns=2),
        lambda a: a.transpose(1, 0, 2),
    ),
    "out-heads": ((3, 2, 6), cdx.Stiefel(rows=(0, 1)), lambda a: a.reshape(6, 6)),
    "unit-rows": ((4, 3), cdx.Stiefel(rows=1, columns=()), lambda a: a[..., None]),
    "metric-array": ((6, 3), cdx.Stiefel(B=B), lambda a: a),
    "metric-callable": ((6, 3), cdx.Stiefel(B=lambda x: B @ x), lambda a: a),
    "metric-wide": ((3, 6), cdx.Stiefel(B=B), lambda a: a.T),
}


@cases(lambda case: case.plain)
@pytest.mark.parametrize(
    ("shape", "spec", "as_matrices"), READINGS.values(), ids=READINGS.keys()
)
def test_each_matrix_of_a_leaf_follows_the_formula(case, shape, spec, as_matrices):
    tx = case.make({"bias": False, "kernel": spec})
    for seed in (0, 1, 2):
        x, u = np.random.default_rng(seed).standard_normal((2, *shape))
        n = as_matrices(x).shape[-2]
        params = {"bias": jnp.zeros(3), "kernel": jnp.asarray(x / np.sqrt(n))}
        grads = {"bias": jnp.ones(3), "kernel": jnp.asarray(u)}
        _, state = tx.update(grads, tx.init(params), params)
        updates, _ = tx.update(grads, state, params)
        b = np.eye(n) if spec.B is None else np.asarray(B)
        x, u = as_matrices(x / np.sqrt(n)), as_matrices(u)
        expected = case.plain(x, u, b, jnp.int32(1))
        assert_close(as_matrices(updates["kernel"]), expected, TOL)


@cases(lambda case: case.free_as_they_are)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_updates_of_free_leaves_come_out_bit_for_bit(case, wrap):
    odd = [np.nan, np.inf, -0.0, 1e-45, 1 / 3]
    free = {
        "odd": jnp.asarray(odd, jnp.float32),
        "half": jnp.asarray(odd, jnp.bfloat16),
        "whole": jnp.arange(3),
        "scalar": jnp.float64(0.1),
    }
    tx = case.make(matrices)
    params, grads = problem(0)
    updates, _ = wrap(tx.update)(grads | free, tx.init(params | free), params | free)
    for name, leaf in free.items():
        assert updates[name].dtype == leaf.dtype
        assert np.asarray(updates[name]).tobytes() == np.asarray(leaf).tobytes()


@cases(lambda case: not case.optimises)
def test_half_precision_is_the_single_precision_result_rounded_once(case):
    tx = case.make(matrices)
    for seed in (0, 1, 2):
        params, grads = problem(seed, jnp.bfloat16)
        single, single_grads = jax.tree.map(jnp.float32, (params, grads))
        exact, _ = tx.update(single_grads, tx.init(single), single)
        updates, _ = tx.update(grads, tx.init(params), params)
        chex.assert_trees_all_equal(updates, jax.tree.map(jnp.bfloat16, exact))
        stepped: Any = optax.apply_updates(params, updates)
        for name, after in stepped.items():
            x, u = np.float32(single[name]), np.float32(exact[name])
            # One unit in the last place of the largest number that is rounded.
            unit = 2.0**-7 * np.max(np.abs([x, u, x + u]), axis=0)
            assert (np.abs(np.float32(after) - (x + u)) <= unit).all()


@cases()
def test_single_precision_gradients_of_half_precision_parameters_lose_nothing(case):
    tx = case.make(matrices)
    params, _ = problem(0, jnp.bfloat16)
    _, grads = problem(0, jnp.float32)
    single = jax.tree.map(jnp.float32, params)
    exact, _ = tx.update(grads, tx.init(single), single)
    updates, _ = tx.update(grads, tx.init(params), params)
    chex.assert_trees_all_equal(updates, exact)


@pytest.mark.parametrize("tangential", [False, True], ids=["raw", "tangential"])
@pytest.mark.parametrize(
    ("of_params", "of_grads"),
    [("f4", "f4"), ("f8", "f8"), ("bf2", "bf2"), ("f4", "bf2"), ("bf2", "f4")],
)
def test_zeros_of_the_proximal_map_are_zeros_of_the_parameters(
    of_params, of_grads, tangential
):
    dtypes = {"bf2": jnp.bfloat16, "f4": jnp.float32, "f8": jnp.float64}
    tx = cdx.proximal_step(
        0.1, cdx.prox.l1(4 * WEIGHT), matrices, tangential=tangential
    )
    take = jax.jit(step(tx))
    for seed in (0, 1, 2):
        params, _ = problem(seed, dtypes[of_params])
        _, grads = problem(seed, dtypes[of_grads])
        stepped, _ = take(params, tx.init(params), grads)
        x, g = np.float64(params["kernel"]), np.float64(grads["kernel"])
        along = adjoint(x, g, np.eye(6)) if tangential else g
        landed = np.abs(plain_dissolve(x) - 0.1 * along) - 0.2
        # Within rounding of the threshold an entry may fall on either side.
        zero = np.asarray(stepped["kernel"] == 0)
        assert (landed < -1e-5).sum() >= 3
        assert zero[landed < -1e-5].all()
        assert not zero[landed > 1e-2].any()


def test_free_leaves_without_a_weight_take_the_gradient_step():
    weights: Any = {"bias": 0, "kernel": 0.5}
    tx: Any = cdx.proximal_step(0.1, cdx.prox.l1(weights), matrices)
    for seed in (0, 1, 2):
        params, grads = problem(seed)
        updates, _ = tx.update(grads, tx.init(params), params)
        # x − ηu is rounded once, at the size of x, on the way.
        assert_close(updates["bias"], -0.1 * grads["bias"], 1e-15)
