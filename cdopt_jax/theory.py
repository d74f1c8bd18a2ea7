"""The paper's bounds, as functions of the constants they are made of.

M₁ bounds the gradients of f where ‖xᵀx − I‖_F ≤ 1, M̃ the directions that an algorithm
is given, M_r is the Lipschitz constant of a regularizer. Within these bounds the paper
proves that the iterates of both algorithms stay where ‖xᵀx − I‖_F ≤ 1/6 and that their
limit points are stationary. They are sufficient, and far from necessary.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from . import stiefel
from ._checks import check_count, check_key, check_number, check_value, is_known
from ._errors import error, public, user_code
from ._leaves.masks import Mask
from ._leaves.view import View
from ._math.products import real_dtype


@public("theory.penalty_weight")
def penalty_weight(gradient_bound: float, direction_bound: float) -> float:
    """The least β for Algorithm 1: max(16M₁, 60M̃)."""
    check_number("gradient_bound", gradient_bound, zero=True)
    check_number("direction_bound", direction_bound, zero=True)
    return max(16 * gradient_bound, 60 * direction_bound)


@public("theory.step_size")
def step_size(beta: float) -> float:
    """The longest step of Algorithm 1: 1/(2β)."""
    check_number("beta", beta)
    return 1 / (2 * beta)


@public("theory.proximal_step_size")
def proximal_step_size(direction_bound: float, lipschitz: float) -> float:
    """The longest step of Algorithm 2: 1/(19(M̃ + M_r))."""
    check_number("direction_bound", direction_bound, zero=True)
    check_number("lipschitz", lipschitz, zero=True)
    total = direction_bound + lipschitz
    if is_known(total) and not total > 0:
        raise error("direction_bound and lipschitz must not both be zero.")
    return 1 / (19 * total)


@public("theory.stationary_radius")
def stationary_radius(beta: float, gradient_bound: float) -> float:
    """The r below which stationary points of h are those of f: β/(2β + 8M₁)."""
    check_number("beta", beta)
    check_number("gradient_bound", gradient_bound, zero=True)
    return beta / (2 * beta + 8 * gradient_bound)


@public("theory.minimizer_radius")
def minimizer_radius(beta: float, gradient_bound: float) -> float:
    """The r below which local minimisers of h are those of f: β/(2β + 16M₁)."""
    check_number("beta", beta)
    check_number("gradient_bound", gradient_bound, zero=True)
    return beta / (2 * beta + 16 * gradient_bound)


@public("theory.estimate_gradient_bound")
def estimate_gradient_bound(
    f: Callable[[Any], Array],
    params: optax.Params,
    mask: Mask = None,
    *,
    key: Array,
    samples: int = 64,
) -> Array:
    """M₁ from below: the largest gradient at random points with ‖xᵀx − I‖_F ≤ 1.

    Args:
        f: The objective.
        params: The parameters; those that are not constrained stay as they are.
        mask: Which leaves are constrained; see `where`.
        key: A JAX random key.
        samples: How many points are drawn.

    Returns:
        The largest Frobenius norm of the gradient with respect to one constrained
        leaf; of a leaf with a scale, with respect to the leaf divided by its scale,
        which is where β and the bounds of this module belong.

    Raises:
        ValueError: On an f that does not return a number, on something that is no
            random key, and on samples that are not a whole number of 1 or more.

    Examples:
        >>> import jax, jax.numpy as jnp, cdopt_jax as cdx
        >>> m = jnp.diag(jnp.array([1.0, 4.0, 2.0, 3.0]))
        >>> f = lambda x: -jnp.trace(x.T @ m @ x) / 2
        >>> x = cdx.stiefel.random(jax.random.key(0), (4, 2))
        >>> m1 = cdx.theory.estimate_gradient_bound(f, x, key=jax.random.key(1))
        >>> bool(3 < m1 < 4 * 3**0.5)  # ‖mx‖ ≤ ‖m‖₂‖x‖, and ‖x‖² ≤ 2 + √2
        True
    """
    if not callable(f):
        raise error(f"f must be a function of the parameters; it is {f!r}.")
    check_key(key)
    check_count("samples", samples)
    view = View(params, mask, together=False)

    def value(params):
        with user_code():
            found = f(params)
        check_value(found)
        return found

    def draw(group, keys):
        shape, dtype = group.x.shape, group.x.dtype
        place, direction, size = keys
        x = stiefel.random(place, shape, dtype, B=group.form.arguments["B"])
        # Singular values with Σ(σ² − 1)² ≤ 1, up to the boundary.
        real = real_dtype(dtype)
        e = jax.random.normal(direction, (*shape[:-2], shape[-1]), real)
        e = e / jnp.linalg.norm(e, axis=-1, keepdims=True)
        e = e * jax.random.uniform(size, (*shape[:-2], 1), real)
        return x * jnp.sqrt(1 + e)[..., None, :]

    def largest_gradient(key):
        keys = iter(jax.random.split(key, (len(view.groups), 3)))
        points = view.map(lambda group: draw(group, next(keys)))
        pairs = zip(points, view.points, strict=True)
        points = [y.astype(x.dtype) for y, x in pairs]
        grads = jax.grad(value)(view.merge(points, params))
        grads = view.select(grads, "gradients")
        rows = zip(grads, view.readings, strict=True)
        norms = [r.scale * jnp.linalg.norm(jnp.ravel(g)) for g, r in rows]
        return jnp.max(jnp.stack(norms))

    return jnp.max(jax.lax.map(largest_gradient, jax.random.split(key, samples)))
