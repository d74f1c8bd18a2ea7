"""Optax optimisers by name, each a function of its learning rate."""

from collections.abc import Callable, Mapping
from typing import Any

import optax


def _muon(rate):
    matrices = optax.contrib.MuonDimensionNumbers(-2, -1)
    return optax.contrib.muon(rate, muon_weight_dimension_numbers=matrices)


OPTIMISERS: Mapping[str, Callable[[Any], Any]] = {
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "nesterov": lambda rate: optax.sgd(rate, momentum=0.9, nesterov=True),
    "adam": optax.adam,
    "adamw": lambda rate: optax.adamw(rate, weight_decay=0.1),
    "nadam": optax.nadam,
    "lion": optax.lion,
    "yogi": optax.yogi,
    "radam": optax.radam,
    "rmsprop": optax.rmsprop,
    "adafactor": optax.adafactor,
    "lamb": optax.lamb,
    "sm3": optax.sm3,
    "prodigy": lambda rate: optax.contrib.prodigy(rate),
    "schedule-free": lambda rate: optax.contrib.schedule_free_adamw(rate),
    "muon": _muon,
    # Its update is given the objective, for a line search.
    "lbfgs": optax.lbfgs,
    # Its parameters are an `optax.LookaheadParams`, a fast and a slow copy.
    "lookahead": lambda rate: optax.lookahead(
        optax.radam(rate), sync_period=5, slow_step_size=0.5
    ),
}
