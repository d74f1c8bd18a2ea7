"""What the transformations did, as scalars for a log."""

import warnings
from typing import Any

import jax
import numpy as np
from jax import Array

from cdopt_jax._checks import is_known
from cdopt_jax._errors import error, public
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._leaves.view import View
from cdopt_jax._math.nearest_point import spectral_estimate
from cdopt_jax._transforms.dissolve_gradients import DissolveState
from cdopt_jax._transforms.keep_feasible import GuardState
from cdopt_jax._transforms.state import names

_FIELDS = {
    GuardState: ("bound", "step_fraction", "num_shortened", "num_long", "num_outside"),
    DissolveState: ("beta",),
}


@public("report")
def report(state: Any, params: Any = None, mask: Mask = None) -> dict[str, Array]:
    """The report of a state as a flat dictionary of scalars, each with a name.

    It goes as it is into ``wandb.log(…)``, into ``write_scalars(step, …)`` of CLU's
    metric writers, or entry by entry into TensorBoard.

    Args:
        state: A state that holds that of `constrain`, `keep_feasible` or
            `dissolve_gradients`, also inside of a chain or another wrapper.
        params: The parameters, to measure their residuals too.
        mask: Which leaves of ``params`` are constrained, as it was given to the
            transformation.

    Returns:
        The entries ``"bound/<path>"``, ``"step_fraction/<path>"``,
        ``"num_shortened/<path>"``, ``"num_long/<path>"``, ``"num_outside/<path>"`` and
        ``"beta/<path>"``, as far as the state has them; and with parameters
        ``"residual/<path>"``, a number between ‖xᵀBx − I‖₂ and p^(1/4) times it, which
        is not above a bound. They are scalar arrays, so that it works under ``jit``.

    Raises:
        ValueError: If the state holds no report.

    Warns:
        UserWarning: Outside of ``jit``, if a leaf was not where the step before had
            left it (``num_outside``): another transformation changes the updates behind
            `constrain`, or the parameters are changed elsewhere. And if a leaf is not
            finite.

    Examples:
        >>> import jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> params = {"kernel": jnp.eye(4, 2), "bias": jnp.ones(2)}
        >>> tx = cdx.constrain(optax.sgd(0.1), cdx.where("kernel"))
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> print(cdx.report(state)["step_fraction/kernel"])
        1.0
    """
    found = [s for s in jax.tree.leaves(state, is_leaf=_is_ours) if _is_ours(s)]
    if not found:
        raise error(
            "the state holds none of constrain, keep_feasible or dissolve_gradients; "
            "give the state that update returned."
        )
    scalars = {}
    if params is not None:
        view = View(params, mask, together=False)
        residuals = view.largest(
            lambda g: spectral_estimate(g.form.residual(g.x, g.form.apply(g.x)))
        )
        scalars |= _named("residual", view.paths, residuals)
    for part in found:
        paths = names(part[-1])
        for field in _FIELDS[type(part)]:
            scalars |= _named(field, paths, getattr(part, field))
        if isinstance(part, GuardState):
            _warn(part, paths)
    return scalars


def _named(name, paths, vector):
    if vector.shape != (len(paths),):
        raise error(
            f"{name} must have an entry for each of {len(paths)} leaves; it has shape "
            f"{vector.shape}. Where vmap made the state, write jax.vmap(report)(state)."
        )
    return {f"{name}/{path}": v for path, v in zip(paths, vector, strict=True)}


def _warn(guard, paths):
    """Say which leaves are not finite or were moved elsewhere, where that is known."""
    if not is_known(guard.bound):
        return
    lost = np.isnan(np.asarray(guard.bound))
    for path, count, nan in zip(
        paths, np.asarray(guard.num_outside), lost, strict=True
    ):
        if nan:
            warnings.warn(
                f"report: {path!r} is not finite. Either its B is not positive "
                "definite, or the parameters were set to what is not finite; set them "
                "to a point of the manifold, such as stiefel.random draws.",
                stacklevel=4,
            )
        elif count:
            warnings.warn(
                f"report: {path!r} ({count} times) was not where the step before had "
                "left it. Put constrain or keep_feasible last in the chain, with "
                "learning rates, clipping and the like inside, and do not change the "
                "parameters elsewhere.",
                stacklevel=4,
            )


def _is_ours(node):
    return isinstance(node, tuple(_FIELDS))
