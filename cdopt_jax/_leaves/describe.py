"""What a mask does, as a table to look at before training."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from cdopt_jax import stiefel
from cdopt_jax._errors import error, public

from .masks import NOT_MATRICES, Mask, select
from .paths import is_array, leaf_paths
from .reading import Stiefel, settle

_SEVERAL = "several ways"
_WAYS = """
several ways: the mask must say which, as where({"*/query/kernel": layers.attention()})
  layers.dense()          a stack of matrices, as scan and vmap over layers make it
  layers.conv(k)          a convolution over k axes; layers.torch_conv(k) for PyTorch's
  layers.attention()      queries, keys and values, of shape (in, heads, head_dim)
  layers.attention_out()  the output of attention, of shape (heads, head_dim, out)"""


@public("describe")
def describe(params: Any, mask: Mask = None) -> str:
    """A table of the leaves: which are constrained, and how they are read.

    Args:
        params: The parameters, or their shapes and dtypes, as ``jax.eval_shape`` makes
            them; then there is no feasibility to show.
        mask: Which leaves are constrained; see `where`. Without one, the table shows
            how every leaf would be read if it were constrained, to write a mask from.

    Returns:
        A text to print, with a line for each leaf: its path and shape; the matrices it
        is read as, how many there are of them, and whether it is their rows or their
        columns that are orthonormal; and ‖xᵀBx − I‖_F of the worst, which is what
        `feasibility` returns.

    Raises:
        ValueError: On parameters without leaves or something that is no tree of arrays,
            and on a mask that does not fit.

    Examples:
        >>> import jax.numpy as jnp, cdopt_jax as cdx
        >>> params = {"kernel": jnp.eye(4, 2), "bias": jnp.zeros(2)}
        >>> print(cdx.describe(params, cdx.where("kernel")))
        path    shape   read as  matrices  orthonormal  ‖xᵀBx − I‖_F
        bias    (2,)    free
        kernel  (4, 2)  4 × 2    1         columns      0.0e+00

        Without a mask, to see the paths:

        >>> print(cdx.describe({"kernel": jnp.eye(4, 2), "scale": jnp.ones(2)}))
        path    shape   would be read as  matrices  orthonormal  ‖xᵀBx − I‖_F
        kernel  (4, 2)  4 × 2             1         columns      0.0e+00
        scale   (2,)    no matrix
    """
    leaves, paths = jax.tree.leaves(params), leaf_paths(params)
    if not leaves or (paths == [""] and not is_array(leaves[0])):
        raise error(
            "params must be a tree of arrays, such as model.init(…)['params'] of Linen "
            "or nnx.state(model, nnx.Param) of NNX; it is a "
            f"{type(params).__name__} without any."
        )
    read_as = "would be read as" if mask is None else "read as"
    header = ("path", "shape", read_as, "matrices", "orthonormal", "‖xᵀBx − I‖_F")
    if mask is None:
        pairs = zip(paths, leaves, strict=True)
        readings = [_default_reading(path, leaf) for path, leaf in pairs]
    else:
        readings = select(params, mask)
    lines: list[tuple[str, ...]] = [header]
    for path, leaf, r in zip(paths, leaves, readings, strict=True):
        shape = str(jnp.shape(leaf)) if is_array(leaf) else type(leaf).__name__
        head = (path or "(the array)", shape)
        if r is None or isinstance(r, str):
            lines.append((*head, r or "free", "", "", ""))
            continue
        n, p = r.matrix
        lines.append(
            (
                *head,
                f"{n} × {p}" + _remark(r, mask),
                str(math.prod(r.stack)),
                "rows" if r.wide else "columns",
                _feasibility(leaf, r),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    return table + _WAYS if _SEVERAL in readings else table


def _remark(reading, mask):
    """What a reading has besides its axes."""
    metric = " in B" if reading.B is not None else ""
    scale = "" if reading.scale == 1 else f", scale {reading.scale:.4g}"
    guess = mask is None and len(reading.shape) == 4
    return metric + scale + (", as a convolution" if guess else "")


def _default_reading(path, leaf):
    """The reading of a leaf without a mask, or in words why it has none."""
    if not is_array(leaf):
        return "no array"
    floating = jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    if not floating or jnp.ndim(leaf) < 2 or path.rpartition("/")[2] in NOT_MATRICES:
        return "no matrix"
    try:
        return settle(path, leaf, Stiefel())
    except ValueError:
        return _SEVERAL


def _feasibility(leaf, r):
    if isinstance(leaf, jax.ShapeDtypeStruct | Tracer):
        return "unknown"
    worst = jnp.max(stiefel.feasibility(r.read(leaf), **r.form.arguments))
    return f"{worst:.1e}"
