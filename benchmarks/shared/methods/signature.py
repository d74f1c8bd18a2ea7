"""What every method is given and what it gives back."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import optax

import cdopt_jax as cdx

# A Flax tree of parameters.
Params = dict[str, Any]


class Task(NamedTuple):
    """What the methods have in common.

    Attributes:
        mask: Which parameters the constrained methods constrain.
        gamma: The weight γ of the l1 norm r in the objective φ + γr.
        beta: The weight β of the penalty in the dissolving function h.
        schedule: From an initial learning rate to its value at each step.
    """

    mask: Any
    gamma: float
    beta: float
    schedule: Callable[[float], optax.Schedule]

    @property
    def regularizer(self) -> cdx.prox.Regularizer:
        """The term γr."""
        return cdx.prox.l1(self.gamma)

    def dissolved(self, params: Params) -> Params:
        """A of the constrained parameters, and the others as they are."""
        return cdx.dissolve(params, self.mask)


class Method(NamedTuple):
    """An optimiser, and the gradient it expects.

    Attributes:
        transform: The Optax transformation that turns that gradient into an update.
        point: From the parameters to where the gradient is taken, and the network is
            to be used.
        differentiates_regularizer: Whether the gradient is one of φ + γr, by a
            subgradient of r, or of φ alone.
        settings: The hyper-parameters, for the record.
    """

    transform: optax.GradientTransformationExtraArgs
    point: Callable[[Params], Params]
    differentiates_regularizer: bool
    settings: Mapping[str, float]


class Entry(NamedTuple):
    """A method in the list.

    Attributes:
        make: From the task and the initial learning rate to the method.
        label: Its name in tables and figures.
        minimises: The problem and the treatment of r, in a few words.
        learning_rate: The initial learning rate if none is given, chosen on the digits.
    """

    make: Callable[[Task, float], Method]
    label: str
    minimises: str
    learning_rate: float


def itself(params: Params) -> Params:
    """The point of methods that take the gradient at the parameters."""
    return params
