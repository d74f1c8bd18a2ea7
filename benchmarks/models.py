"""Flax models, and which of their kernels are constrained."""

import flax.linen as nn
import jax

import cdopt_jax as cdx


class CNN(nn.Module):
    """Two convolutions, a hidden layer and a linear classifier, for small images.

    The widths keep every constrained kernel, read as (inputs, outputs), taller than
    wide, so that all of them have orthonormal columns as in the paper.

    Attributes:
        classes: How many logits to return.
    """

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the logits of a batch of images (count, height, width, channels)."""
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        x = nn.relu(nn.Conv(32, (3, 3))(x))
        x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(self.classes)(x)


# The classifier, Dense_1, is left free: orthonormal columns would bound each logit by
# the norm of its input, and with it how far the cross-entropy can fall.
CNN_MASK = cdx.where("Conv_*/kernel", "Dense_0/kernel")
