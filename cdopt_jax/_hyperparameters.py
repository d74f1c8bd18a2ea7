"""Numbers that may be schedules: checked when they are known, evaluated when needed."""

import math
from typing import Any

from jax import Array


def check_positive(who: str, label: str, value: Any) -> None:
    """Raise unless ``value`` is a schedule, a traced number, or a number above zero."""
    if isinstance(value, bool | str | None):
        raise ValueError(
            f"{who}: {label} must be a number or a schedule; it is {value!r}."
        )
    # Arrays are left alone: `optax.inject_hyperparams` passes traced ones.
    known = isinstance(value, int | float)
    if known and not (value > 0 and math.isfinite(value)):
        raise ValueError(
            f"{who}: {label} must be above zero and finite; it is {value}."
        )


def at(value: Any, step: Array) -> Any:
    """The value of a number or a schedule at a step."""
    return value(step) if callable(value) else value
