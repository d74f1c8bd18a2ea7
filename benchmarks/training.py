"""One training run: compile the step, take the steps, time them, measure each epoch."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import cdopt_jax as cdx
from benchmarks.data import Examples, Split, augmented, batches
from benchmarks.methods import Method, Task

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


class State(NamedTuple):
    """What a step changes.

    Attributes:
        params: The trainable parameters.
        stats: The running statistics of normalisation layers.
        optimizer: The optimiser's state.
    """

    params: Any
    stats: Any
    optimizer: Any


class Trainer:
    """Trains one model on one data set with one seed.

    Args:
        model: Maps a batch of images to logits.
        task: The constraint and the regulariser.
        split: The data.
        batch_size: The examples of a step.
        seed: Of the start, the order of examples and their augmentation.
    """

    def __init__(
        self, model: nn.Module, task: Task, split: Split, batch_size: int, seed: int
    ):
        self.model = model
        self.task = task
        self.split = split
        self.batch_size = batch_size
        self.seed = seed
        # Compiled once for all methods, and outside the timed steps.
        self._judge = jax.jit(self._judgement)
        self._look = jax.jit(self._geometry)

    @property
    def steps(self) -> int:
        """How many there are in an epoch."""
        return len(self.split.train.labels) // self.batch_size

    def start(self, method: Method) -> State:
        """Initial parameters that satisfy the constraint, the same for all methods."""

        # Compiled as a whole: operation by operation it takes several times as long.
        @jax.jit
        def draw(key, images):
            variables = dict(self.model.init(key, self.split.normalised(images)))
            params = cdx.project(variables.pop("params"), self.task.mask)
            return State(params, variables, method.transform.init(params))

        return draw(jax.random.key(self.seed), self.split.train.images[:1])

    def compile(
        self, method: Method, state: State
    ) -> tuple[Callable[..., State], float]:
        """The program of a step, and the seconds that it took to make it."""
        rows = batches(self.seed, 1, len(self.split.train.labels), self.batch_size)[0]
        began = time.perf_counter()
        step = jax.jit(self._step(method), donate_argnums=0)
        step = step.lower(state, self.split.train, rows, jax.random.key(0)).compile()
        return step, time.perf_counter() - began

    def epoch(
        self, step: Callable[..., State], state: State, epoch: int
    ) -> tuple[State, list[float]]:
        """The state after a pass over the examples, and the seconds of each step."""
        train = self.split.train
        keys = jax.random.fold_in(jax.random.key(self.seed), epoch)
        seconds = []
        order = batches(self.seed, epoch, len(train.labels), self.batch_size)
        for rows, key in zip(order, jax.random.split(keys, len(order)), strict=True):
            began = time.perf_counter()
            state = jax.block_until_ready(step(state, train, rows, key))
            seconds.append(time.perf_counter() - began)
        return state, seconds

    def record(
        self,
        method: Method,
        state: State,
        epoch: int,
        before: float,
        taken: list[float],
    ) -> Record:
        """What there is to say after an epoch.

        Args:
            method: What is trained with.
            state: Where it stands.
            epoch: After which epoch.
            before: The seconds of the epochs before.
            taken: Those of each step of this one.
        """
        point = jax.jit(method.point)(state.params)
        sample = Examples(*(part[:SAMPLE] for part in self.split.train))
        loss, _ = self._over(point, state.stats, sample)
        _, accuracy = self._over(point, state.stats, self.split.test)
        looks = {name: float(x) for name, x in self._look(state.params).items()}
        return Record(
            epoch,
            accuracy,
            loss,
            loss + looks.pop("regularizer"),
            seconds=before + sum(taken),
            step_seconds=float(np.median(taken)) if taken else 0.0,
            **looks,
        )

    def _over(self, params, stats, examples):
        """The mean loss and accuracy over some examples, a part at a time."""
        count = len(examples.labels)
        size = count if count <= SAMPLE else CHUNK
        parts = [
            self._judge(params, stats, *(part[i : i + size] for part in examples))
            for i in range(0, count, size)
        ]
        return tuple(float(sum(column)) / count for column in zip(*parts, strict=True))

    def _step(self, method: Method):
        def objective(params, stats, images, labels):
            variables = {"params": params, **stats}
            logits, new = self.model.apply(
                variables, images, train=True, mutable=list(stats)
            )
            value = _cross_entropy(logits, labels).mean()
            if method.differentiates_regularizer:
                value += self.task.regularizer.value(params)
            return value, new

        def step(state, train, rows, key):
            images = train.images[rows]
            if self.split.natural:
                images = augmented(key, images)
            images = self.split.normalised(images)
            point = method.point(state.params)
            grads, stats = jax.grad(objective, has_aux=True)(
                point, state.stats, images, train.labels[rows]
            )
            updates, optimizer = method.transform.update(
                grads, state.optimizer, state.params
            )
            params = optax.apply_updates(state.params, updates)
            return State(params, stats, optimizer)

        return step

    def _judgement(self, params, stats, images, labels):
        """The sum of the losses, and the number of hits."""
        variables = {"params": params, **stats}
        logits = self.model.apply(variables, self.split.normalised(images))
        hits = jnp.asarray(logits).argmax(-1) == labels
        return _cross_entropy(logits, labels).sum(), hits.sum()

    def _geometry(self, params):
        entries = jnp.concatenate([jnp.abs(x).ravel() for x in jax.tree.leaves(params)])
        return {
            "regularizer": self.task.regularizer.value(params),
            "sparsity": (entries < ZERO).mean(),
            "exact_zeros": (entries == 0).mean(),
            "feasibility": self._farthest(params),
            "dissolved": self._farthest(self.task.dissolved(params)),
        }

    def _farthest(self, params):
        residuals = cdx.feasibility(params, self.task.mask)
        return jnp.stack(list(residuals.values())).max()


def _cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
