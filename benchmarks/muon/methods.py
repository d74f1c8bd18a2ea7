"""The optimisers compared: what each does with the matrices of the mask.

Leaves that no mask names take Adam at one rate, whatever the method.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import optax

import cdopt_jax as cdx
from benchmarks.muon.hyperball import hyperball
from benchmarks.muon.manifold_muon import manifold_muon
from benchmarks.muon.spel import spel
from benchmarks.shared.methods.leaves import constrained

STACKED = optax.contrib.MuonDimensionNumbers(-2, -1)
"""Every leaf that Muon is given is a matrix, or a stack of matrices."""
FREE_RATE = 3e-3
"""The initial rate of Adam on leaves that no mask names."""

SHARED = (
    "All methods start at the same point of the manifold. AdamW decays weights by "
    "0.01; every Muon has Optax's momentum, 0.95 with Nesterov's look ahead."
)
"""What a report should say of the methods."""

Fall = Callable[[Any], optax.Schedule]
"""From an initial learning rate to its course."""


class Method(NamedTuple):
    """An optimiser of the list.

    Attributes:
        label: Its name in tables and figures.
        make: From the course of rates, the initial rate and the mask to the optimiser.
    """

    label: str
    make: Callable[[Fall, Any, Any], optax.GradientTransformation]


def _muon(schedule):
    return optax.contrib.muon(schedule, muon_weight_dimension_numbers=STACKED)


def _adamw(schedule):
    return optax.adamw(schedule, weight_decay=0.01)


def _muon_hyperball(schedule):
    def stacked(params):
        return jax.tree.map(lambda _: STACKED, params)

    direction = optax.contrib.scale_by_muon(weight_dimension_numbers=stacked)
    return hyperball(direction, schedule)


def _alone(optimiser: Callable[[optax.Schedule], Any]) -> Callable[..., Any]:
    """The optimiser for the matrices of the mask, Adam for the other leaves."""

    def make(fall, rate, mask):
        def kinds(params):
            chosen = constrained(params, mask)
            names = ["matrix" if found else "free" for found in chosen]
            return jax.tree.unflatten(jax.tree.structure(params), names)

        both: dict[Hashable, Any] = {
            "matrix": optimiser(fall(rate)),
            "free": optax.adam(fall(FREE_RATE)),
        }
        return optax.partition(both, kinds)

    return make


def _inside(optimiser: Callable[[optax.Schedule], Any]) -> Callable[..., Any]:
    """The same inside of `cdx.constrain`."""

    def make(fall, rate, mask):
        return cdx.constrain(_alone(optimiser)(fall, rate, mask), mask)

    return make


METHODS: dict[str, Method] = {
    "adamw": Method(label="AdamW", make=_alone(_adamw)),
    "muon": Method(label="Muon", make=_alone(_muon)),
    "hyperball": Method(label="Muon Hyperball", make=_alone(_muon_hyperball)),
    "constrain-adam": Method(label="constrain(adam)", make=_inside(optax.adam)),
    "constrain-muon": Method(label="constrain(muon)", make=_inside(_muon)),
    "spel": Method(label="SPEL", make=_alone(spel)),
    "manifold-muon": Method(label="manifold Muon", make=_alone(manifold_muon)),
}
"""Under the name by which options ask for it."""
