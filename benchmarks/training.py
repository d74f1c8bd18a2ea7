"""One training run: compile the step, take the steps, time them, measure each epoch."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import cdopt_jax as cdx
from benchmarks.data import Examples, Split
from benchmarks.methods import Method, Params, Task

# The paper's threshold for an entry to count as zero.
ZERO = 1e-5


class Record(NamedTuple):
    """The state of a run after an epoch; epoch 0 is the start.

    Attributes:
        epoch: How many passes over the training examples came before.
        test_accuracy: The share of held-out examples classified correctly.
        train_loss: φ, the mean cross-entropy over all training examples.
        objective: φ + γr.
        sparsity: The share of kernel entries that are zero to within `ZERO`.
        exact_zeros: The share that are zero.
        feasibility: The largest ‖XᵀX − I‖_F among the kernels the task constrains.
    """

    epoch: int
    test_accuracy: float
    train_loss: float
    objective: float
    sparsity: float
    exact_zeros: float
    feasibility: float


class Run(NamedTuple):
    """The outcome of training with one method.

    Attributes:
        method: What was trained with.
        records: One per epoch, and one before the first.
        compile_seconds: How long the step took to trace and compile.
        step_seconds: The median time of a step once compiled.
    """

    method: Method
    records: list[Record]
    compile_seconds: float
    step_seconds: float


class Trainer:
    """Trains one model on one data set, from one start, in one order of batches.

    Args:
        model: Maps a batch of images to logits.
        task: The constraint and the regulariser.
        split: The data.
        order: Which examples make up each batch; see `benchmarks.data.batch_order`.
    """

    def __init__(self, model: nn.Module, task: Task, split: Split, order: np.ndarray):
        self.model = model
        self.task = task
        self.split = split
        self.order = order
        # One function for all methods: compiled once, and outside the timed steps.
        self._measure = jax.jit(self._measurements)

    def start(self, key: jax.Array) -> Params:
        """Draw initial parameters that satisfy the constraint."""
        # Compiled as a whole: operation by operation it takes several times as long.
        params = jax.jit(self.model.init)(key, self.split.train.images[:1])["params"]
        return cdx.project(params, self.task.mask)

    def train(
        self,
        method: Method,
        params: Params,
        on_epoch: Callable[[Record], None],
    ) -> Run:
        """Train from the given parameters.

        Args:
            method: What to train with.
            params: Where to start.
            on_epoch: Called with each epoch's record, to show progress.
        """
        train = self.split.train
        state = method.transform.init(params)
        began = time.perf_counter()
        step = jax.jit(self._step(method))
        step = step.lower(params, state, train, self.order[0, 0]).compile()
        compile_seconds = time.perf_counter() - began

        records = [self._record(0, params)]
        seconds = []
        for epoch, batches in enumerate(self.order, start=1):
            for rows in batches:
                began = time.perf_counter()
                params, state = jax.block_until_ready(step(params, state, train, rows))
                seconds.append(time.perf_counter() - began)
            records.append(self._record(epoch, params))
            on_epoch(records[-1])
        return Run(method, records, compile_seconds, float(np.median(seconds)))

    def _step(self, method: Method):
        def objective(params, images, labels):
            value = self._loss(params, Examples(images, labels))
            if method.differentiates_regularizer:
                value += self.task.regularizer.value(params)
            return value

        def step(params, state, train, rows):
            grads = jax.grad(objective)(
                method.point(params), train.images[rows], train.labels[rows]
            )
            updates, state = method.transform.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        return step

    def _logits(self, params: Params, images: jax.Array) -> jax.Array:
        return jnp.asarray(self.model.apply({"params": params}, images))

    def _loss(self, params: Params, examples: Examples) -> jax.Array:
        logits = self._logits(params, examples.images)
        return optax.softmax_cross_entropy_with_integer_labels(
            logits, examples.labels
        ).mean()

    def _record(self, epoch: int, params: Params) -> Record:
        measured = self._measure(params, self.split.train, self.split.test)
        return Record(epoch, **{name: float(x) for name, x in measured.items()})

    def _measurements(
        self, params: Params, train: Examples, test: Examples
    ) -> Mapping[str, jax.Array]:
        loss = self._loss(params, train)
        hits = self._logits(params, test.images).argmax(-1) == test.labels
        # Biases start at zero and would count as sparse without any doing.
        kernels = [x.ravel() for x in jax.tree.leaves(params) if x.ndim > 1]
        entries = jnp.abs(jnp.concatenate(kernels))
        residuals = cdx.feasibility(params, self.task.mask)
        return {
            "test_accuracy": hits.mean(),
            "train_loss": loss,
            "objective": loss + self.task.regularizer.value(params),
            "sparsity": (entries < ZERO).mean(),
            "exact_zeros": (entries == 0).mean(),
            "feasibility": jnp.stack(list(residuals.values())).max(),
        }
