"""The constraint dissolving function for solvers that run on the host."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from cdopt_jax._errors import public
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._trees import project

from .checks import weight
from .coordinates import coordinates
from .dissolved import STRAYED
from .points import from_real_parts, real_parts
from .problem import Problem


class ScipyObjective(NamedTuple):
    """h as functions of a NumPy vector.

    Attributes:
        value: From a vector of float64 to h.
        gradient: To its gradient.
        both: To the pair, for ``jac=True``: one evaluation instead of two.
        hessp: From a vector and a direction to the Hessian of h along it.
        start: The vector to start from, on the manifold.
        restore: From a vector to parameters on the manifold. It warns where the vector
            is so far from the manifold that h says nothing about f.
        beta: By path, the weight of the penalty of each constrained leaf.
    """

    value: Callable[[np.ndarray], float]
    gradient: Callable[[np.ndarray], np.ndarray]
    both: Callable[[np.ndarray], tuple[float, np.ndarray]]
    hessp: Callable[[np.ndarray, np.ndarray], np.ndarray]
    start: np.ndarray
    restore: Callable[[np.ndarray], Any]
    beta: dict[str, float]


@public("scipy_objective")
def scipy_objective(
    f: Callable[..., Any],
    x0: optax.Params,
    mask: Mask = None,
    *,
    args: tuple[Any, ...] = (),
    beta: float | str | Array = "auto",
) -> ScipyObjective:
    """The function h and its derivatives on the host, for ``scipy.optimize``.

    It is that of `objective` where ‖xᵀBx − I‖ is below one half. Farther out, where h
    may fall without bound, there is a wall around it, since a line search goes there.
    A vector holds the real and the imaginary parts of complex parameters.

    Args:
        f: From the parameters, and ``args``, to a real scalar.
        x0: Where to start; projected to the manifold.
        mask: Which leaves are constrained; see `where`.
        args: Further arguments of ``f``.
        beta: The weight of the penalty. With ``"auto"`` each leaf has its own, a small
            multiple of the gradient at the start, as in `minimize`.

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
    start = project(x0, mask)
    problem = Problem(
        f=lambda params: f(params, *args),
        regularizer=None,
        coordinates=coordinates(jax.tree.map(jnp.asarray, start), mask),
    )
    given = float(weight(beta))
    gradient = jax.grad(problem.smooth)(problem.coordinates.read(start))
    betas = problem.manifold.automatic_beta(gradient)
    betas = jnp.full_like(betas, given) if given else betas
    leaves, treedef = jax.tree.flatten(start)
    flat, unravel_parts = ravel_pytree(real_parts(leaves))

    def unravel(v):
        return treedef.unflatten(from_real_parts(unravel_parts(v), leaves))

    def h(v):
        return problem.dissolved(
            problem.coordinates.read(unravel(v)), betas.astype(v.dtype)
        )

    value, pair = jax.jit(h), jax.jit(jax.value_and_grad(h))
    product = jax.jit(lambda v, d: jax.jvp(jax.grad(h), (v,), (d,))[1])

    def enter(v):
        return jnp.asarray(v, flat.dtype)

    def both(v):
        found, gradient = pair(enter(v))
        return float(found), np.asarray(gradient, np.float64)

    def restore(v):
        params = unravel(enter(v))
        off = float(problem.manifold.feasibility(problem.coordinates.read(params)))
        if not off < STRAYED:
            warnings.warn(
                f"scipy_objective: the vector has ‖xᵀBx − I‖ = {off:.1e}, where h need "
                f"not have a minimum of f; give a beta above {np.min(betas):.1e}.",
                stacklevel=2,
            )
        return project(params, mask)

    return ScipyObjective(
        value=lambda v: float(value(enter(v))),
        gradient=lambda v: both(v)[1],
        both=both,
        hessp=lambda v, d: np.asarray(product(enter(v), enter(d)), np.float64),
        start=np.asarray(flat, np.float64),
        restore=restore,
        beta=problem.coordinates.structure.by_path(map(float, betas / problem.unit)),
    )
