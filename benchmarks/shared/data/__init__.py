"""Data sets, found by name, and the order in which their examples are seen."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from benchmarks.shared.data import cifar, fashion_mnist
from benchmarks.shared.data.cifar import DataError as DataError


class Examples(NamedTuple):
    """Images with their classes.

    Attributes:
        images: Of shape (count, height, width, channels), as they are stored.
        labels: Of shape (count,), int32.
    """

    images: jax.Array
    labels: jax.Array

    def first(self, count: int) -> "Examples":
        """The first ones, no more than that."""
        return Examples(images=self.images[:count], labels=self.labels[:count])


class Split(NamedTuple):
    """What a model is trained on and what it is judged by.

    Attributes:
        train: The training examples.
        test: The held-out examples.
        classes: How many classes there are.
        mean: Of the training pixels, for each channel.
        deviation: Their standard deviation.
        natural: Whether the images are photographs, whose sense a shift or a mirror
            does not change.
    """

    train: Examples
    test: Examples
    classes: int
    mean: np.ndarray
    deviation: np.ndarray
    natural: bool

    def normalised(self, images: jax.Array) -> jax.Array:
        """Images as a network is given them."""
        return (images.astype(jnp.float32) - self.mean) / self.deviation

    def limited(self, count: int) -> "Split":
        """The same with no more training examples than that; the first ones."""
        return self._replace(train=self.train.first(count))


def _split(train, train_labels, test, test_labels, *, classes, natural):
    axes = (0, 1, 2)
    return Split(
        train=Examples(images=jnp.asarray(train), labels=jnp.asarray(train_labels)),
        test=Examples(images=jnp.asarray(test), labels=jnp.asarray(test_labels)),
        classes=classes,
        mean=train.mean(axes, dtype=np.float64).astype(np.float32),
        deviation=train.std(axes, dtype=np.float64).astype(np.float32),
        natural=natural,
    )


def digits() -> Split:
    """Return scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, a fifth held out.

    The split is the same for every seed of a run, so that seeds can be compared.
    """
    pixels, classes = load_digits(return_X_y=True)
    images = np.asarray(pixels, np.float32).reshape(-1, 8, 8, 1)
    labels = np.asarray(classes, np.int32)
    train, test = (
        np.asarray(rows)
        for rows in train_test_split(
            np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
        )
    )
    return _split(
        images[train],
        labels[train],
        images[test],
        labels[test],
        classes=10,
        natural=False,
    )


def _cifar(name: str, classes: int) -> Callable[[Path], Split]:
    return lambda directory: _split(
        *cifar.load(name, directory), classes=classes, natural=True
    )


# From the folder of `--data` to the split; all but the digits are files there.
DATASETS: dict[str, Callable[[Path], Split]] = {
    "digits": lambda _: digits(),
    "fashion_mnist": lambda directory: _split(
        *fashion_mnist.load(directory), classes=10, natural=False
    ),
    "cifar10": _cifar("cifar10", 10),
    "cifar100": _cifar("cifar100", 100),
}


def batches(seed: int, epoch: int, count: int, batch_size: int) -> np.ndarray:
    """Draw which examples make up each batch of an epoch.

    Args:
        seed: The seed of the run.
        epoch: Which epoch it is: each can be drawn without those before it.
        count: The number of training examples.
        batch_size: The size of a batch. Every epoch leaves out the few examples that
            do not fill one, others each time, so that all batches have one shape.

    Returns:
        Indices of shape (steps, batch_size).
    """
    order = np.random.default_rng((seed, epoch)).permutation(count).astype(np.int32)
    steps = count // batch_size
    return order[: steps * batch_size].reshape(steps, batch_size)


def augmented(key: jax.Array, images: jax.Array) -> jax.Array:
    """Photographs mirrored by a coin and shifted by up to four pixels.

    That is the augmentation of the PyTorch examples on which the paper says it is
    based: a random crop of the image in a black frame of four pixels, and a random
    horizontal flip.
    """
    mirror, shift = jax.random.split(key)
    flipped = jax.random.bernoulli(mirror, shape=(len(images), 1, 1, 1))
    images = jnp.where(flipped, images[:, :, ::-1], images)
    framed = jnp.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    corners = jax.random.randint(shift, (len(images), 2), 0, 9)

    def crop(image, corner):
        start = (corner[0], corner[1], jnp.zeros_like(corner[0]))
        return jax.lax.dynamic_slice(image, start, images.shape[1:])

    return jax.vmap(crop)(framed, corners)
