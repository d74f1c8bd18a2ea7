"""Whether metrics are positive definite, as far as that can be told."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from cdopt_jax._leaves.masks import Mask, select
from cdopt_jax._leaves.paths import describe_leaf, leaf_paths


def check_metrics(who: str, params: chex.ArrayTree, mask: Mask) -> None:
    """Raise on a metric that is not positive definite.

    Of an array all eigenvalues are looked at; of a callable, those of xᵀBx.
    """
    leaves, readings = jax.tree.leaves(params), select(params, mask)
    for path, leaf, r in zip(leaf_paths(params), leaves, readings, strict=True):
        if r is None or r.B is None:
            continue
        found: Any = r.B
        of = "B"
        if callable(found):
            x = r.read(leaf)
            found, of = r.form.gram(x, r.form.apply(x)), "xᵀBx at x0"
        if isinstance(found, Tracer):
            continue
        values = np.linalg.eigvalsh(np.asarray(found, np.float64))
        least = values.min()
        if not least > jnp.finfo(leaf.dtype).eps * values.max():
            raise ValueError(
                f"{who}: B must be positive definite; {describe_leaf(path, leaf)}, and "
                f"the least eigenvalue of {of} is {least:.1e}. Write B + ε·I if it is "
                "singular."
            )
