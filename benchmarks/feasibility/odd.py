"""Updates that no optimiser proposes: inward, normal to the manifold, of low rank."""

from collections.abc import Callable
from typing import Any

import jax
import optax


def _proposes(update: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """From a rate to a transformation that proposes rate·update(x, g)."""

    def of(rate):
        def proposal(updates, params):
            return jax.tree.map(lambda g, x: rate * update(x, g), updates, params)

        return optax.stateless(proposal)

    return of


ODD: dict[str, Callable[[Any], Any]] = {
    "−x": _proposes(lambda x, _: -x),
    "−2x": _proposes(lambda x, _: -2 * x),
    "normal": _proposes(lambda x, g: x @ (x.mT @ g + g.mT @ x)),
    "one column": _proposes(lambda x, g: (g - x).at[..., 1:].set(0)),
    "a column less": _proposes(lambda x, _: (0 * x).at[..., 0].set(-x[..., 0])),
    "low rank": _proposes(lambda _, g: g[..., :1] @ g[..., :1, :]),
    "−x, low rank": _proposes(lambda x, g: g[..., :1] @ g[..., :1, :] - x),
}
"""By name, each a function of a rate: at the rate 1, −x leads to the origin."""
