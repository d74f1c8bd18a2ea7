"""The network of "Modular manifolds": CIFAR-10 by three layers without biases."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cdopt_jax as cdx
from benchmarks.muon.methods import SHARED
from benchmarks.muon.task import Column, Contender, Task, every_method
from benchmarks.shared.data import Split, batches

RATES = (1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3)


def start(key: jax.Array, widths: Sequence[int]) -> dict[str, jax.Array]:
    """Kernels (inputs, outputs) with independent normal entries."""
    pairs = list(pairwise(widths))
    keys = jax.random.split(key, len(pairs))
    return {
        f"layer_{i}": jax.random.normal(key, pair)
        for i, (key, pair) in enumerate(zip(keys, pairs, strict=True))
    }


def logits(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The outputs of the network for rows of pixels."""
    *hidden, last = params.values()
    for kernel in hidden:
        x = jax.nn.relu(x @ kernel)
    return x @ last


def loss(params: dict[str, jax.Array], batch: tuple[jax.Array, jax.Array]):
    """The mean cross-entropy."""
    x, labels = batch
    terms = optax.softmax_cross_entropy_with_integer_labels(logits(params, x), labels)
    return jnp.mean(terms)


def make(
    name: str,
    split: Split,
    *,
    hidden: Sequence[int] = (128, 64),
    batch_size: int = 1024,
    epochs: int = 5,
    rates: tuple[float, ...] = RATES,
) -> Task:
    """The task on a data set of images with that name."""

    def rows(images):
        return split.normalised(images).reshape(len(images), -1)

    def batch(data, chosen):
        train, _ = data
        return rows(train.images[chosen]), train.labels[chosen]

    def accuracy(params, examples):
        # In parts, since all images at once in float32 take as much as 600 MB.
        def part(chosen):
            found = jnp.argmax(logits(params, rows(examples.images[chosen])), axis=-1)
            return found == examples.labels[chosen]

        count = len(examples.labels)
        return jnp.mean(jax.lax.map(part, jnp.arange(count).reshape(10, -1)))

    def measure(contender: Contender, params, data):
        del contender
        train, test = (
            examples.first(len(examples.labels) // 10 * 10) for examples in data
        )
        return {"test": accuracy(params, test), "train": accuracy(params, train)}

    def order(seed):
        count = len(split.train.labels)
        each = [batches(seed, e, count, batch_size) for e in range(epochs)]
        return np.concatenate(each)

    widths = (int(np.prod(split.train.images.shape[1:])), *hidden, split.classes)
    mask = cdx.where("layer_*")
    sizes = "-".join(map(str, widths))
    return Task(
        about=f"A network {sizes} without biases on {name}, batches of {batch_size}, "
        f"{epochs} epochs. All layers are constrained. {SHARED}",
        contenders=every_method(partial(start, widths=widths), loss, mask),
        data=(split.train, split.test),
        steps=epochs * (len(split.train.labels) // batch_size),
        rates=rates,
        order=order,
        batch=batch,
        measure=measure,
        columns={
            "test": Column("test accuracy, %", 100, ".2f", 1),
            "train": Column("training accuracy, %", 100, ".2f", 1),
        },
    )
