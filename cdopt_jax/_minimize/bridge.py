"""The constraint dissolving function for solvers that run on the host."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from cdopt_jax._errors import public
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._minimize.landscape import landscape
from cdopt_jax._minimize.metrics import check_metrics
from cdopt_jax._minimize.quasi_newton import starting_weight
from cdopt_jax._trees import project


class ScipyObjective(NamedTuple):
    """h as functions of a NumPy vector.

    Attributes:
        value: From a vector of float64 to h.
        gradient: To its gradient.
        both: To the pair, for ``jac=True``: one evaluation instead of two.
        start: The vector to start from, on the manifold.
        restore: From a vector to parameters on the manifold.
    """

    value: Callable[[np.ndarray], float]
    gradient: Callable[[np.ndarray], np.ndarray]
    both: Callable[[np.ndarray], tuple[float, np.ndarray]]
    start: np.ndarray
    restore: Callable[[np.ndarray], Any]


@public("scipy_objective")
def scipy_objective(
    f: Callable[[Any], Any],
    x0: chex.ArrayTree,
    beta: float | str = "auto",
    mask: Mask = None,
) -> ScipyObjective:
    """The function h and its gradient on the host, for ``scipy.optimize``.

    It is that of `objective` where ‖xᵀBx − I‖ is below one half. Farther out, where h
    may fall without bound, there is a wall around it, since a line search goes there.

    Args:
        f: From the parameters to a real scalar.
        x0: Where to start; projected to the manifold.
        beta: The weight of the penalty; see `objective`. With ``"auto"`` it is ten
            times what the start asks for.
        mask: Which leaves are constrained; see `where`.

    Returns:
        The functions and the start.

    Examples:
        >>> import jax, jax.numpy as jnp, scipy.optimize, cdopt_jax as cdx
        >>> m = jnp.diag(jnp.arange(1.0, 9.0))
        >>> x0 = cdx.stiefel.random(jax.random.key(0), (8, 3))
        >>> h = cdx.scipy_objective(lambda x: -jnp.trace(x.T @ m @ x), x0)
        >>> found = scipy.optimize.minimize(h.both, h.start, jac=True)
        >>> print(f"{found.fun:.3f}", h.restore(found.x).shape)
        -21.000 (8, 3)
    """
    who = "scipy_objective"
    check_metrics(who, x0, mask)
    start = project(x0, mask)
    land = landscape(f, mask, None, start)
    # It stays as it is for the whole run, in which gradients may become larger.
    weight = 10 if beta == "auto" else 1
    weight = weight * starting_weight(land, land.read(start), beta)
    flat, unravel = ravel_pytree(start)

    def h(v):
        return land.dissolved(land.read(unravel(v)), weight)

    value, pair = jax.jit(h), jax.jit(jax.value_and_grad(h))

    def enter(v):
        return jnp.asarray(v, flat.dtype)

    def both(v):
        found, gradient = pair(enter(v))
        return float(found), np.asarray(gradient, np.float64)

    return ScipyObjective(
        lambda v: float(value(enter(v))),
        lambda v: both(v)[1],
        both,
        np.asarray(flat, np.float64),
        lambda v: project(unravel(enter(v)), mask),
    )
