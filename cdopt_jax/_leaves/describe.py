"""What a mask does, as a table to look at before training."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from cdopt_jax import stiefel
from cdopt_jax._errors import public

from .masks import Mask, select
from .paths import leaf_paths
from .reading import Stiefel, settle


@public("describe")
def describe(params: Any, mask: Mask = None) -> str:
    """A table of the leaves: which are constrained, and how they are read.

    Args:
        params: The parameters, or their shapes and dtypes, as ``jax.eval_shape`` makes
            them; then there is no feasibility to show.
        mask: Which leaves are constrained; see `where`. Without one, the table shows
            how every leaf could be read, to write a mask from.

    Returns:
        A text to print, with a line for each leaf: its path and shape; the matrices it
        is read as, how many there are of them, and whether it is their rows that are
        orthonormal; and ‖xᵀBx − I‖_F of the worst.

    Examples:
        >>> import jax.numpy as jnp, cdopt_jax as cdx
        >>> params = {"kernel": jnp.eye(4, 2), "bias": jnp.zeros(2)}
        >>> print(cdx.describe(params, cdx.where("kernel")))
        path    shape   read as  matrices  orthonormal  feasibility
        bias    (2,)    free
        kernel  (4, 2)  4 × 2    1         columns      0.0e+00

        Without a mask, to see the paths:

        >>> print(cdx.describe({"scanned": {"kernel": jnp.zeros((2, 4, 3))}}))
        path            shape      read as ...
        scanned/kernel  (2, 4, 3)  dense(), conv(1), attention() or attention_out() ...
    """
    header = ("path", "shape", "read as", "matrices", "orthonormal", "feasibility")
    leaves, paths = jax.tree.leaves(params), leaf_paths(params)
    if mask is None:
        pairs = zip(paths, leaves, strict=True)
        readings = [_default_reading(path, leaf) for path, leaf in pairs]
    else:
        readings = select(params, mask)
    lines: list[tuple[str, ...]] = [header]
    for path, leaf, r in zip(paths, leaves, readings, strict=True):
        head = (path or "(the array)", str(jnp.shape(leaf)))
        if r is None or isinstance(r, str):
            lines.append((*head, r or "free", "", "", ""))
            continue
        n, p = r.matrix
        lines.append(
            (
                *head,
                f"{n} × {p}" + (" in B" if r.B is not None else ""),
                str(math.prod(r.stack)),
                "rows" if r.wide else "columns",
                _feasibility(leaf, r),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _default_reading(path, leaf):
    """The reading of a leaf without a mask, or in words why it has none."""
    if jnp.ndim(leaf) < 2 or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        return "no matrix"
    try:
        return settle(path, leaf, Stiefel())
    except ValueError:
        window = jnp.ndim(leaf) - 2
        return f"dense(), conv({window}), attention() or attention_out() of layers"


def _feasibility(leaf, r):
    if isinstance(leaf, jax.ShapeDtypeStruct | Tracer):
        return "unknown"
    worst = jnp.max(stiefel.feasibility(r.read(leaf), **r.form.arguments))
    return f"{worst:.1e}"
