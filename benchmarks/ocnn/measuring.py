"""What is written down after each epoch of a training run."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import cdopt_jax as cdx
from benchmarks.shared.data import Split
from benchmarks.shared.methods import Params, Task

# The paper's threshold for an entry to count as zero.
ZERO = 1e-5
# The training loss is taken over no more examples than that, the first ones.
SAMPLE = 2000
CHUNK = 1000


class Record(NamedTuple):
    """The state of a run after an epoch; epoch 0 is the start.

    Attributes:
        epoch: How many passes over the training examples came before.
        test_accuracy: The share of held-out examples classified correctly, by the
            network at the point where the method takes its gradients.
        train_loss: φ there, the mean cross-entropy over the first training examples.
        objective: φ + γr.
        sparsity: The share of trainable entries that are zero to within `ZERO`.
        exact_zeros: The share that are zero.
        feasibility: The largest ‖XᵀX − I‖_F among the kernels the task constrains.
        dissolved: The largest ‖A(X)ᵀA(X) − I‖_F.
        seconds: What the training steps took so far, without compilation.
        step_seconds: The median time of a step in this epoch.
    """

    epoch: int
    test_accuracy: float
    train_loss: float
    objective: float
    sparsity: float
    exact_zeros: float
    feasibility: float
    dissolved: float
    seconds: float
    step_seconds: float


class Judge:
    """Measures a model on one data set; its programs serve all methods and seeds.

    Args:
        model: Maps a batch of images to logits.
        task: The constraint and the regulariser.
        split: The data.
    """

    def __init__(self, model: nn.Module, task: Task, split: Split):
        self._model = model
        self._task = task
        self._split = split
        self._judge = jax.jit(self._judgement)
        self._look = jax.jit(self._geometry)

    def __call__(
        self, params: Params, point: Params, stats: Params
    ) -> dict[str, float]:
        """The fields of a `Record` that do not depend on time.

        Args:
            params: The parameters.
            point: Where the method takes its gradients.
            stats: The running statistics of normalisation layers.
        """
        sample = self._split.train.first(SAMPLE)
        loss, _ = self._over(point, stats, sample)
        _, accuracy = self._over(point, stats, self._split.test)
        looks = {name: float(x) for name, x in self._look(params).items()}
        objective = loss + looks.pop("regularizer")
        return {
            "test_accuracy": accuracy,
            "train_loss": loss,
            "objective": objective,
            **looks,
        }

    def _over(self, params, stats, examples):
        """The mean loss and accuracy over some examples, a part at a time."""
        count = len(examples.labels)
        size = count if count <= SAMPLE else CHUNK
        parts = [
            self._judge(params, stats, *(part[i : i + size] for part in examples))
            for i in range(0, count, size)
        ]
        return tuple(float(sum(column)) / count for column in zip(*parts, strict=True))

    def _judgement(self, params, stats, images, labels):
        """The sum of the losses, and the number of hits."""
        variables = {"params": params, **stats}
        logits = jnp.asarray(
            self._model.apply(variables, self._split.normalised(images))
        )
        hits = logits.argmax(-1) == labels
        return cross_entropy(logits, labels).sum(), hits.sum()

    def _geometry(self, params):
        entries = jnp.concatenate([jnp.abs(x).ravel() for x in jax.tree.leaves(params)])
        return {
            "regularizer": self._task.regularizer.value(params),
            "sparsity": (entries < ZERO).mean(),
            "exact_zeros": (entries == 0).mean(),
            "feasibility": self._farthest(params),
            "dissolved": self._farthest(self._task.dissolved(params)),
        }

    def _farthest(self, params):
        residuals = cdx.feasibility(params, self._task.mask)
        return jnp.stack(list(residuals.values())).max()


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """That of each example."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
