"""The matrices of a mask, in the words of Optax's Muon."""

from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers

from cdopt_jax._errors import error, public

from .masks import Mask, select
from .paths import describe_leaf, leaf_paths


@public("layers.muon_dimension_numbers")
def muon_dimension_numbers(params: optax.Params, mask: Mask = None) -> Any:
    """Make `optax.contrib.muon` orthogonalise the matrices that are constrained.

    Muon on its own takes matrices for what they are and leaves every other kernel to
    Adam. With these dimension numbers the kernel of a convolution or of attention is
    the same matrix, or stack of matrices, for Muon as for the mask.

    Args:
        params: The parameters, or their shapes and dtypes.
        mask: Which leaves are constrained; see `where`.

    Returns:
        The argument ``muon_weight_dimension_numbers``: a tree with the dimension
        numbers of each constrained leaf. Of the other leaves, Muon gets the matrices,
        as it does by default, and None leaves the rest to Adam.

    Raises:
        ValueError: On a mask that does not fit, and on a leaf whose columns are cut
            into blocks, which Muon cannot express.

    Examples:
        >>> import jax, jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> params = {"kernel": jnp.ones((3, 3, 8, 16)), "bias": jnp.zeros(16)}
        >>> mask = {"kernel": cdx.layers.conv(), "bias": False}
        >>> numbers = cdx.layers.muon_dimension_numbers(params, mask)
        >>> numbers["kernel"]
        MuonDimensionNumbers(reduction_axis=(0, 1, 2), output_axis=(3,))
        >>> muon = optax.contrib.muon(0.05, muon_weight_dimension_numbers=numbers)
        >>> tx = cdx.constrain(muon, mask)
    """
    leaves, treedef = jax.tree.flatten(params)

    def numbers(path, leaf, reading):
        if reading is None:
            return MuonDimensionNumbers() if leaf.ndim == 2 else None
        if reading.blocks > 1:
            raise error(
                "Muon has no words for columns in blocks; "
                f"{describe_leaf(path, leaf)}, and it is read in {reading.blocks} "
                "blocks. Store the blocks as leaves of their own, or give this leaf "
                "another optimiser by optax.partition."
            )
        return MuonDimensionNumbers(reading.rows, reading.columns)

    rows = zip(leaf_paths(params), leaves, select(params, mask), strict=True)
    return treedef.unflatten([numbers(*row) for row in rows])
