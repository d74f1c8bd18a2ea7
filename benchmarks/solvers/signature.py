"""What a solver is, and what it can ask of an problem."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import cdopt_jax as cdx
from benchmarks.shared.problems import Problem


class Solver(NamedTuple):
    """An iterative method for instances of the suite.

    Attributes:
        init: From an problem to the state at its start, a pytree of arrays.
        step: One iteration, jittable, from state to state.
        point: From a state to the iterate to be judged.
        applies: Whether an problem is one that the method is made for.
    """

    init: Callable[[Problem], Any]
    step: Callable[[Problem, Any], Any]
    point: Callable[[Any], jax.Array]
    applies: Callable[[Problem], bool]


def metric(problem: Problem) -> Any:
    """The B of the constraint XᵀBX = I, or None."""
    return problem.mask.B if isinstance(problem.mask, cdx.Stiefel) else None


def is_matrix(problem: Problem) -> bool:
    """Whether the unknown is one tall matrix, read as it stands."""
    mask, shape = problem.mask, np.shape(problem.start)
    if isinstance(mask, cdx.Stiefel):
        rows = mask.rows in (None, 0, -2, (0,), (-2,))
        columns = mask.columns in (-1, 1, (-1,), (1,))
        plain = rows and columns and mask.blocks == 1
    else:
        plain = mask is None or mask is True
    return plain and len(shape) == 2 and shape[0] >= shape[1]


def is_stiefel(problem: Problem) -> bool:
    """Whether the constraint is XᵀX = I for one tall matrix."""
    return is_matrix(problem) and metric(problem) is None


def is_finite(problem: Problem) -> bool:
    """Whether the regularizer has a value everywhere, being no constraint."""
    if problem.regularizer is None:
        return True
    x = np.random.default_rng(0).standard_normal(np.shape(problem.start))
    with jax.ensure_compile_time_eval():
        value = problem.regularizer.value(x.astype(problem.start.dtype))
    return bool(np.isfinite(value))


def row_weights(problem: Problem) -> np.ndarray | None:
    """The weights γᵢ if the regularizer is Σᵢ γᵢ‖Xᵢ‖₂ over the rows, else None.

    A regularizer is two functions and does not tell its name, so it is tried at two
    random points: there its gradient must be γᵢXᵢ/‖Xᵢ‖, and its value follow from it.
    """
    if problem.regularizer is None:
        return None
    shape, dtype = np.shape(problem.start), np.dtype(problem.start.dtype)
    tolerance, found = np.sqrt(np.finfo(dtype).eps), []
    with jax.ensure_compile_time_eval():
        for seed in (0, 1):
            x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
            value, slope = jax.value_and_grad(problem.regularizer.value)(x)
            value, slope = np.asarray(value), np.asarray(slope)
            sizes = np.linalg.norm(x, axis=1, keepdims=True)
            units = x / sizes
            weights = np.sum(slope * units, axis=1, keepdims=True)
            total = np.sum(weights * sizes)
            if not np.allclose(slope, weights * units, rtol=0, atol=tolerance):
                return None
            if not np.isclose(value, total, rtol=tolerance):
                return None
            found.append(weights[:, 0])
    close = np.allclose(*found, rtol=0, atol=tolerance)
    return found[0] if close else None


def regularizer_value(problem: Problem, x: jax.Array) -> jax.Array:
    """r(X), zero if there is none."""
    if problem.regularizer is None:
        return jnp.zeros([], x.dtype)
    return problem.regularizer.value(x)


def proximal(problem: Problem, x: jax.Array, step: Any) -> jax.Array:
    """The proximal map of r, the identity if there is none."""
    if problem.regularizer is None:
        return x
    return problem.regularizer.prox(x, step)


def quotient(a: jax.Array, b: jax.Array, otherwise: Any) -> jax.Array:
    """|a/b|, or ``otherwise`` where that is not a positive number.

    At a fixed point both are zero; the authors' codes have stopped before.
    """
    safe = (a != 0) & (b != 0)
    ratio = jnp.abs(a / jnp.where(safe, b, 1))
    return jnp.where(safe & jnp.isfinite(ratio), ratio, otherwise)
