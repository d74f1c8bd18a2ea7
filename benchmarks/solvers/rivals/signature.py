"""What a solver is, and what it can ask of an instance."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import cdopt_jax as cdx
from benchmarks.shared.problems.signature import Instance

_mm = partial(jnp.matmul, precision="highest")


class Solver(NamedTuple):
    """An iterative method for instances of the suite.

    Attributes:
        init: From an instance to the state at its start, a pytree of arrays.
        step: One iteration, jittable, from state to state.
        point: From a state to the iterate to be judged.
        applies: Whether an instance is one that the method is made for.
    """

    init: Callable[[Instance], Any]
    step: Callable[[Instance, Any], Any]
    point: Callable[[Any], jax.Array]
    applies: Callable[[Instance], bool]


def metric(instance: Instance) -> Any:
    """The B of the constraint XᵀBX = I, or None."""
    return instance.mask.B if isinstance(instance.mask, cdx.Stiefel) else None


def is_matrix(instance: Instance) -> bool:
    """Whether the unknown is one tall matrix, read as it stands."""
    mask, shape = instance.mask, np.shape(instance.start)
    if isinstance(mask, cdx.Stiefel):
        rows = mask.rows in (None, 0, -2, (0,), (-2,))
        columns = mask.columns in (-1, 1, (-1,), (1,))
        plain = rows and columns and mask.blocks == 1
    else:
        plain = mask is None or mask is True
    return plain and len(shape) == 2 and shape[0] >= shape[1]


def is_stiefel(instance: Instance) -> bool:
    """Whether the constraint is XᵀX = I for one tall matrix."""
    return is_matrix(instance) and metric(instance) is None


def is_finite(instance: Instance) -> bool:
    """Whether the regularizer has a value everywhere, being no constraint."""
    if instance.regularizer is None:
        return True
    x = np.random.default_rng(0).standard_normal(np.shape(instance.start))
    with jax.ensure_compile_time_eval():
        value = instance.regularizer.value(x.astype(instance.start.dtype))
    return bool(np.isfinite(value))


def row_weights(instance: Instance) -> np.ndarray | None:
    """The weights γᵢ if the regularizer is Σᵢ γᵢ‖Xᵢ‖₂ over the rows, else None.

    A regularizer is two functions and does not tell its name, so it is tried at two
    random points: there its gradient must be γᵢXᵢ/‖Xᵢ‖, and its value follow from it.
    """
    if instance.regularizer is None:
        return None
    shape, dtype = np.shape(instance.start), np.dtype(instance.start.dtype)
    tolerance, found = np.sqrt(np.finfo(dtype).eps), []
    with jax.ensure_compile_time_eval():
        for seed in (0, 1):
            x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
            value, slope = jax.value_and_grad(instance.regularizer.value)(x)
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


def regularizer_value(instance: Instance, x: jax.Array) -> jax.Array:
    """r(X), zero if there is none."""
    if instance.regularizer is None:
        return jnp.zeros([], x.dtype)
    return instance.regularizer.value(x)


def proximal(instance: Instance, x: jax.Array, step: Any) -> jax.Array:
    """The proximal map of r, the identity if there is none."""
    if instance.regularizer is None:
        return x
    return instance.regularizer.prox(x, step)


def symmetric(s: jax.Array) -> jax.Array:
    """Φ(S) = (S + Sᵀ)/2."""
    return (s + s.mT) / 2


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """AB in full precision."""
    return _mm(a, b)


def inner(a: jax.Array, b: jax.Array) -> jax.Array:
    """The sum of the products of the entries."""
    return jnp.sum(a * b)


def norm(a: jax.Array) -> jax.Array:
    """The Frobenius norm."""
    return jnp.sqrt(jnp.sum(a**2))


def quotient(a: jax.Array, b: jax.Array, otherwise: Any) -> jax.Array:
    """|a/b|, or ``otherwise`` where that is not a positive number.

    At a fixed point both are zero; the authors' codes have stopped before.
    """
    safe = (a != 0) & (b != 0)
    ratio = jnp.abs(a / jnp.where(safe, b, 1))
    return jnp.where(safe & jnp.isfinite(ratio), ratio, otherwise)
