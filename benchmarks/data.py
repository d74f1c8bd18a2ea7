"""Data sets: each a function of no arguments that returns a `Split`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Examples(NamedTuple):
    """Images with their classes.

    Attributes:
        images: Of shape (count, height, width, channels), float32.
        labels: Of shape (count,), int32.
    """

    images: jax.Array
    labels: jax.Array


class Split(NamedTuple):
    """What a model is trained on and what it is judged by.

    Attributes:
        train: The training examples.
        test: The held-out examples.
        classes: How many classes there are.
    """

    train: Examples
    test: Examples
    classes: int


def digits() -> Split:
    """Return scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, a fifth held out.

    The split is the same for every seed of a run, so that seeds can be compared.
    """
    pixels, classes = load_digits(return_X_y=True)
    # Pixels are counts from 0 to 16.
    images = np.asarray(pixels, np.float32).reshape(-1, 8, 8, 1) / 16
    labels = np.asarray(classes, np.int32)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
    )
    mean = images[np.asarray(train)].mean()

    def examples(chosen: ArrayLike) -> Examples:
        rows = np.asarray(chosen)
        return Examples(jnp.asarray(images[rows] - mean), jnp.asarray(labels[rows]))

    return Split(examples(train), examples(test), classes=10)


def batch_order(seed: int, count: int, *, epochs: int, batch_size: int) -> np.ndarray:
    """Draw which examples make up each batch.

    Args:
        seed: The seed of the draw.
        count: The number of training examples.
        epochs: How many times to pass over them.
        batch_size: The size of a batch. Every epoch leaves out the few examples that
            do not fill one, others each time, so that all batches have one shape.

    Returns:
        Indices of shape (epochs, steps, batch_size).
    """
    rng = np.random.default_rng(seed)
    order = np.stack([rng.permutation(count) for _ in range(epochs)]).astype(np.int32)
    steps = count // batch_size
    return order[:, : steps * batch_size].reshape(epochs, steps, batch_size)
