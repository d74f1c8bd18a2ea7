"""What a task is: contenders with a model each, data, and a measure of the result."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import optax

import cdopt_jax as cdx
from benchmarks.muon.methods import METHODS, Fall


class Contender(NamedTuple):
    """A model with an optimiser.

    Attributes:
        label: Its name in tables and figures.
        start: From a key to the parameters.
        loss: From parameters and a batch to a number.
        optimiser: From the course of rates and the initial rate to the optimiser.
        mask: Which leaves are matrices with orthonormal columns, or should be; None
            where there are none.
    """

    label: str
    start: Callable[[jax.Array], Any]
    loss: Callable[[Any, Any], jax.Array]
    optimiser: Callable[[Fall, Any], optax.GradientTransformation]
    mask: Any


class Column(NamedTuple):
    """How a measure is shown.

    Attributes:
        title: Its name in tables.
        factor: To the unit that is shown.
        form: The format of the number.
        sign: 1 where more is better, −1 where less is.
    """

    title: str
    factor: float
    form: str
    sign: int


class Task(NamedTuple):
    """What all contenders are trained on.

    Attributes:
        about: The setting in a few sentences, for the report.
        contenders: By name.
        data: The arrays that batches are drawn from.
        steps: How many steps a run has.
        rates: The grid of initial learning rates.
        order: From a seed to one row of integers for each step.
        batch: From the data and such a row to a batch.
        measure: From a loss, the parameters and the data to what is reported.
        columns: How each measure is shown, the training loss before them.
    """

    about: str
    contenders: Mapping[str, Contender]
    data: Any
    steps: int
    rates: tuple[float, ...]
    order: Callable[[int], Any]
    batch: Callable[[Any, Any], Any]
    measure: Callable[[Contender, Any, Any], dict[str, jax.Array]]
    columns: Mapping[str, Column]

    def fall(self, rate: Any) -> optax.Schedule:
        """The rate falls linearly to zero."""
        return lambda count: rate * (1 - count / self.steps)


def every_method(
    start: Callable[[jax.Array], Any], loss: Callable[[Any, Any], Any], mask: Any
) -> dict[str, Contender]:
    """One model with each optimiser, all from the same point of the manifold."""

    def projected(key):
        return cdx.project(start(key), mask)

    def contender(method):
        return Contender(
            label=method.label,
            start=projected,
            loss=loss,
            optimiser=lambda fall, rate: method.make(fall, rate, mask),
            mask=mask,
        )

    return {name: contender(method) for name, method in METHODS.items()}
