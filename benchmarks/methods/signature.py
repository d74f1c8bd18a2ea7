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
        regularizer: The nonsmooth term γr of the objective φ + γr.
        schedule: From a method's own initial learning rate to its value at each step.
    """

    mask: Any
    regularizer: cdx.prox.Regularizer
    schedule: Callable[[float], optax.Schedule]


class Method(NamedTuple):
    """An optimiser, and the gradient it expects.

    Attributes:
        transform: The Optax transformation that turns that gradient into an update.
        point: From the parameters to where the gradient is taken.
        differentiates_regularizer: Whether the gradient is one of φ + γr, by a
            subgradient of r, or of φ alone.
        minimises: The problem and the treatment of r, in a few words for a table.
        settings: The hyper-parameters, for the record.
    """

    transform: optax.GradientTransformationExtraArgs
    point: Callable[[Params], Params]
    differentiates_regularizer: bool
    minimises: str
    settings: Mapping[str, float]
