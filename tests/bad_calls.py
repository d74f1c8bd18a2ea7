"""Calls that cannot work, for the tables of bad input.

A row of a table is a call and the words its message must hold: the function, the leaf's
path, its shape and dtype, and what to do.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import cdopt_jax

# No type checker would let these calls pass, which is the point of them.
cdx: Any = cdopt_jax
prox, stiefel = cdx.prox, cdx.stiefel

Row = tuple[Any, list[str]]

W = jnp.eye(4, 2)
V = jnp.zeros(3)
CUBE = jnp.ones((4, 3, 2))
PARAMS = {"net": {"w": W, "b": V}}
MASK = {"net": {"w": True, "b": False}}
NAN, INF = float("nan"), float("inf")
S = cdx.Stiefel
key = jax.random.key(0)


TRANSFORMATIONS = {
    "dissolve_gradients": lambda mask: cdx.dissolve_gradients(1.0, mask),
    "add_penalty": lambda mask: cdx.add_penalty(1.0, mask),
    "restore_feasibility": lambda mask: cdx.restore_feasibility(mask),
    "proximal_step": lambda mask: cdx.proximal_step(0.1, prox.none(), mask),
    "keep_feasible": lambda mask: cdx.keep_feasible(mask),
    "constrain": lambda mask: cdx.constrain(optax.sgd(0.1), mask),
}


def updated(name: str, params: Any, grads: Any = None, mask: Any = None) -> Any:
    """The update of a transformation that was set up on parameters that fit."""
    tx = TRANSFORMATIONS[name](mask)
    good = jax.tree.map(lambda _: W, params) if mask is None else PARAMS
    grads, state = params if grads is None else grads, tx.init(good)
    return jax.eval_shape(lambda: tx.update(grads, state, params))


FUNCTIONS = {
    "dissolve": cdx.dissolve,
    "project": cdx.project,
    "feasibility": cdx.feasibility,
    "stationarity": lambda tree, mask=None: cdx.stationarity(tree, tree, mask),
    "objective": lambda tree, mask=None: cdx.objective(jnp.sum, mask, beta=1.0)(tree),
}


def each_row(rows: dict[str, Row]) -> Any:
    """A test of every row of a table."""
    return pytest.mark.parametrize(("call", "words"), rows.values(), ids=rows)


def check_message(call: Any, words: list[str]) -> None:
    """The call raises a ValueError with these words, and in sentences."""
    with pytest.raises(ValueError, match=r"\w+: ") as caught:
        call()
    message = str(caught.value)
    missing = [word for word in words if word not in message]
    assert missing == [], message
    # Sentences: each of them ends, and no part of them is empty.
    assert message.endswith((".", "?"))
    assert not re.search(r"[^.]\.\.(?!\.)|;\.|: ;|: \.", message), message
