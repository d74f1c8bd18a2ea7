"""Numbers that may be schedules: checked when they are known, evaluated when needed."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array


def check_positive(who: str, label: str, value: Any) -> None:
    """Raise unless ``value`` is a schedule, a traced number, or a number above zero."""
    number = isinstance(value, int | float | np.number | np.ndarray | Array)
    complex_ = number and jnp.iscomplexobj(value)
    if not (number or callable(value)) or isinstance(value, bool) or complex_:
        raise ValueError(
            f"{who}: {label} must be a number or a schedule; it is {value!r}."
        )
    # Arrays are left alone: `optax.inject_hyperparams` passes traced ones.
    known = isinstance(value, int | float | np.number)
    if known and not (value > 0 and math.isfinite(value)):
        raise ValueError(
            f"{who}: {label} must be above zero and finite; it is {value}."
        )


def check_beta(who: str, beta: Any) -> bool:
    """Whether a weight is the automatic one; raise unless it is that or positive."""
    if not isinstance(beta, str):
        check_positive(who, "beta", beta)
        return False
    if beta != "auto":
        raise ValueError(
            f'{who}: beta must be a number, a schedule or "auto"; it is {beta!r}.'
        )
    return True


def at(value: Any, step: Array) -> Any:
    """The value of a number or a schedule at a step."""
    return value(step) if callable(value) else value


def check_fraction(who: str, label: str, value: Any) -> None:
    """Raise unless ``value`` is a number between 0 and 1, neither included."""
    traced = isinstance(value, Array | np.ndarray)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not traced and not (number and 0 < value < 1):
        raise ValueError(
            f"{who}: {label} must be a number between 0 and 1, such as 0.5; it is "
            f"{value!r}."
        )
