"""How the kernels of common layers are read, so that no one has to count axes.

The functions return a `Stiefel`. `torch_linear` and `torch_conv` are for the layouts of
PyTorch and Equinox, where outputs come first, and the others for those of Flax.
Axes are counted from the end, so that what ``scan`` or ``vmap`` over layers puts in
front is a stack of matrices. Whether it is the columns or the rows that become
orthonormal is a matter of shape alone: it is those along the shorter side.
`muon_dimension_numbers` tells Optax's Muon how a mask reads each leaf.
"""

from ._checks import check_count, check_flag
from ._errors import public
from ._leaves.muon import muon_dimension_numbers as muon_dimension_numbers
from ._leaves.reading import Stiefel
from ._math.products import Metric

__all__ = [
    "attention",
    "attention_out",
    "conv",
    "conv_transpose",
    "dense",
    "embedding",
    "fused",
    "muon_dimension_numbers",
    "recurrent",
    "torch_conv",
    "torch_linear",
]


@public("layers.dense")
def dense(B: Metric = None, scale: float = 1.0) -> Stiefel:
    """A dense kernel ``(in, out)``.

    Args:
        B: The metric of the generalized constraint, as in `Stiefel`.
        scale: The length of the columns, as in `Stiefel`.
    """
    return Stiefel(rows=-2, columns=-1, B=B, scale=scale)


@public("layers.embedding")
def embedding(B: Metric = None, scale: float = 1.0) -> Stiefel:
    """An embedding table ``(entries, features)``: orthonormal features.

    Args:
        B: The metric of the generalized constraint, as in `Stiefel`.
        scale: The length of the columns, as in `Stiefel`.
    """
    return Stiefel(rows=-2, columns=-1, B=B, scale=scale)


@public("layers.conv")
def conv(
    spatial: int = 2, groups: int = 1, B: Metric = None, scale: float = 1.0
) -> Stiefel:
    """A convolution kernel ``(*window, in/groups, out)``, in the paper's reshape.

    All axes but the last are the rows. That makes the kernel orthonormal as a matrix,
    and not the convolution an orthogonal operator.

    Args:
        spatial: How many axes the window has: 2 for images.
        groups: The ``feature_group_count`` of the layer, with a matrix for each group;
            for a depthwise convolution the number of input features.
        B: The metric of the generalized constraint, as in `Stiefel`.
        scale: The length of the columns, as in `Stiefel`.
    """
    check_count("spatial", spatial)
    check_count("groups", groups)
    rows = tuple(range(-spatial - 2, -1))
    return Stiefel(rows=rows, columns=-1, B=B, scale=scale, blocks=groups)


@public("layers.conv_transpose")
def conv_transpose(spatial: int = 2, B: Metric = None, scale: float = 1.0) -> Stiefel:
    """A transposed convolution kernel ``(*window, in, out)``.

    The window and the output are the rows: it is the adjoint of a convolution whose
    input is this one's output. For ``transpose_kernel=True``, where the two last axes
    change places, write `conv`.

    Args:
        spatial: How many axes the window has: 2 for images.
        B: The metric of the generalized constraint, as in `Stiefel`.
        scale: The length of the columns, as in `Stiefel`.
    """
    check_count("spatial", spatial)
    rows = (*range(-spatial - 2, -2), -1)
    return Stiefel(rows=rows, columns=-2, B=B, scale=scale)


@public("layers.attention")
def attention(
    *, per_head: bool = True, B: Metric = None, scale: float = 1.0
) -> Stiefel:
    """The query, key or value kernel ``(in, heads, head_dim)`` of an attention layer.

    Args:
        per_head: Whether each head is a matrix ``(in, head_dim)`` of its own, or all
            together are one of shape ``(in, heads * head_dim)``.
        B: The metric of the generalized constraint, as in `Stiefel`.
        scale: The length of the columns, as in `Stiefel`.
    """
    check_flag("per_head", per_head)
    return Stiefel(rows=-3, columns=-1 if per_head else (-2, -1), B=B, scale=scale)


@public("layers.attention_out")
def attention_out(
    *, per_head: bool = True, B: Metric = None, scale: float = 1.0
) -> Stiefel:
    """The output kernel ``(heads, head_dim, out)`` of an attention layer.

    An `initializer` for it must be told that shape: Flax asks for
    ``(heads * head_dim, out)``, which would be read as one matrix.

    Args:
        per_head: Whether each head is a matrix ``(head_dim, out)`` of its own, or all
            together are one of shape ``(heads * head_dim, out)``.
        B: The metric of the generalized constraint, as in `Stiefel`.
        scale: The length of the columns, as in `Stiefel`.
    """
    check_flag("per_head", per_head)
    return Stiefel(rows=-2 if per_head else (-3, -2), columns=-1, B=B, scale=scale)


@public("layers.recurrent")
def recurrent(gates: int = 1, B: Metric = None, scale: float = 1.0) -> Stiefel:
    """The kernel ``(in, gates * features)`` of a recurrent cell, gate by gate.

    Args:
        gates: How many gates it holds: 4 for NNX's ``OptimizedLSTMCell``, 3 for its
            ``GRUCell``, and 1 for Linen's cells, which keep their gates apart.
        B: The metric of the generalized constraint, as in `Stiefel`.
        scale: The length of the columns, as in `Stiefel`.
    """
    check_count("gates", gates)
    return fused(gates, B, scale)


@public("layers.fused")
def fused(blocks: int, B: Metric = None, scale: float = 1.0) -> Stiefel:
    """A dense kernel ``(in, blocks * out)`` that holds several side by side.

    Args:
        blocks: How many: 3 for queries, keys and values, times the number of heads for
            a matrix for each head.
        B: The metric of the generalized constraint, as in `Stiefel`.
        scale: The length of the columns, as in `Stiefel`.
    """
    return Stiefel(rows=-2, columns=-1, B=B, scale=scale, blocks=blocks)


@public("layers.torch_linear")
def torch_linear(blocks: int = 1, B: Metric = None, scale: float = 1.0) -> Stiefel:
    """A weight ``(out, in)`` of a linear layer of PyTorch or Equinox.

    Args:
        blocks: How many weights it holds one above the other, each a matrix of its
            own: 4 for an LSTM and 3 for a GRU, 3 for PyTorch's ``in_proj_weight``, and
            the number of heads for the projections of Equinox's attention.
        B: The metric of the generalized constraint, as in `Stiefel`.
        scale: The length of the columns, as in `Stiefel`.
    """
    check_count("blocks", blocks)
    return Stiefel(rows=-1, columns=-2, B=B, scale=scale, blocks=blocks)


@public("layers.torch_conv")
def torch_conv(
    spatial: int = 2, groups: int = 1, B: Metric = None, scale: float = 1.0
) -> Stiefel:
    """A convolution kernel ``(out, in/groups, *window)`` of PyTorch or Equinox.

    The matrices are those that `conv` makes of the same layer in Flax. A transposed
    convolution of PyTorch, whose kernel is ``(in, out/groups, *window)``, is read by
    this function too, and then like `conv_transpose`.

    Args:
        spatial: How many axes the window has: 2 for images.
        groups: The ``groups`` of the layer, with a matrix for each group.
        B: The metric of the generalized constraint, as in `Stiefel`.
        scale: The length of the columns, as in `Stiefel`.
    """
    check_count("spatial", spatial)
    check_count("groups", groups)
    rows = tuple(range(-spatial - 1, 0))
    return Stiefel(rows=rows, columns=-spatial - 2, B=B, scale=scale, blocks=groups)
