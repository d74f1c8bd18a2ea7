"""The functions of `stiefel` carried over a tree of parameters."""

from collections.abc import Callable, Iterable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import Array

from . import stiefel
from ._algebra import widen
from ._auto import weight
from ._faults import projection_fault
from ._hyperparameters import check_beta
from ._paths import align, describe_leaf, leaf_paths
from ._selection import Mask, select


def dissolve(params: chex.ArrayTree, mask: Mask = None) -> Any:
    """The constraint dissolving map A on the constrained leaves.

    Args:
        params: The parameters.
        mask: Which leaves are constrained; see `where`.

    Returns:
        The parameters with A(x) for each constrained leaf x; see `stiefel.dissolve`.
    """
    return _map("dissolve", stiefel.dissolve, params, mask)


def project(params: chex.ArrayTree, mask: Mask = None) -> Any:
    """The nearest point of the manifold for each constrained leaf.

    Args:
        params: The parameters.
        mask: Which leaves are constrained; see `where`.

    Returns:
        The parameters with the constrained leaves on the manifold, to start from or
        to finish with; see `stiefel.project`.

    Raises:
        ValueError: On a concrete leaf that is rank-deficient, naming it.

    Examples:
        >>> import jax, cdopt_jax as cdx
        >>> params = {"w": jax.random.normal(jax.random.key(0), (5, 3))}
        >>> cdx.feasibility(cdx.project(params))["w"] < 1e-5
        Array(True, dtype=bool)
    """
    return _map("project", stiefel.project, params, mask)


def feasibility(params: chex.ArrayTree, mask: Mask = None) -> dict[str, Array]:
    """How far each constrained leaf is from its manifold.

    Args:
        params: The parameters.
        mask: Which leaves are constrained; see `where`.

    Returns:
        ‖xᵀBx − I‖_F by path, the largest one for a leaf that holds many matrices.
    """
    readings = select("feasibility", params, mask)
    rows = zip(leaf_paths(params), jax.tree.leaves(params), readings, strict=True)
    return {
        path: jnp.max(stiefel.feasibility(r.read(leaf), **r.form.arguments))
        for path, leaf, r in rows
        if r
    }


def stationarity(
    grads: chex.ArrayTree, params: chex.ArrayTree, mask: Mask = None
) -> dict[str, Array]:
    """How far each leaf is from being stationary.

    Args:
        grads: The gradient of f at ``params``.
        params: The parameters.
        mask: Which leaves are constrained; see `where`.

    Returns:
        By path, the norm of the gradient of f∘A, which on the manifold is the projected
        gradient; of a leaf that is not constrained, the norm of its gradient.
    """
    readings = select("stationarity", params, mask)
    leaves = jax.tree.leaves(params)
    grads = align("stationarity", "grads", grads, params)
    rows = zip(leaf_paths(params), grads, leaves, readings, strict=True)

    def norm(g, x, r):
        if r is None:
            g = jnp.asarray(g)
            return jnp.linalg.norm(jnp.ravel(g).astype(widen(g.dtype)))
        d = stiefel.vjp(r.read(x), r.read(g), **r.form.arguments)
        return jnp.sqrt(jnp.sum(r.form.length(d, d)))

    return {path: norm(g, x, r) for path, g, x, r in rows}


def objective(
    f: Callable[..., Any],
    beta: float | str,
    mask: Mask = None,
    *,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """The constraint dissolving function of ``f``, for any unconstrained solver.

    That is h(x) = f(A(x)) + (β/4)‖xᵀBx − I‖², summed over the constrained leaves. Near
    the manifold it has the stationary points and local minimisers that ``f`` has on it.
    Far from it h need not be bounded below: start near, and see `dissolve_gradients`
    for how large β should be.

    Args:
        f: A function of the parameters, and of further arguments that are passed on.
        beta: The weight β > 0. With ``"auto"`` each leaf has its own, a small multiple
            of the gradient of f at A(x), which is then evaluated for it; it counts as
            a constant in the gradient of h.
        mask: Which leaves are constrained; see `where`.
        has_aux: Whether ``f`` returns a pair of its value and something else.

    Returns:
        h, with the arguments of ``f`` and the same kind of result.

    Examples:
        >>> import jax, jax.numpy as jnp, optax, cdopt_jax as cdx
        >>> m = jnp.diag(jnp.array([1.0, 4.0, 2.0, 3.0]))
        >>> h = cdx.objective(lambda x: -jnp.trace(x.T @ m @ x), beta=5.0)
        >>> x = cdx.stiefel.random(jax.random.key(0), (4, 2))
        >>> step = jax.jit(lambda x: x - 0.05 * jax.grad(h)(x))
        >>> for _ in range(200):
        ...     x = step(x)
        >>> print(h(x).round(4))
        -7.0
    """
    if not callable(f):
        raise ValueError(f"objective: f must be a function; it is {f!r}.")
    if callable(beta):
        raise ValueError(
            "objective: beta must be a number; a function of the parameters has no "
            "step at which to evaluate a schedule."
        )
    auto = check_beta("objective", beta)

    def h(params, *args, **kwargs):
        readings = select("objective", params, mask)
        point = dissolve(params, mask)
        out = f(point, *args, **kwargs)
        value, aux = out if has_aux else (out, None)
        betas: list[Any] = [beta for r in readings if r]
        if auto:
            point = jax.lax.stop_gradient(point)
            grads = jax.grad(f, has_aux=has_aux)(point, *args, **kwargs)
            grads = jax.tree.leaves(grads[0] if has_aux else grads)
            pairs = [(g, r) for g, r in zip(grads, readings, strict=True) if r]
            betas = [
                jnp.max(weight(r.read(jax.lax.stop_gradient(g)), r.form))
                for g, r in pairs
            ]
        value = value + penalty("objective", params, mask, betas)
        return (value, aux) if has_aux else value

    return h


def penalty(who: str, params: Any, mask: Mask, betas: Iterable[Any]) -> Any:
    """The sum of (β/4)‖xᵀBx − I‖², with a β for each constrained leaf."""
    pairs = zip(jax.tree.leaves(params), select(who, params, mask), strict=True)
    constrained = [(r.read(x), r.form) for x, r in pairs if r]
    terms = [
        beta * jnp.sum(stiefel.penalty(x, **form.arguments))
        for beta, (x, form) in zip(betas, constrained, strict=True)
    ]
    return sum(terms)


def _map(who, fn, params, mask):
    readings = select(who, params, mask)
    leaves, treedef = jax.tree.flatten(params)

    def one(path, leaf, r):
        if r is None:
            return leaf
        x = r.read(leaf)
        if fn is stiefel.project and (fault := projection_fault(x)):
            raise ValueError(f"{who}: {describe_leaf(path, leaf)} and {fault}")
        # In the shape in which transformations compute with one leaf, so that a product
        # that both need is formed once.
        stacked = r.form._replace(stacked=True).arguments
        new = fn(x[None], **stacked)[0] if r.stack else fn(x, **r.form.arguments)
        return r.write(new, leaf.dtype)

    return treedef.unflatten(map(one, leaf_paths(params), leaves, readings))
