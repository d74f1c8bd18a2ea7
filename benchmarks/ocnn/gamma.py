"""The weight γ that makes a short training of a small network as sparse as the paper's.

A proximal step shrinks an entry by ηγ, so that a training takes γ·Ση from each entry,
and what counts is that over the size of an entry. The kernel n×p with orthonormal
columns has entries of size 1/√n, and all kernels together √(columns/entries). The paper
has γ = 1e-5, VGG-19, 100 epochs of 390 steps and the rate η₀/(0.1k + 1) in epoch k.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.shared.methods.leaves import constrained, matrix
from benchmarks.shared.vgg import IMAGE, VGG, VGG_MASK

PAPER_GAMMA, PAPER_EPOCHS, PAPER_STEPS = 1e-5, 100, 390


class Shrinking(NamedTuple):
    """What an l1 term takes from an entry in a training.

    Attributes:
        gamma: The weight γ.
        steps: The steps of an epoch.
        epochs: How many there are.
        entry: The typical size of an entry of a constrained kernel.
    """

    gamma: float
    steps: int
    epochs: int
    entry: float

    @property
    def rates(self) -> float:
        """Ση/η₀ by the paper's schedule."""
        return self.steps * sum(1 / (0.1 * k + 1) for k in range(self.epochs))

    @property
    def share(self) -> float:
        """γ·Ση/η₀ over the size of an entry."""
        return self.gamma * self.rates / self.entry

    def __str__(self) -> str:
        """The arithmetic in a line."""
        return (
            f"γ·Ση/η₀ = {self.gamma:.3g} × {self.steps} × Σ 1/(0.1k + 1) over "
            f"{self.epochs} epochs = {self.gamma * self.rates:.3g}, over an entry of "
            f"{self.entry:.3g}: {self.share:.3g}"
        )


def entry(model: VGG) -> float:
    """√(columns/entries) of the constrained kernels of a network, on the manifold."""

    def draw() -> Any:
        images = jnp.zeros((1, *IMAGE), jnp.float32)
        return model.init(jax.random.key(0), images)["params"]

    params = jax.eval_shape(draw)
    leaves = zip(jax.tree.leaves(params), constrained(params, VGG_MASK), strict=True)
    shapes = [jax.eval_shape(matrix, leaf).shape for leaf, chosen in leaves if chosen]
    return math.sqrt(sum(p for _, p in shapes) / sum(n * p for n, p in shapes))


def paper() -> Shrinking:
    """The paper's own training."""
    return Shrinking(
        gamma=PAPER_GAMMA,
        steps=PAPER_STEPS,
        epochs=PAPER_EPOCHS,
        entry=entry(VGG(19, 1.0)),
    )


def scaled(model: VGG, steps: int, epochs: int) -> Shrinking:
    """A training of a network in which an entry loses the same share; γ has two digits.

    Args:
        model: The network.
        steps: The steps of an epoch.
        epochs: How many there are.
    """
    own = Shrinking(gamma=1.0, steps=steps, epochs=epochs, entry=entry(model))
    gamma = float(f"{paper().share / own.share:.2g}")
    return own._replace(gamma=gamma)


def in_words(own: Shrinking) -> str:
    """The arithmetic of both, for the report."""
    return (
        "γ is scaled so that it takes the same share of a typical entry as in the "
        f"paper. In the paper’s VGG-19: {paper()}. Here: {own}. The rates η₀ are those "
        "of each method’s search."
    )
