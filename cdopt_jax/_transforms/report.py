"""What the transformations did, as scalars for a log."""

from typing import Any

import jax
from jax import Array

from cdopt_jax._errors import error, public
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.view import View
from cdopt_jax._transforms.dissolve_gradients import DissolveState
from cdopt_jax._transforms.keep_feasible import GuardState
from cdopt_jax._trees import feasibility

_STATES = (GuardState, DissolveState)
_COUNTERS = ("num_updates", "num_gradients")


@public("report")
def report(state: Any, params: Any, mask: Mask = None) -> dict[str, Array]:
    """The report of a state as a flat dictionary of scalars, each with a name.

    It goes as it is into ``wandb.log(…)``, into ``write_scalars(step, …)`` of CLU's
    metric writers, or entry by entry into TensorBoard.

    Args:
        state: A state that holds that of `constrain`, `keep_feasible` or
            `dissolve_gradients`, also inside of a chain or another wrapper.
        params: The parameters it belongs to.
        mask: Which leaves are constrained, as it was given to the transformation.

    Returns:
        The entries ``"feasibility/<path>"`` of the parameters, and of the state
        ``"bound/<path>"``, ``"step_fraction/<path>"``,
        ``"num_shortened/<path>"``, ``"num_long/<path>"`` and
        ``"beta/<path>"``, as far as it has them; scalar arrays, so that it
        works under ``jit``.

    Raises:
        ValueError: If the state holds no report, or one of other leaves.

    Examples:
        >>> import jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> params, mask = {"kernel": jnp.eye(4, 2)}, cdx.where("kernel")
        >>> tx = cdx.constrain(optax.sgd(0.1), mask)
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> print(cdx.report(state, params, mask)["step_fraction/kernel"])
        1.0
    """
    found = [s for s in jax.tree.leaves(state, is_leaf=_is_ours) if _is_ours(s)]
    if not found:
        raise error(
            "the state holds none of constrain, keep_feasible or dissolve_gradients; "
            "give the state that update returned."
        )
    paths = View(params, mask).paths
    distances = feasibility(params, mask)
    scalars = {f"feasibility/{path}": value for path, value in distances.items()}
    for part in found:
        for name, vector in part._asdict().items():
            if name in _COUNTERS:
                continue
            if vector.shape != (len(paths),):
                raise error(
                    f"the state reports on {vector.size} leaves, and the mask "
                    f"selects {len(paths)}; give the mask of the transformation."
                )
            scalars |= {f"{name}/{p}": v for p, v in zip(paths, vector, strict=True)}
    return scalars


def _is_ours(node):
    return isinstance(node, _STATES)
