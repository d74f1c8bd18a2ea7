"""The methods compared, found by name."""

from collections.abc import Callable
from functools import partial

import jax
import optax

import cdopt_jax as cdx
from benchmarks.shared.methods import dissolving
from benchmarks.shared.methods.landing import landing
from benchmarks.shared.methods.leaves import descending, on_constrained
from benchmarks.shared.methods.penalties import cubic, expen, soft_penalty
from benchmarks.shared.methods.pogo import pogo
from benchmarks.shared.methods.proximal import r_proxsgd
from benchmarks.shared.methods.retraction import descent, polar_gram, polar_svd, qr
from benchmarks.shared.methods.signature import (
    Entry as Entry,
    Method as Method,
    Params as Params,
    Task as Task,
    itself,
)

Make = Callable[[Task, float], Method]

_STIEFEL = "φ + γ‖w‖₁ on Stiefel"
_PROX = f"{_STIEFEL}, prox"
_SUBGRADIENT = f"{_STIEFEL}, subgradient"
_FREE = "φ + γ‖w‖₁ unconstrained, subgradient"


def _subgradient(
    optimiser: Callable[[Task, optax.Schedule], optax.GradientTransformation],
    point: Callable[[Task, Params], Params] = lambda _, params: params,
) -> Make:
    """A method on subgradients of φ + γr, at the parameters if nothing else is said."""

    def make(task: Task, rate: float) -> Method:
        return Method(
            optax.with_extra_args_support(optimiser(task, task.schedule(rate))),
            partial(point, task),
            differentiates_regularizer=True,
            settings={"learning_rate": rate},
        )

    return make


def _steps(step: Callable[..., jax.Array]) -> Make:
    return _subgradient(lambda task, rate: descending(step, rate, task.mask))


def _cubed(task: Task, params: Params) -> Params:
    """The point at which ExPen takes the gradient."""
    return on_constrained(lambda x, _: cubic(x), task.mask, params, params)


def _expen(task: Task, schedule: optax.Schedule) -> optax.GradientTransformation:
    def step(x, g, rate):
        return expen(x, g, rate, beta=task.beta)

    return descending(step, schedule, task.mask)


def _r_proxsgd(task: Task, rate: float) -> Method:
    return Method(
        r_proxsgd(task.schedule(rate), task.gamma, task.mask),
        itself,
        differentiates_regularizer=False,
        settings={"learning_rate": rate, "tolerance": 1e-5},
    )


METHODS: dict[str, Entry] = {
    "algorithm-1": Entry(
        dissolving.algorithm_1, "Algorithm 1 (SGD on h)", _SUBGRADIENT, 0.5
    ),
    "algorithm-1-momentum": Entry(
        dissolving.algorithm_1_momentum,
        "Algorithm 1, momentum",
        _SUBGRADIENT,
        0.1,
    ),
    "algorithm-2": Entry(dissolving.algorithm_2, "Algorithm 2", _PROX, 0.1),
    "algorithm-2-tangential": Entry(
        dissolving.algorithm_2_tangential, "Algorithm 2, tangential", _PROX, 0.5
    ),
    "algorithm-2-momentum": Entry(
        dissolving.algorithm_2_momentum,
        "Algorithm 2, tangential, momentum",
        _PROX,
        1.0,
    ),
    "ranger": Entry(dissolving.ranger, "Ranger on h", _SUBGRADIENT, 0.03),
    "yogi": Entry(dissolving.yogi, "Yogi on h", _SUBGRADIENT, 0.01),
    "constrain-sgd": Entry(
        _subgradient(lambda task, rate: cdx.constrain(optax.sgd(rate), task.mask)),
        "constrain(sgd)",
        _SUBGRADIENT,
        0.5,
    ),
    "constrain-adam": Entry(
        _subgradient(lambda task, rate: cdx.constrain(optax.adam(rate), task.mask)),
        "constrain(adam)",
        _SUBGRADIENT,
        0.01,
    ),
    "r-sgd-polar": Entry(_steps(descent(polar_svd)), "R-sgd, polar", _SUBGRADIENT, 0.5),
    "r-sgd-gram": Entry(
        _steps(descent(polar_gram)), "R-sgd, polar by eigh", _SUBGRADIENT, 0.5
    ),
    "r-sgd-qr": Entry(_steps(descent(qr)), "R-sgd, QR", _SUBGRADIENT, 0.5),
    "r-proxsgd": Entry(_r_proxsgd, "R-proxsgd", _PROX, 0.5),
    "landing": Entry(_steps(landing), "landing", _SUBGRADIENT, 0.5),
    "pogo": Entry(_steps(pogo), "POGO", _SUBGRADIENT, 0.5),
    "soft-penalty": Entry(
        _steps(soft_penalty), "soft penalty", "φ + γ‖w‖₁ + ‖XᵀX − I‖²/4", 0.5
    ),
    "expen": Entry(_subgradient(_expen, _cubed), "ExPen", _SUBGRADIENT, 0.5),
    "sgd": Entry(
        _subgradient(lambda _, rate: optax.sgd(rate)), "SGD, unconstrained", _FREE, 0.5
    ),
    "adam": Entry(
        _subgradient(lambda _, rate: optax.adam(rate)),
        "Adam, unconstrained",
        _FREE,
        0.01,
    ),
}
