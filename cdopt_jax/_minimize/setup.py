"""What a run is made of: what is static, its arrays, and the problem of both."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from cdopt_jax._leaves.structure import Structure
from cdopt_jax.prox import Regularizer

from .checks import scalar
from .coordinates import plain
from .method import Method
from .nonnegative import Columns
from .problem import Problem
from .static import Static

JUDGES = 16
"""How many batches judge an objective that is known by batches alone."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """All of a run that is not an array, and what identifies its programs.

    Attributes:
        f: The objective, which is identified by equality: a function defined again is
            another one.
        batch: From a key to the last argument of ``f``, or None.
        method: The method.
        structure: The structure of the parameters.
        args: The structure of the further arguments of ``f``.
        regularizer: The structure of the regularizer, or None.
        columns: The leaves with nonnegative orthonormal columns, or None.
    """

    f: Static
    batch: Callable[[Array], Any] | None
    method: Method
    structure: Structure
    args: Static
    regularizer: Static | None
    columns: Columns | None = None


class Data(NamedTuple):
    """The arrays of a run.

    Attributes:
        args: The arrays of the further arguments of ``f``.
        metrics: The metrics that are arrays.
        weights: The arrays of the regularizer.
        tol: The tolerance, relative to the scale of the objective.
        beta: The weight of the penalty, zero for the automatic one.
        strength: What r is multiplied by.
        key: For what is drawn; zero where nothing is.
        overlap: The weight of the overlap of nonnegative columns.
        allowed: Which entries of these columns may be nonzero.
    """

    args: list[Array]
    metrics: list[Array]
    weights: list[Array]
    tol: Array
    beta: Array
    strength: Array
    key: Array
    overlap: Array
    allowed: list[Array]


class Prepared(NamedTuple):
    """What is computed once from the data.

    Attributes:
        factors: The factor of each metric, or None.
        unit: The unit of the objective; see `Problem`.
        scale: The scale of the gradient at the start.
        tol: The relative tolerance of the steps, which may be stricter than that of the
            user.
    """

    factors: list[Array | None]
    unit: Array
    scale: Array
    tol: Array


def problem_of(setup: Setup, data: Data, prepared: Prepared | None) -> Problem:
    """The problem of a setup and its arrays."""
    args, structure = setup.args.merge(data.args), setup.structure
    if setup.columns is not None:
        structure = setup.columns.apart(structure)
    regularizer: Regularizer | None = None
    if setup.regularizer is not None:
        regularizer = setup.regularizer.merge(data.weights)

    def f(params):
        value = _value(setup, params, args)
        if setup.columns is None:
            return value
        return value + data.overlap * setup.columns.overlap(params)

    if setup.columns is not None and regularizer is not None:
        regularizer = setup.columns.restricted(regularizer, data.allowed)

    if setup.batch is not None:
        f = _mean_over_batches(setup, data, setup.batch)
    coordinates = plain(structure, data.metrics)
    if prepared is not None:
        coordinates = coordinates._replace(factors=prepared.factors)
    return Problem(
        f=f,
        regularizer=regularizer,
        coordinates=coordinates,
        unit=prepared.unit if prepared else 1.0,
        strength=data.strength,
        beta=data.beta,
    )


def own_feasibility(setup: Setup, data: Data, params: optax.Params) -> Array:
    """The largest ‖xᵀBx − I‖_F of parameters, with B and the columns of the mask."""
    own = plain(setup.structure, data.metrics)
    return own.manifold.feasibility(own.read(params))


def on_batch(setup: Setup, data: Data, batch: Any) -> Callable[[Any], Array]:
    """The objective on one batch."""
    args = setup.args.merge(data.args)
    return lambda params: _value(setup, params, (*args, batch))


def _value(setup, params, args):
    """The value of f, in the dtype of the parameters."""
    return scalar(setup.f.merge([])(params, *args)).astype(setup.structure.dtype)


def _mean_over_batches(setup, data, batch):
    """The objective averaged over batches that are the same throughout the run."""
    keys = jax.random.split(jax.random.fold_in(data.key, 1), JUDGES)
    batches = jax.vmap(batch)(keys)

    def value(params):
        return jnp.mean(
            lax.map(lambda one: on_batch(setup, data, one)(params), batches)
        )

    return value
