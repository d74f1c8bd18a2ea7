"""What `minimize` is given, checked before anything is computed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from cdopt_jax._checks import check_beta, check_positive
from cdopt_jax._leaves.paths import describe_leaf, leaf_paths
from cdopt_jax._minimize.subgradient import RULES
from cdopt_jax.prox import Regularizer

METHODS = (
    "auto",
    "proximal",
    "continuation",
    "tangential",
    "lbfgs",
    "newton",
    "sampling",
    *RULES,
)


def check_options(
    who: str,
    f: Any,
    method: Any,
    regularizer: Any,
    beta: Any,
    tol: Any,
    max_steps: Any,
    batch: Any,
) -> None:
    """Raise on options that cannot be used, or not together."""

    def fault(text):
        return ValueError(f"{who}: {text}")

    if not callable(f):
        raise fault(f"f must be a function of the parameters; it is {f!r}.")
    optimizer = hasattr(method, "init") and hasattr(method, "update")
    if not optimizer and method not in METHODS:
        raise fault(
            f"method must be an Optax optimiser or one of {', '.join(METHODS)}; it is "
            f"{method!r}."
        )
    if regularizer is not None:
        if not isinstance(regularizer, Regularizer):
            raise fault(
                "regularizer must be a Regularizer(value, prox), such as prox.l1(0.1); "
                f"it is {regularizer!r}."
            )
        if regularizer.prox is None and method in ("proximal", "continuation"):
            raise fault(
                f'method="{method}" needs the proximal map of r, and prox '
                'is None; give one, or write method="geometric", which takes '
                "subgradients."
            )
    if check_beta(beta) is False and callable(beta):
        raise fault(f"beta must be a number or 'auto'; it is {beta!r}.")
    if tol is not None:
        check_positive("tol", tol)
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
        raise fault(f"max_steps must be a whole number above 0; it is {max_steps!r}.")
    if batch is not None and not (optimizer or method == "auto"):
        raise fault(
            f"method={method!r} compares values of one function, and with batch= each "
            "step has its own; give an Optax optimiser, such as optax.adam(1e-2)."
        )


def check_leaves(who: str, x0: Any) -> None:
    """Raise on a start that is not real and finite."""
    for path, leaf in zip(leaf_paths(x0), jax.tree.leaves(x0), strict=True):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"{who}: x0 must be real floating point; {describe_leaf(path, leaf)}."
            )
        if not isinstance(leaf, Tracer) and not np.isfinite(np.asarray(leaf)).all():
            raise ValueError(
                f"{who}: x0 must be finite; {describe_leaf(path, leaf)} and holds "
                "infinite or NaN entries."
            )


def check_scalar(who: str, f: Any, params: Any) -> None:
    """Raise on an objective that is not a real scalar."""
    out: Any = jax.eval_shape(f, params)
    shape = getattr(out, "shape", None)
    if shape != ():
        what = f"an array of shape {shape}" if shape else f"a {type(out).__name__}"
        raise ValueError(
            f"{who}: f must return a scalar; it returns {what}. Write jnp.sum(…) or "
            "jnp.mean(…) around it."
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(
            f"{who}: f must return a real floating-point number; it returns one of "
            f"dtype {out.dtype}. Write jnp.real(…) around a complex one."
        )
