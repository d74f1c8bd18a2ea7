"""No field of our states has the name of a field in any state of Optax.

Were there one, ``optax.tree.get(state, name)`` would find two values and raise.
"""

import inspect
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import cdopt_jax as cdx

FIELDS = ("num_updates", "bound", "step_fraction", "num_shortened", "num_long")
ADAM = optax.adam(0.1)
MASK: Any = {"kernel": True, "bias": False}
PARAMS = {"kernel": jnp.eye(4, 2), "bias": jnp.ones(3)}

# A value of each parameter that a factory of Optax requires.
ARGUMENTS: dict[str, Any] = {
    "adv_optimizer": ADAM,
    "base_optimizer": ADAM,
    "clipping": 1.0,
    "decay": 0.9,
    "eta": 0.1,
    "f": lambda updates, _: updates,
    "fast_optimizer": ADAM,
    "freeze_mask": MASK,
    "gamma": 0.5,
    "inner": ADAM,
    "learning_rate": 0.1,
    "mask": MASK,
    "max_backtracking_steps": 5,
    "max_consecutive_errors": 3,
    "max_delta": 1.0,
    "max_linesearch_steps": 5,
    "max_norm": 1.0,
    "measure": optax.tree.norm,
    "measure_name": "norm",
    "measures": {"norm": optax.tree.norm},
    "optimizer": ADAM,
    "param_labels": {"kernel": "all", "bias": "all"},
    "seed": 0,
    "should_transform_fn": lambda step: step > 0,
    "slow_step_size": 0.5,
    "step_size": 0.1,
    "step_size_fn": optax.constant_schedule(0.1),
    "sync_period": 5,
    "threshold": 1.0,
    "transforms": {"all": ADAM},
    "tx": ADAM,
}
# What takes its transformations one by one.
STARRED = {"chain": (ADAM,), "named_chain": (("adam", ADAM),)}
# What cannot be inside of `constrain`, whose gradients have the shapes of the
# parameters: it takes a gradient for each example of a batch.
OUTSIDE = {
    "optax.contrib.differentially_private_aggregate",
    "optax.contrib.dpsgd",
}


def made(name: str, factory: Any) -> Any:
    """What a factory makes of the arguments above; None, if it needs others."""
    if name in STARRED:
        return factory(*STARRED[name])
    parameters = inspect.signature(factory).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty]
    if not ARGUMENTS.keys() >= set(names):
        return None
    with warnings.catch_warnings():
        # Of what is deprecated, and of keys that will be required.
        warnings.simplefilter("ignore")
        return factory(**{name: ARGUMENTS[name] for name in names})


def transformations() -> dict[str, Any]:
    """Every transformation of Optax, by the name of its factory."""
    found = {}
    for module in (optax, optax.contrib):
        for name, factory in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("_"):
                continue
            tx = made(name, factory)
            says = inspect.signature(factory).return_annotation
            promised = getattr(says, "__name__", "").startswith("GradientTransform")
            if promised or isinstance(tx, optax.GradientTransformation):
                found[f"{module.__name__}.{name}"] = tx
    return {k: tx for k, tx in found.items() if k not in OUTSIDE}


TRANSFORMATIONS = transformations()


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_each_field_of_constrain_is_found_beside_those_of_an_optimiser(name):
    tx = TRANSFORMATIONS[name]
    assert tx is not None, "give ARGUMENTS a value for each required parameter"
    params: Any = PARAMS
    if name == "optax.lookahead":
        params = optax.LookaheadParams.init_synced(params)
    state = jax.eval_shape(cdx.constrain(tx, MASK).init, params)
    for field in FIELDS:
        # With two fields of the name it would raise.
        assert optax.tree.get(state, field) is not None
