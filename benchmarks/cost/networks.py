"""Five models that people train, each with a loss, a batch and a mask.

Batches are small, so that two cores take about a second for a step: what the constraint
adds does not depend on the batch, and weighs the less the larger the batch is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import cdopt_jax as cdx
from benchmarks.shared.vgg import IMAGE, VGG, VGG_MASK


class Network(NamedTuple):
    """A model and what it is trained on.

    Attributes:
        module: The Flax module.
        batch: From a key to inputs and labels, drawn at random.
        mask: Which kernels are constrained.
        about: Its size and its batch, in words.
        paper: Whether the methods of the paper's experiment are timed on it.
    """

    module: nn.Module
    batch: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    mask: Any
    about: str
    paper: bool = False

    def init(self) -> tuple[Any, Any]:
        """Parameters with the constrained kernels on the manifold, and statistics."""

        def draw(key):
            x, _ = self.batch(key)
            variables = dict(self.module.init(key, x))
            return cdx.project(variables.pop("params"), self.mask), variables

        return jax.jit(draw)(jax.random.key(0))

    def loss(
        self, params: Any, stats: Any, x: jax.Array, y: jax.Array
    ) -> tuple[jax.Array, Any]:
        """The cross-entropy of a batch, and the new statistics."""
        logits, new = self.module.apply(
            {"params": params, **stats}, x, train=True, mutable=list(stats)
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return losses.mean(), new


class ResNet(nn.Module):
    """ResNet-18 for images of 32×32: eight blocks of two convolutions."""

    width: int = 64

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Return the logits of a batch of images."""

        def normed(x):
            return nn.BatchNorm(use_running_average=not train)(x)

        x = nn.relu(normed(nn.Conv(self.width, (3, 3), use_bias=False)(x)))
        for stage in range(4):
            channels = self.width * 2**stage
            for block in range(2):
                strides = 2 if stage and not block else 1
                y = nn.Conv(channels, (3, 3), strides, use_bias=False)(x)
                y = nn.Conv(channels, (3, 3), use_bias=False)(nn.relu(normed(y)))
                if x.shape != y.shape:
                    x = nn.Conv(channels, (1, 1), strides, use_bias=False)(x)
                    x = normed(x)
                x = nn.relu(x + normed(y))
        return nn.Dense(10)(x.mean((1, 2)))


class Transformer(nn.Module):
    """A causal transformer with six layers, as language models have them."""

    width: int = 384
    heads: int = 6
    layers: int = 6
    vocabulary: int = 256

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Return the logits of the next token at each place."""
        del train
        mask = nn.make_causal_mask(x)
        x = nn.Embed(self.vocabulary, self.width)(x)
        for layer in range(self.layers):
            x = x + self._attention(nn.LayerNorm()(x), mask, f"attention_{layer}")
            y = nn.Dense(4 * self.width, name=f"up_{layer}")(nn.LayerNorm()(x))
            x = x + nn.Dense(self.width, name=f"down_{layer}")(nn.gelu(y))
        return nn.Dense(self.vocabulary)(nn.LayerNorm()(x))

    def _attention(self, x, mask, name):
        """Causal attention whose four kernels are single matrices."""
        parts = [
            nn.Dense(self.width, name=f"{name}_{part}")(x)
            for part in ("query", "key", "value")
        ]
        q, k, v = (part.reshape(*x.shape[:-1], self.heads, -1) for part in parts)
        mixed = nn.dot_product_attention(q, k, v, mask=mask).reshape(x.shape)
        return nn.Dense(self.width, name=f"{name}_out")(mixed)


class Recurrent(nn.Module):
    """An LSTM whose recurrent kernels are square, and a linear read-out."""

    width: int = 512
    classes: int = 10

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Return the logits of a batch of sequences."""
        del train
        states = nn.RNN(nn.OptimizedLSTMCell(self.width), name="lstm")(x)
        return nn.Dense(self.classes)(jnp.asarray(states)[:, -1])


class Deep(nn.Module):
    """A multilayer perceptron of square layers and nothing between them but tanh."""

    width: int = 64
    layers: int = 300

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Return the logits of a batch of vectors."""
        del train
        x = nn.Dense(self.width, name="first")(x)
        for layer in range(self.layers):
            x = nn.tanh(nn.Dense(self.width, name=f"layer_{layer}")(x))
        return nn.Dense(10)(x)


def _labelled(shape: tuple[int, ...]) -> Callable[[jax.Array], Any]:
    """Gaussian inputs of a shape, the first axis the batch, and labels of ten kinds."""

    def draw(key):
        x, y = jax.random.split(key)
        labels = jax.random.randint(y, shape[:1], 0, 10)
        return jax.random.normal(x, shape, jnp.float32), labels

    return draw


def _tokens(count: int, length: int, vocabulary: int) -> Callable[[jax.Array], Any]:
    def draw(key):
        shape = (count, length + 1)
        tokens = jax.random.randint(key, shape, 0, vocabulary)
        return tokens[:, :-1], tokens[:, 1:]

    return draw


def make(*, quick: bool = False) -> dict[str, Network]:
    """The five models; with ``quick``, small ones of the same kinds."""
    width, images = (0.125, 2) if quick else (1.0, 8)
    depth, words = (4, 16) if quick else (300, 128)
    transformer = Transformer(width=32, heads=2, layers=2) if quick else Transformer()
    recurrent = Recurrent(width=16) if quick else Recurrent()
    resnet = ResNet(width=8) if quick else ResNet()
    return {
        "VGG-19": Network(
            module=VGG(19, width),
            batch=_labelled((images, *IMAGE)),
            mask=VGG_MASK,
            about=f"16 convolutions, up to 4608×512; {images} images of 32×32",
            paper=True,
        ),
        "ResNet-18": Network(
            module=resnet,
            batch=_labelled((images, *IMAGE)),
            mask=cdx.where("Conv_*/kernel"),
            about=f"20 convolutions, up to 4608×512; {images} images of 32×32",
        ),
        "transformer": Network(
            module=transformer,
            batch=_tokens(2, words, transformer.vocabulary),
            mask=cdx.where("attention_*/kernel"),
            about=f"6 layers of width 384, the attention’s kernels; 2 × {words} tokens",
        ),
        "LSTM": Network(
            module=recurrent,
            batch=_labelled((16, words // 4, 64)),
            mask=cdx.where("*/h*/kernel"),
            about=f"width 512, four recurrent kernels; 16 sequences of {words // 4}",
        ),
        "MLP": Network(
            module=Deep(width=16 if quick else 64, layers=depth),
            batch=_labelled((128, 64)),
            mask=cdx.where("layer_*/kernel"),
            about=f"{depth} layers of 64×64; 128 vectors",
        ),
    }
