"""What the transformations did, as scalars for a log."""

import warnings
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.core import Tracer

from cdopt_jax._errors import error, public
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.view import View
from cdopt_jax._math.nearest_point import spectral_estimate
from cdopt_jax._transforms.dissolve_gradients import DissolveState
from cdopt_jax._transforms.keep_feasible import GuardState

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
        mask: Which leaves are constrained, as it was given to the transformation. It
            may be left out where that had none. A state is made of arrays alone, to
            pass through ``jit``, ``scan`` and checkpoints, so it cannot hold the mask.

    Returns:
        The entries ``"residual/<path>"``, a number between ‖xᵀBx − I‖₂ and p^(1/4)
        times it, and of the state ``"bound/<path>"``, ``"step_fraction/<path>"``,
        ``"num_shortened/<path>"``, ``"num_long/<path>"``, ``"num_outside/<path>"`` and
        ``"beta/<path>"``, as far as it has them; scalar arrays, so that it works under
        ``jit``.

    Raises:
        ValueError: If the state holds no report, or one of other leaves.

    Warns:
        UserWarning: Outside of ``jit``, if a leaf was not where the step before had
            left it (``num_outside``): another transformation changes the updates behind
            `constrain`, or the parameters are changed elsewhere.

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
    entries = {v.size for part in found for v in part if v.ndim}
    leaves = len(jax.tree.leaves(params))
    if mask is None and entries != {leaves}:
        raise error(
            f"the state reports on {max(entries)} of {leaves} leaves, and only "
            "the mask tells on which; write report(state, params, mask), with the mask "
            "of the transformation."
        )
    view = View(params, mask, together=False)
    residuals = view.largest(
        lambda g: spectral_estimate(g.form.residual(g.x, g.form.apply(g.x)))
    )
    vectors = {"residual": residuals}
    for part in found:
        vectors |= {k: v for k, v in part._asdict().items() if k not in _COUNTERS}
    for vector in vectors.values():
        if vector.shape != residuals.shape:
            raise error(
                f"the state reports on {vector.size} leaves, and the mask selects "
                f"{residuals.size}; give the mask of the transformation."
            )
    if "num_outside" in vectors:
        _warn(vectors["num_outside"], view.paths)
    return {
        f"{name}/{path}": value
        for name, vector in vectors.items()
        for path, value in zip(view.paths, vector, strict=True)
    }


def _warn(num_outside, paths):
    """Say which leaves something else has moved, where that is known."""
    if isinstance(num_outside, Tracer) or not num_outside.is_fully_addressable:
        return
    counts = zip(paths, np.asarray(num_outside), strict=True)
    moved = [f"{path!r} ({count} times)" for path, count in counts if count]
    if moved:
        warnings.warn(
            f"report: {', '.join(moved)} was not where the step before had left it. "
            "Put constrain or keep_feasible last in the chain, with learning rates, "
            "clipping and the like inside, and do not change the parameters elsewhere.",
            stacklevel=4,
        )


def _is_ours(node):
    return isinstance(node, _STATES)
