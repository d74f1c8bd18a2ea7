"""The methods compared, ours and the rivals', under one name each.

`OPTIMISERS` are Optax's, `WRAPPERS` hold any of them to the manifold, and `METHODS` are
complete: the paper's algorithms, wrapped optimisers, and rivals that are steps of their
own. Tables and figures show the labels that are given here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax

import cdopt_jax as cdx
from benchmarks.shared.methods.dissolving import algorithm_2, on_h, ranger
from benchmarks.shared.methods.landing import landing
from benchmarks.shared.methods.leaves import descending, on_constrained
from benchmarks.shared.methods.optimisers import OPTIMISERS as OPTIMISERS
from benchmarks.shared.methods.penalties import (
    cubic,
    expen,
    expen_autodiff,
    soft_penalty,
)
from benchmarks.shared.methods.pogo import pogo
from benchmarks.shared.methods.proximal import r_proxsgd
from benchmarks.shared.methods.retraction import (
    cayley,
    descent,
    polar_gram,
    polar_svd,
    qr,
)
from benchmarks.shared.methods.signature import (
    Entry as Entry,
    Method as Method,
    Params as Params,
    Task as Task,
    itself,
)
from benchmarks.shared.methods.wrappers import WRAPPERS as WRAPPERS

_STIEFEL = "φ + γ‖w‖₁ on Stiefel"
_PROX = f"{_STIEFEL}, prox"
_SUBGRADIENT = f"{_STIEFEL}, subgradient"
_FREE = "φ + γ‖w‖₁ unconstrained, subgradient"


def _subgradient(
    label: str,
    optimiser: Callable[[Task, optax.Schedule], optax.GradientTransformation],
    learning_rate: float,
    *,
    point: Callable[[Task, Params], Params] = lambda _, params: params,
    minimises: str = _SUBGRADIENT,
) -> Entry:
    """A method on subgradients of φ + γr, at the parameters or at a point of theirs."""

    def make(task: Task, rate: float) -> Method:
        return Method(
            transform=optax.with_extra_args_support(
                optimiser(task, task.schedule(rate))
            ),
            point=partial(point, task),
            differentiates_regularizer=True,
            settings={"learning_rate": rate},
        )

    return Entry(
        make=make, label=label, minimises=minimises, learning_rate=learning_rate
    )


def _wrapped(
    label: str,
    wrapper: str,
    optimiser: str,
    learning_rate: float,
    minimises: str = _SUBGRADIENT,
) -> Entry:
    def make(task, schedule):
        return WRAPPERS[wrapper](OPTIMISERS[optimiser](schedule), task.mask)

    return _subgradient(label, make, learning_rate, minimises=minimises)


def _constrained_muon(task: Task, schedule: optax.Schedule) -> Any:
    """Muon on the matrices of the mask, Adam elsewhere, held to the manifold."""

    def numbers(params):
        return cdx.layers.muon_dimension_numbers(params, task.mask)

    muon = optax.contrib.muon(schedule, muon_weight_dimension_numbers=numbers)
    return cdx.constrain(muon, task.mask)


def _steps(
    label: str, step: Callable[..., jax.Array], minimises: str = _SUBGRADIENT
) -> Entry:
    def make(task, schedule):
        return descending(step, schedule, task.mask)

    return _subgradient(label, make, 0.5, minimises=minimises)


def _expen(label: str, step: Callable[..., jax.Array]) -> Entry:
    """ExPen takes its gradient at the cubic of the parameters."""

    def make(task, schedule):
        return descending(partial(step, beta=task.beta), schedule, task.mask)

    def cubed(task, params):
        return on_constrained(lambda x, _: cubic(x), task.mask, params, params)

    return _subgradient(label, make, 0.5, point=cubed)


def _on_h(label: str, optimiser: Callable[..., Any], learning_rate: float) -> Entry:
    return Entry(
        make=on_h(optimiser),
        label=label,
        minimises=_SUBGRADIENT,
        learning_rate=learning_rate,
    )


def _prox(
    label: str, make: Callable[[Task, float], Method], learning_rate: float
) -> Entry:
    return Entry(make=make, label=label, minimises=_PROX, learning_rate=learning_rate)


def _r_proxsgd(task: Task, rate: float) -> Method:
    return Method(
        transform=r_proxsgd(task.schedule(rate), task.gamma, task.mask),
        point=itself,
        differentiates_regularizer=False,
        settings={"learning_rate": rate, "tolerance": 1e-5},
    )


METHODS: dict[str, Entry] = {
    "algorithm-1": _on_h("Algorithm 1 (SGD on h)", OPTIMISERS["sgd"], 0.5),
    "algorithm-1-momentum": _on_h("Algorithm 1, momentum", OPTIMISERS["momentum"], 0.1),
    "algorithm-2": _prox("Algorithm 2", algorithm_2(tangential=False), 0.1),
    "algorithm-2-tangential": _prox(
        "Algorithm 2, tangential", algorithm_2(tangential=True), 0.5
    ),
    "algorithm-2-momentum": _prox(
        "Algorithm 2, tangential, momentum",
        algorithm_2(tangential=True, momentum=0.9),
        1.0,
    ),
    "ranger": _on_h("Ranger on h", ranger, 0.03),
    "yogi": _on_h("Yogi on h", OPTIMISERS["yogi"], 0.01),
    "constrain-sgd": _wrapped("constrain(sgd)", "constrain", "sgd", 0.5),
    "constrain-adam": _wrapped("constrain(adam)", "constrain", "adam", 0.01),
    "constrain-muon": _subgradient("constrain(muon)", _constrained_muon, 0.03),
    "r-sgd-polar": _steps("R-sgd, polar", descent(polar_svd)),
    "r-sgd-gram": _steps("R-sgd, polar by eigh", descent(polar_gram)),
    "r-sgd-qr": _steps("R-sgd, QR", descent(qr)),
    "r-proxsgd": _prox("R-proxsgd", _r_proxsgd, 0.5),
    "landing": _steps("landing", landing),
    "pogo": _steps("POGO", pogo),
    "soft-penalty": _steps(
        "soft penalty", soft_penalty, minimises="φ + γ‖w‖₁ + ‖XᵀX − I‖²/4"
    ),
    "expen": _expen("ExPen", expen),
    "sgd": _wrapped("SGD, unconstrained", "unconstrained", "sgd", 0.5, _FREE),
    "adam": _wrapped("Adam, unconstrained", "unconstrained", "adam", 0.01, _FREE),
    "keep-feasible": _wrapped("keep_feasible behind SGD", "keep_feasible", "sgd", 0.5),
    "restore-feasibility": _wrapped(
        "restore_feasibility behind SGD", "restore_feasibility", "sgd", 0.5
    ),
    "cayley": _steps("R-sgd, Cayley", cayley),
    "expen-autodiff": _expen("ExPen, autodiff", expen_autodiff),
}
"""Under the name by which options ask for it."""

# What the paper's experiment leaves out: parts of other methods, and the same steps
# computed in another way. They are compared by the cost of a step.
PARTS = ("keep-feasible", "restore-feasibility", "cayley", "expen-autodiff")
TRAINED = tuple(name for name in METHODS if name not in PARTS)
