"""Training with one method: compile its programs, take the steps and time them."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import optax

import cdopt_jax as cdx
from benchmarks.ocnn.measuring import cross_entropy
from benchmarks.shared.data import Split, augmented, batches
from benchmarks.shared.methods import Method, Task
from benchmarks.shared.timing import Program, compiled, timed


def drawing(
    model: nn.Module, task: Task, split: Split
) -> Callable[[jax.Array], tuple[Any, Any]]:
    """A program from a key to parameters on the manifold, and initial statistics."""

    # Compiled as a whole: operation by operation it takes several times as long.
    @jax.jit
    def draw(key):
        images = split.normalised(split.train.images[:1])
        variables = dict(model.init(key, images))
        return cdx.project(variables.pop("params"), task.mask), variables

    return draw


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
    """Trains a model with one method; its programs serve all seeds.

    Args:
        model: Maps a batch of images to logits.
        task: The constraint and the regulariser.
        split: The data.
        batch_size: The examples of a step.
        method: What takes the steps.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        split: Split,
        batch_size: int,
        method: Method,
    ):
        self.model = model
        self.task = task
        self.split = split
        self.batch_size = batch_size
        self.method = method
        # Where the gradients are taken.
        self.point = jax.jit(method.point)
        self._init = jax.jit(method.transform.init)

    @property
    def steps(self) -> int:
        """How many there are in an epoch."""
        return len(self.split.train.labels) // self.batch_size

    def start(self, params: Any, stats: Any) -> State:
        """The state before the first step."""
        return State(params=params, stats=stats, optimizer=self._init(params))

    @cached_property
    def step(self) -> Program:
        """From a state, the examples, the rows of a batch and a key to a state.

        It is compiled when it is first asked for.
        """
        train, key = self.split.train, jax.random.key(0)
        rows = batches(0, 1, len(train.labels), self.batch_size)[0]
        draw = drawing(self.model, self.task, self.split)
        state = jax.eval_shape(lambda key: self.start(*draw(key)), key)
        return compiled(self._step, state, train, rows, key, donate=0)

    def epoch(self, state: State, seed: int, epoch: int) -> tuple[State, list[float]]:
        """The state after a pass over the examples, and the seconds of each step.

        Args:
            state: The state before; its arrays are given up.
            seed: Of the order of examples and their augmentation.
            epoch: Which pass it is.
        """
        program, train = self.step.call, self.split.train
        keys = jax.random.fold_in(jax.random.key(seed), epoch)
        seconds = []
        order = batches(seed, epoch, len(train.labels), self.batch_size)
        for rows, key in zip(order, jax.random.split(keys, len(order)), strict=True):
            state, took = timed(program, state, train, rows, key)
            seconds.append(took)
        return state, seconds

    def _objective(self, params, stats, images, labels):
        variables = {"params": params, **stats}
        logits, new = self.model.apply(
            variables, images, train=True, mutable=list(stats)
        )
        value = cross_entropy(logits, labels).mean()
        if self.method.differentiates_regularizer:
            value += self.task.regularizer.value(params)
        return value, new

    def _step(self, state, train, rows, key):
        images = train.images[rows]
        if self.split.natural:
            images = augmented(key, images)
        images = self.split.normalised(images)
        grads, stats = jax.grad(self._objective, has_aux=True)(
            self.method.point(state.params), state.stats, images, train.labels[rows]
        )
        updates, optimizer = self.method.transform.update(
            grads, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, updates)
        return State(params=params, stats=stats, optimizer=optimizer)
