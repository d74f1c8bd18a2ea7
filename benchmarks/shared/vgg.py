"""VGG, the network of the paper's experiments, and one step of its training.

The paper trains VGG-19 on CIFAR, "based on the PyTorch examples on image
classification", and says no more of it than that. Here it is as those examples have it
for images of 32×32: the sixteen 3×3 convolutions of Simonyan and Zisserman's
configuration E, each followed by batch normalisation and a ReLU, and one dense layer of
512 inputs in place of the three of 4096, since five poolings leave a single pixel. The
paper constrains the weights of every layer; the classifier is free here, since
orthonormal columns would bound the logits.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import cdopt_jax as cdx
from benchmarks.shared.timing import Program, compiled

CHANNELS = (64, 128, 256, 512, 512)
CONVOLUTIONS = {8: (1, 1, 1, 1, 1), 19: (2, 2, 4, 4, 4)}
IMAGE = (32, 32, 3)


class VGG(nn.Module):
    """The convolutions of VGG with batch normalisation, and a linear classifier.

    Attributes:
        depth: 19, or 8 for a network with one convolution for each size of image.
        width: What the numbers of channels are multiplied by.
        classes: How many logits to return.
    """

    depth: int = 19
    width: float = 1.0
    classes: int = 10

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """Return the logits of a batch of images (count, height, width, channels)."""
        for channels, count in zip(CHANNELS, CONVOLUTIONS[self.depth], strict=True):
            for _ in range(count):
                # The shift of the normalisation makes a bias idle.
                x = nn.Conv(int(channels * self.width), (3, 3), use_bias=False)(x)
                x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
            x = _halved(x)
        return nn.Dense(self.classes)(x.reshape(x.shape[0], -1))


def _halved(x):
    """The largest of each 2×2 pixels.

    As `nn.max_pool` has it, but XLA's derivative of that takes half of a step on a CPU.
    """
    count, height, width, channels = x.shape
    return x.reshape(count, height // 2, 2, width // 2, 2, channels).max((2, 4))


VGG_MASK = cdx.where("Conv_*/kernel")


def start(model: VGG, tx: optax.GradientTransformation) -> dict[str, Any]:
    """The parameters on the manifold, the statistics and the optimiser's state."""
    variables = model.init(jax.random.key(0), jnp.zeros((1, *IMAGE), jnp.float32))
    params = cdx.project(variables["params"], VGG_MASK)
    stats = variables["batch_stats"]
    return {"params": params, "stats": stats, "optimizer": tx.init(params)}


def random_images(
    count: int, classes: int = 10, *, seed: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Images of the shape of CIFAR's, and labels, drawn at random."""
    images, labels = jax.random.split(jax.random.key(seed))
    x = jax.random.normal(images, (count, *IMAGE), jnp.float32)
    return x, jax.random.randint(labels, (count,), 0, classes)


def loss_of(model: VGG) -> Callable[..., tuple[jax.Array, Any]]:
    """From parameters, statistics, images and labels to the loss and new statistics."""

    def loss(params, stats, x, y):
        variables = {"params": params, "batch_stats": stats}
        logits, new = model.apply(variables, x, train=True, mutable=["batch_stats"])
        value = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return value, new["batch_stats"]

    return loss


def train_step(
    model: VGG, tx: optax.GradientTransformation
) -> Callable[[dict[str, Any], tuple[jax.Array, jax.Array]], dict[str, Any]]:
    """The step from one state, as `start` makes it, and a batch to the next."""
    loss = loss_of(model)

    def step(state, batch):
        params, stats = state["params"], state["stats"]
        grads, stats = jax.grad(loss, has_aux=True)(params, stats, *batch)
        updates, optimizer = tx.update(grads, state["optimizer"], params)
        params = optax.apply_updates(params, updates)
        return {"params": params, "stats": stats, "optimizer": optimizer}

    return step


def compile_training(
    model: VGG, tx: optax.GradientTransformation, count: int, **options: Any
) -> tuple[Program, Any]:
    """A training step that reuses the buffers of its state, and the state's shapes.

    Args:
        model: The network.
        tx: The optimiser.
        count: How many images a batch has.
        **options: Of the compiler.
    """
    state = jax.eval_shape(lambda: start(model, tx))
    batch = jax.eval_shape(lambda: random_images(count, model.classes))
    step = train_step(model, tx)
    return compiled(step, state, batch, donate=0, options=options), state
