"""Flax models, found by name, and which of their kernels are constrained."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

import cdopt_jax as cdx
from benchmarks.shared.vgg import VGG, VGG_MASK


class CNN(nn.Module):
    """Two convolutions, a hidden layer and a linear classifier, for small images.

    The widths keep every constrained kernel, read as (inputs, outputs), taller than
    wide, so that all of them have orthonormal columns as in the paper.

    Attributes:
        classes: How many logits to return.
    """

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Return the logits of a batch of images (count, height, width, channels)."""
        del train
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        x = nn.relu(nn.Conv(32, (3, 3))(x))
        x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(self.classes)(x)


# The classifier, Dense_1, is left free: orthonormal columns would bound each logit by
# the norm of its input, and with it how far the cross-entropy can fall.
CNN_MASK = cdx.where("Conv_*/kernel", "Dense_0/kernel")


class _Attention(nn.Module):
    """Attention whose four kernels are single matrices."""

    heads: int

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        names = ("query", "key", "value")
        parts = [nn.Dense(width, name=name)(x) for name in names]
        q, k, v = (part.reshape(*x.shape[:-1], self.heads, -1) for part in parts)
        mixed = nn.dot_product_attention(q, k, v).reshape(x.shape)
        return nn.Dense(width, name="out")(mixed)


class ViT(nn.Module):
    """A small vision transformer: an eighth of the image is the side of a patch.

    Attributes:
        classes: How many logits to return.
        width: The length of a token.
        depth: How many blocks there are.
        heads: How many heads each attention has.
    """

    classes: int
    width: int = 64
    depth: int = 4
    heads: int = 4

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Return the logits of a batch of images (count, height, width, channels)."""
        del train
        side = max(1, x.shape[1] // 8)
        patches = (side, side)
        x = nn.Conv(self.width, patches, strides=patches, padding="VALID")(x)
        x = x.reshape(x.shape[0], -1, self.width)
        init = nn.initializers.normal(0.02)
        x = x + self.param("position", init, (1, *x.shape[1:]))
        for i in range(self.depth):
            x = x + _Attention(self.heads, name=f"attention_{i}")(nn.LayerNorm()(x))
            inner = nn.gelu(nn.Dense(2 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(inner)
        return nn.Dense(self.classes, name="logits")(nn.LayerNorm()(x.mean(axis=1)))


# Of the attention, where the constraint is most used: it bounds how sharp it can get.
VIT_MASK = cdx.where("attention_*/*/kernel")

# From the number of classes and the width to the model, and the mask.
MODELS: dict[str, tuple[Callable[[int, float], nn.Module], Any]] = {
    "cnn": (lambda classes, _: CNN(classes), CNN_MASK),
    "vgg8": (lambda classes, width: VGG(8, width, classes), VGG_MASK),
    "vgg19": (lambda classes, width: VGG(19, width, classes), VGG_MASK),
    "vit": (lambda classes, _: ViT(classes), VIT_MASK),
}
