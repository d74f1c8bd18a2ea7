"""The proximal map of a regularizer, tried on parameters before the first update."""

from typing import Any

import jax

from cdopt_jax._errors import error, user_code
from cdopt_jax._leaves.paths import (
    describe_leaf,
    is_array,
    leaf_paths,
    leaves_beside,
)
from cdopt_jax.prox import Regularizer


def check_proximal_map(regularizer: Regularizer, params: Any) -> None:
    """Raise unless a proximal map takes parameters to others of the same shapes."""
    for path, leaf in zip(leaf_paths(params), jax.tree.leaves(params), strict=True):
        if not is_array(leaf):
            raise error(
                "a regularizer acts on all leaves, so each must be an array; "
                f"{describe_leaf(path, leaf)}. Take it out of the parameters."
            )
    with user_code():
        ends = jax.eval_shape(regularizer.prox, params, 1.0)
    leaves_beside("the result of the proximal map", ends, params)
