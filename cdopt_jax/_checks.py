"""What input is refused: hyper-parameters, metrics, optimisers, points."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from ._errors import error
from ._math.products import AxisName
from ._math.sharding import Layout


def check_positive(label: str, value: Any) -> None:
    """Raise unless ``value`` is a schedule, a traced number, or a number above zero."""
    number = isinstance(value, int | float | np.number | np.ndarray | Array)
    complex_ = number and jnp.iscomplexobj(value)
    if not (number or callable(value)) or isinstance(value, bool) or complex_:
        raise error(f"{label} must be a number or a schedule; it is {value!r}.")
    # Arrays are left alone: `optax.inject_hyperparams` passes traced ones.
    known = isinstance(value, int | float | np.number)
    if known and not (value > 0 and math.isfinite(value)):
        raise error(f"{label} must be above zero and finite; it is {value}.")


def check_beta(beta: Any) -> bool:
    """Whether a weight is the automatic one; raise unless it is that or positive."""
    if not isinstance(beta, str):
        check_positive("beta", beta)
        return False
    if beta != "auto":
        raise error(f'beta must be a number, a schedule or "auto"; it is {beta!r}.')
    return True


def check_fraction(label: str, value: Any) -> None:
    """Raise unless ``value`` is a number between 0 and 1, neither included."""
    number = isinstance(value, int | float | np.number | np.ndarray | Array)
    known = number and not isinstance(value, Tracer | bool)
    if isinstance(value, Tracer) and value.shape == ():
        return
    if not known or np.shape(value) != () or not 0 < float(value) < 1:
        raise error(
            f"{label} must be a number between 0 and 1, such as 0.5; it is {value!r}."
        )


def check_optimizer(optimizer: Any) -> None:
    """Raise on an object without ``init`` and ``update``."""
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise error(
            "optimizer must be an Optax optimiser, such as optax.adam(1e-2); it is "
            f"{optimizer!r}."
        )


def check_regularizer(regularizer: Any, kind: type) -> None:
    """Raise unless this is a regularizer of the given class, `prox.Regularizer`."""
    if not isinstance(regularizer, kind):
        raise error(
            "regularizer must be a Regularizer(value, prox), such as prox.l1(1e-4) or "
            f"prox.none(); it is {regularizer!r}."
        )


def check_params(params: Any) -> None:
    """Raise if ``update`` was called without parameters."""
    if params is None:
        raise error(
            "this transformation needs the current parameters; call "
            "update(updates, state, params)."
        )


def schedule_value(value: Any, step: Array) -> Any:
    """The value of a number or a schedule at a step."""
    return value(step) if callable(value) else value


def metric_fault(
    B: ArrayLike,
    n: int | None = None,
    layout: Layout | None = None,
    axis_name: AxisName = None,
) -> str | None:
    """What keeps the array ``B`` from being a metric on n rows, or None.

    Args:
        B: The array.
        n: How many rows there are, if that is known.
        layout: The layout of the leaf to which B is to be applied.
        axis_name: The mapped axes that split the rows, inside ``shard_map``.
    """
    if not hasattr(B, "shape"):
        return f"B must be an array or a callable; it is {B!r}"
    shape, dtype = jnp.shape(B), jnp.result_type(B)
    if len(shape) != 2 or shape[0] != shape[1] or n not in (None, shape[0]):
        rows = "n" if n is None else n
        return f"B must have shape ({rows}, {rows}), or be a callable; it has {shape}"
    if not jnp.issubdtype(dtype, jnp.floating):
        return f"B must be real floating point; it has dtype {dtype}"
    if axis_name is not None:
        return (
            "B must be a callable inside shard_map where rows are split, as "
            f"they are over {axis_name!r}: one that gathers what it needs of other rows"
        )
    if layout is not None and (fault := _misfit(B, layout)):
        return fault
    if not isinstance(B, Tracer) and getattr(B, "is_fully_addressable", True):
        b = np.asarray(B, np.float64)
        if not np.isfinite(b).all():
            return "B must be finite"
        slack = 8 * float(jnp.finfo(dtype).eps) * np.abs(b).max(initial=0)
        if np.abs(b - b.T).max(initial=0) > slack:
            return "B must be symmetric; write (B + B.T) / 2 if it is so up to rounding"
        if not (np.diagonal(b) > 0).all():
            return (
                "B must be positive definite, and its diagonal above zero; its least "
                f"entry there is {np.diagonal(b).min():.1e}"
            )
    return None


def definiteness_fault(B: ArrayLike) -> str | None:
    """Why an array whose values are known is not positive definite, or None."""
    if isinstance(B, Tracer) or not getattr(B, "is_fully_addressable", True):
        return None
    b = np.asarray(B, np.float64)
    try:
        np.linalg.cholesky((b + b.T) / 2)
    except np.linalg.LinAlgError:
        least = np.linalg.eigvalsh(b).min()
        return (
            f"B must be positive definite; its least eigenvalue is {least:.1e}. Write "
            "B + ε·I if it is singular"
        )
    return None


def _misfit(B, layout):
    """What keeps a metric from acting on rows that are split like this."""
    if layout.pad:
        return (
            f"B needs a number of rows that {layout.away[layout.host]} divides; split "
            "the leaf along another axis, or along none"
        )
    spec = getattr(getattr(jax.typeof(B), "sharding", None), "spec", ())
    names = [n for n in spec if n]
    rows = layout.away[layout.host]
    if any((n if isinstance(n, tuple) else (n,)) != rows for n in names):
        return (
            f"B is laid out as {spec}, and the rows it acts on are split by "
            f"{rows}; leave B unsplit, or split one of its axes by the same"
        )
    return None


def projection_fault(x: Array) -> str | None:
    """Why the matrices have no nearest point, where their values are known."""
    if isinstance(x, Tracer) or not x.is_fully_addressable:
        return None
    a = np.asarray(x, np.float64)
    if not np.isfinite(a).all():
        return (
            "is not finite, so it has no nearest point; optax.apply_if_finite keeps "
            "such updates out."
        )
    largest = np.abs(a).max(axis=(-2, -1), keepdims=True)
    a = a / np.where(largest > 0, largest, 1)
    spectrum = np.linalg.eigvalsh(np.swapaxes(a, -1, -2) @ a)
    # The Gram matrix in float64 resolves σ_min/σ_max down to 1e-8.
    ratio = max(1e-8, float(jnp.finfo(x.dtype).eps)) ** 2
    if (spectrum[..., 0] <= ratio * spectrum[..., -1]).any():
        return (
            "is rank-deficient, so it has no unique nearest point; start from "
            "stiefel.random, or add a small random matrix first."
        )
    return None
