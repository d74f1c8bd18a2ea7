"""The functions of `stiefel` carried over a tree of parameters."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from . import stiefel
from ._checks import (
    check_beta,
    check_flag,
    check_value,
    definiteness_fault,
    projection_fault,
)
from ._errors import error, naming, public, user_code
from ._leaves.masks import Mask
from ._leaves.paths import describe_leaf, leaf_paths, leaves_beside
from ._leaves.view import View, automatic_weight
from ._math.products import widen


@public("dissolve")
def dissolve(params: optax.Params, mask: Mask = None) -> Any:
    """The constraint dissolving map A on the constrained leaves.

    Args:
        params: The parameters.
        mask: Which leaves are constrained; see `where`.

    Returns:
        The parameters with A(x) for each constrained leaf x; see `stiefel.dissolve`.

    Examples:
        >>> import jax.numpy as jnp, cdopt_jax as cdx
        >>> params = {"w": 1.1 * jnp.eye(4, 2), "b": jnp.ones(2)}
        >>> print(f"{cdx.dissolve(params, cdx.where('w'))['w'][0, 0]:.3f}")
        1.003
    """
    return _apply(stiefel.dissolve, _values(params, mask))


@public("project")
def project(params: optax.Params, mask: Mask = None) -> Any:
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
    view = _values(params, mask)
    for path, leaf, r in zip(view.paths, view.points, view.readings, strict=True):
        x = r.read(leaf)
        if fault := projection_fault(x):
            raise error(f"{describe_leaf(path, leaf)} and {fault}")
        if callable(r.B) and (fault := definiteness_fault(r.B, x)):
            raise error(f"{fault}. The leaf {describe_leaf(path, leaf)}.")
    return _apply(stiefel.project, view)


@public("feasibility")
def feasibility(params: optax.Params, mask: Mask = None) -> dict[str, Array]:
    """How far each constrained leaf is from its manifold.

    Args:
        params: The parameters.
        mask: Which leaves are constrained; see `where`.

    Returns:
        ‖xᵀBx − I‖_F by path, the largest one for a leaf that holds many matrices, and
        ‖xᵀBx/c² − I‖_F for a leaf with a scale c.

    Examples:
        >>> import jax.numpy as jnp, cdopt_jax as cdx
        >>> print(cdx.feasibility({"w": 2 * jnp.eye(3, 1)})["w"])
        3.0
    """
    view = _values(params, mask)
    distances = view.largest(
        lambda group: stiefel.feasibility(group.x, **group.form.arguments)
    )
    return dict(zip(view.paths, distances, strict=True))


@public("stationarity")
def stationarity(
    params: optax.Params, grads: optax.Params, mask: Mask = None
) -> dict[str, Array]:
    """How far each leaf is from being stationary.

    Args:
        params: The parameters.
        grads: The gradient of f at ``params``; of complex parameters
            ``jnp.conj(jax.grad(f)(params))``, as for the transformations.
        mask: Which leaves are constrained; see `where`.

    Returns:
        By path, the norm of the gradient of f∘A, which on the manifold is the projected
        gradient; of a leaf that is not constrained, the norm of its gradient.

    Examples:
        The gradient of a linear function is normal to the sphere at its minimiser:

        >>> import jax.numpy as jnp, cdopt_jax as cdx
        >>> g = jnp.array([[2.0], [0.0]])
        >>> print(cdx.stationarity({"w": -g / 2}, {"w": g})["w"])
        0.0
    """
    view = _values(params, mask)

    def squares(group, g):
        d = stiefel.vjp(group.x, g, **group.form.arguments)
        return group.form.dot(d, d) * group.scale**2

    constrained = view.total(squares, view.select(grads, "grads"))
    norms = iter(jnp.sqrt(constrained))
    gradients = leaves_beside("grads", grads, params)
    rows = zip(leaf_paths(params), gradients, view.selected, strict=True)
    return {path: next(norms) if s else _norm(g) for path, g, s in rows}


def objective(
    f: Callable[..., Any],
    mask: Mask = None,
    *,
    beta: float | str,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """The constraint dissolving function of ``f``, for any unconstrained solver.

    That is h(x) = f(A(x)) + (β/4)‖xᵀBx − I‖², summed over the constrained leaves. Near
    the manifold it has the stationary points and local minimisers that ``f`` has on it.
    Far from it h need not be bounded below: start near, and see `dissolve_gradients`
    for how large β should be. Of complex parameters ``jax.grad(h)`` is the conjugate of
    the direction of steepest ascent, as that of any function is.

    Args:
        f: A function of the parameters, and of further arguments that are passed on.
        mask: Which leaves are constrained; see `where`.
        beta: The weight β > 0. With ``"auto"`` each leaf has its own, a small multiple
            of the gradient of f at A(x), which is then evaluated for it; it counts as
            a constant in the gradient of h.
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
    with naming("objective"):
        if not callable(f):
            raise error(f"f must be a function; it is {f!r}.")
        if callable(beta):
            raise error(
                "beta must be a number; a function of the parameters has no step at "
                "which to evaluate a schedule."
            )
        auto = check_beta(beta)
        check_flag("has_aux", has_aux)

    @public("objective")
    def h(params, *args, **kwargs):
        view = _values(params, mask)
        point = _apply(stiefel.dissolve, view)
        with user_code():
            out = f(point, *args, **kwargs)
        value, aux = _value_and_aux(out) if has_aux else (out, None)
        pair = isinstance(out, tuple) and not has_aux
        check_value(value, " Write has_aux=True." if pair else "")
        betas: Any = beta
        if auto:
            with user_code():
                fixed = jax.lax.stop_gradient(point)
                grads = jax.grad(f, has_aux=has_aux)(fixed, *args, **kwargs)
            grads = jax.lax.stop_gradient(grads[0] if has_aux else grads)
            betas = view.largest(automatic_weight, view.select(grads, "gradients"))
        penalties = view.total(
            lambda group: stiefel.penalty(group.x, **group.form.arguments)
        )
        penalty = jnp.sum(betas * penalties)
        # By NumPy: JAX can be told to promote no dtypes.
        dtype = np.promote_types(jnp.result_type(value), penalty.dtype)
        value = jnp.asarray(value, dtype) + penalty.astype(dtype)
        return (value, aux) if has_aux else value

    return h


def _values(params, mask):
    """The view of parameters whose values are needed, leaf by leaf."""
    view = View(params, mask, together=False)
    for path, leaf in zip(view.paths, view.points, strict=True):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise error(
                "the parameters must have values; "
                f"{describe_leaf(path, leaf)} and none. For shapes alone, call this "
                "under jax.eval_shape."
            )
    return view


def _value_and_aux(out):
    if isinstance(out, tuple | list) and len(out) == 2:
        return out
    raise error(
        "f must return a pair of its value and something else where has_aux is True; "
        f"it returned a {type(out).__name__}."
    )


def _apply(fn, view):
    """The parameters with ``fn`` applied to the constrained matrices."""
    new = view.map(lambda group: fn(group.x, **group.form.arguments))
    pairs = zip(new, view.points, strict=True)
    return view.merge([y.astype(x.dtype) for y, x in pairs], view.params)


def _norm(g):
    g = jnp.asarray(g)
    return jnp.linalg.norm(jnp.ravel(g).astype(widen(g.dtype)))
