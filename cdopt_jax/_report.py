"""What the transformations did, as scalars for a log."""

from typing import Any

import jax
from jax import Array

from ._constrain import ConstrainState, for_both
from ._selection import Mask
from ._transforms._leaves import constrained_paths
from ._transforms.dissolve_gradients import DissolveState
from ._transforms.keep_feasible import GuardState
from ._trees import feasibility

_STATES = (ConstrainState, GuardState, DissolveState)


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
        ``"beta/<path>"``, as far as it has them; scalar arrays, so that it works under
        ``jit``.

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
    who = "report"

    def ours(node):
        return isinstance(node, _STATES)

    found = [s for s in jax.tree.leaves(state, is_leaf=ours) if ours(s)]
    if not found:
        raise ValueError(
            f"{who}: the state holds none of constrain, keep_feasible or "
            "dissolve_gradients; give the state that update returned."
        )
    paths = constrained_paths(who, for_both(who, mask), params)
    scalars: dict[str, Array] = {
        f"feasibility/{path}": value
        for path, value in feasibility(params, for_both(who, mask)).items()
    }
    for part in found:
        vectors = dict(part._asdict())
        if isinstance(part, ConstrainState):
            vectors = {"beta": part.beta, **part.guard._asdict()}
        vectors.pop("num_updates", None)
        vectors.pop("step", None)
        for name, vector in vectors.items():
            if vector is None:
                continue
            if vector.shape != (len(paths),):
                raise ValueError(
                    f"{who}: the state reports on {vector.size} leaves, and the mask "
                    f"selects {len(paths)}; give the mask of the transformation."
                )
            scalars |= {f"{name}/{p}": v for p, v in zip(paths, vector, strict=True)}
    return scalars
