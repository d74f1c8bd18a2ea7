"""What input is refused: hyper-parameters, metrics, optimisers, points."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from ._errors import error
from ._math.products import AxisName, image_fault, is_complex
from ._math.sharding import Layout


def check_positive(label: str, value: Any) -> None:
    """Raise unless ``value`` is a schedule, a traced number, or a number above zero."""
    if not callable(value) or isinstance(value, type):
        check_number(label, value, kinds="a number or a schedule")
    elif not takes(value, 1):
        raise error(
            f"{label} is a schedule and must take one argument, the number of steps so "
            f"far, as optax.cosine_decay_schedule(0.1, 100) does; {value!r} does not."
        )


def check_number(
    label: str, value: Any, *, zero: bool = False, kinds: str = "a number"
) -> None:
    """Raise unless ``value`` is a traced number, or a finite number above zero.

    Args:
        label: What the number is called.
        value: The number. An array may be zero: `optax.inject_hyperparams` passes the
            values of schedules as arrays, and a schedule may begin or end at zero.
        zero: Whether a number may be zero, too.
        kinds: What it may be, in words.
    """
    if not is_number(value):
        raise error(f"{label} must be {kinds}; it is {value!r}.")
    if not is_known(value):
        return
    if isinstance(value, np.ndarray | Array):
        zero = True
    number = float(value)
    if not (number >= 0 if zero else number > 0) or not math.isfinite(number):
        least = "zero or above" if zero else "above zero"
        raise error(f"{label} must be {least} and finite; it is {value}.")


def check_scale(value: Any) -> float:
    """The scale of a reading, a number above zero that is known."""
    if is_number(value) and is_known(value):
        number = float(value)
        if 0 < number < math.inf:
            return number
    raise error(
        "scale must be one finite number above zero, known when a program is traced, "
        f"such as math.sqrt(fan_out / fan_in); it is {value!r}. Leaves of different "
        "scales have readings of their own."
    )


def is_number(value: Any) -> bool:
    """Whether this is one real number, which may be traced."""
    if isinstance(value, bool) or not isinstance(
        value, int | float | np.number | np.ndarray | Array
    ):
        return False
    dtype = jnp.result_type(value)
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    return real and jnp.shape(value) == ()


def is_known(value: Any) -> bool:
    """Whether the values of an array can be looked at."""
    unknown = isinstance(value, Tracer | jax.ShapeDtypeStruct)
    return not unknown and getattr(value, "is_fully_addressable", True)


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with that many arguments, if it tells."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell
        return True
    return True


def check_count(label: str, value: Any) -> None:
    """Raise unless ``value`` is a whole number of one or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise error(f"{label} must be a whole number of 1 or more; it is {value!r}.")


def check_flag(label: str, value: Any) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise error(f"{label} must be True or False; it is {value!r}.")


def check_key(key: Any) -> None:
    """Raise unless this is one JAX random key, of the new kind or the old."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (shape == () if new else dtype == jnp.uint32 and shape == (2,)):
        raise error(
            f"key must be one JAX random key, such as jax.random.key(0); it is {key!r}."
        )


def check_shape(shape: Any) -> None:
    """Raise unless this is a shape: a sequence of whole numbers."""
    if isinstance(shape, tuple | list) and all(_is_whole(size) for size in shape):
        return
    raise error(f"shape must be a tuple of whole numbers; it is {shape!r}.")


def _is_whole(size):
    return isinstance(size, int | np.integer) and not isinstance(size, bool)


def check_dtype(dtype: Any) -> np.dtype:
    """The dtype that is meant, JAX's default float for None; raise if it is none."""
    try:
        if not isinstance(dtype, np.ndarray | Array):
            return jnp.result_type(float if dtype is None else dtype)
    except TypeError:
        pass
    raise error(f"dtype must be a dtype, such as jnp.float32; it is {dtype!r}.")


def check_value(value: Any, hint: str = "") -> None:
    """Raise unless an objective returned one real number."""
    if is_number(value):
        return
    what = f"a {type(value).__name__}"
    if hasattr(value, "dtype"):
        what = f"an array of shape {jnp.shape(value)} and dtype {value.dtype}"
    raise error(f"f must return one real number; it returned {what}.{hint}")


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
    if not is_number(value) or (is_known(value) and not 0 < float(value) < 1):
        raise error(
            f"{label} must be a number between 0 and 1, such as 0.5; it is {value!r}."
        )


def check_optimizer(optimizer: Any) -> None:
    """Raise on an object without ``init`` and ``update``."""
    parts = [getattr(optimizer, name, None) for name in ("init", "update")]
    if isinstance(optimizer, type) or not all(callable(part) for part in parts):
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
    prox = getattr(regularizer, "prox", None)
    if not callable(prox) or not takes(prox, 2):
        raise error(
            "the proximal map of a regularizer must be a function of the parameters "
            f"and a step, prox(x, step); it is {prox!r}."
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
    if not callable(value):
        return value
    made = value(step)
    if not is_number(made):
        raise error(f"a schedule must return a number; {value!r} returned {made!r}.")
    return made


def in_double_precision(x: Any) -> np.ndarray:
    """An array whose values are known, as float64 or complex128 on the host."""
    return np.asarray(x, np.complex128 if is_complex(x) else np.float64)


def _adjoint(a):
    return np.swapaxes(a, -1, -2).conj()


def complex_metric_fault(B: Any, dtype: Any) -> str | None:
    """Why a metric that is an array does not act on matrices of a dtype, or None."""
    if is_complex(dtype) or not is_complex(B):
        return None
    return (
        f"a complex B, here of dtype {jnp.result_type(B)}, needs complex matrices, and "
        f"these have dtype {dtype}. Write B.real if the imaginary part is rounding, or "
        "make the matrices complex"
    )


def metric_fault(
    B: Any,
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
    if not isinstance(B, np.ndarray | Array):
        return f"B must be an array or a callable; its type is {type(B).__name__}"
    shape, dtype = jnp.shape(B), jnp.result_type(B)
    if len(shape) != 2 or shape[0] != shape[1] or n not in (None, shape[0]):
        rows = "n" if n is None else n
        return f"B must have shape ({rows}, {rows}), or be a callable; it has {shape}"
    if not jnp.issubdtype(dtype, jnp.inexact):
        return f"B must be floating point, real or complex; it has dtype {dtype}"
    if axis_name is not None:
        return (
            "B must be a callable inside shard_map where rows are split, as "
            f"they are over {axis_name!r}: one that gathers what it needs of other rows"
        )
    if layout is not None and (fault := _misfit(B, layout)):
        return fault
    if is_known(B):
        b = in_double_precision(B)
        if not np.isfinite(b).all():
            return "B must be finite"
        slack = 8 * float(jnp.finfo(dtype).eps) * np.abs(b).max(initial=0)
        if np.abs(b - b.conj().T).max(initial=0) > slack:
            if np.iscomplexobj(b):
                return (
                    "B must be Hermitian; write (B + B.conj().T) / 2 if it is so up to "
                    "rounding"
                )
            return "B must be symmetric; write (B + B.T) / 2 if it is so up to rounding"
        diagonal = np.real(np.diagonal(b))
        if not (diagonal > 0).all():
            return (
                "B must be positive definite, and its diagonal above zero; its least "
                f"entry there is {diagonal.min():.1e}"
            )
    return None


def definiteness_fault(B: Any, x: Array | None = None) -> str | None:
    """Why a metric is not a positive definite one, as far as that is known, or None.

    Args:
        B: The metric. Of a callable nothing is known but what it does to ``x``.
        x: Matrices of full rank.
    """
    if B is None or (x is not None and not is_known(x)):
        return None
    what = "its least eigenvalue"
    if callable(B):
        if x is None:
            return None
        bx = B(x)
        if fault := image_fault(bx, x):
            return fault.removesuffix(".")
        if not is_known(bx):
            return None
        b = _adjoint(in_double_precision(x)) @ in_double_precision(bx)
        what = "the least eigenvalue of xᵀBx"
    elif is_known(B):
        b = in_double_precision(B)
    else:
        return None
    b = (b + _adjoint(b)) / 2
    try:
        np.linalg.cholesky(b)
    except np.linalg.LinAlgError:
        least = np.linalg.eigvalsh(b).min()
        return (
            f"B must be positive definite; {what} is {least:.1e}. Write B + ε·I if it "
            "is singular"
        )
    return None


def indefinite_fault(B: Callable[[Any], Any], x: Array) -> str | None:
    """Why a callable is no positive definite metric, by what it does to columns of x.

    Args:
        B: The metric x ↦ Bx.
        x: Matrices of any rank, whose values are known.
    """
    bx = B(x)
    if fault := image_fault(bx, x):
        return fault.removesuffix(".")
    if not is_known(bx):
        return None
    a = np.asarray(x)
    products = np.sum(np.conj(a) * np.asarray(bx), axis=-2).real
    if not (products[a.any(axis=-2)] <= 0).any():
        return None
    return (
        "B must be positive definite; of a column x of the leaf, xᵀBx is "
        f"{products.min():.1e}"
    )


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
    if not is_known(x):
        return None
    a = in_double_precision(x)
    if not np.isfinite(a).all():
        return (
            "is not finite, so it has no nearest point; optax.apply_if_finite keeps "
            "such updates out."
        )
    largest = np.abs(a).max(axis=(-2, -1), keepdims=True)
    a = a / np.where(largest > 0, largest, 1)
    spectrum = np.linalg.eigvalsh(_adjoint(a) @ a)
    # The Gram matrix in float64 resolves σ_min/σ_max down to 1e-8.
    ratio = max(1e-8, float(jnp.finfo(x.dtype).eps)) ** 2
    if (spectrum[..., 0] <= ratio * spectrum[..., -1]).any():
        return (
            "is rank-deficient, so it has no unique nearest point; start from "
            "stiefel.random, or add a small random matrix first."
        )
    return None
