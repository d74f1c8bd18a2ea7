"""The solver: checks what it is given, chooses the method, runs it and certifies."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.core import Tracer

from cdopt_jax._errors import public
from cdopt_jax._leaves.masks import Mask
from cdopt_jax._minimize.checks import check_leaves, check_options, check_scalar
from cdopt_jax._minimize.common import Method
from cdopt_jax._minimize.driver import Plan, run, run_traced, timed
from cdopt_jax._minimize.landscape import landscape
from cdopt_jax._minimize.metrics import check_metrics
from cdopt_jax._minimize.newton import newton
from cdopt_jax._minimize.proximal import proximal
from cdopt_jax._minimize.quasi_newton import lbfgs
from cdopt_jax._minimize.result import CERTIFIED, INTERRUPTED, STALLED, Result, joined
from cdopt_jax._minimize.sampling import sampling
from cdopt_jax._minimize.subgradient import RULES, subgradient
from cdopt_jax._minimize.tangential import tangential
from cdopt_jax._minimize.transformation import mean_over, stochastic, transformed
from cdopt_jax._trees import project
from cdopt_jax.prox import Regularizer

ZERO = 1e-5
LOOSE, AHEAD = 1e-3, 300
"""The tolerance of a run ahead for f alone, by the size of its first gradient, and the
most steps of it."""

JUDGES = 16
"""How many batches judge an objective that is known by batches alone."""

_WHO = "minimize"


@public("minimize")
def minimize(
    f: Callable[..., Any],
    x0: chex.ArrayTree,
    mask: Mask = None,
    *,
    method: str | optax.GradientTransformation = "auto",
    regularizer: Regularizer | None = None,
    beta: Any = "auto",
    tol: float | None = None,
    max_steps: int = 10_000,
    key: Array | None = None,
    args: tuple[Any, ...] = (),
    batch: Callable[[Array], Any] | None = None,
) -> Result:
    """Minimise f + r over parameters of which some leaves are orthonormal.

    The whole run is compiled. Called with plain arrays it stops now and then to look at
    the course and the clock, and returns what it has on Ctrl-C; inside ``jit`` or
    ``vmap`` it is one program, so ``jax.vmap(lambda x: cdx.minimize(f, x))(starts)``
    runs from many starts at once.

    Args:
        f: From the parameters, and ``args``, to a real scalar.
        x0: Where to start. What is constrained is projected to the manifold first, with
            a warning where that changes it.
        mask: Which leaves are constrained; see `where`.
        method: ``"proximal"``: Algorithm 2 with a multiplier and Barzilai-Borwein
            steps, for f smooth, with a regularizer or without. ``"continuation"``: the
            same, after some steps for f alone, from which better local minima are found
            where the regularizer is strong.
            ``"tangential"``: L-BFGS in the tangent spaces, for f + r smooth; fewer
            steps, where they are dear.
            ``"lbfgs"`` and ``"newton"``: L-BFGS, and a trust-region Newton method with
            exact second derivatives, on the constraint dissolving function h, for f + r
            smooth. ``"diminishing"``, ``"normalized"``, ``"polyak"`` and
            ``"geometric"``: subgradient steps, for any f, that differ in their lengths.
            ``"sampling"``: gradient sampling, for any f of few variables. Or an Optax
            optimiser. ``"auto"`` is ``"proximal"``, and where that finds no end without
            a regularizer, since f has kinks, ``"geometric"`` from there; inside a trace
            it is ``"proximal"`` alone.
        regularizer: A convex term r; see `prox`. Methods other than ``"proximal"``
            take subgradients of it.
        beta: The weight β of the penalty in h, for the methods on h and, if a number,
            for an Optax optimiser; ``"auto"`` takes it from the gradient at the start.
        tol: The tolerance of the certificate: for ``"proximal"`` the norm of an element
            of ∇f + ∂r + BxΛ, for methods on h and optimisers that of the gradient, and
            for subgradients and sampling the distance of zero from gradients sampled
            around the point. By default the square root of the precision, times the
            size of the gradient at the start where that is above one.
        max_steps: The most steps.
        key: For methods that sample, and for ``batch``.
        args: Further arguments of ``f``.
        batch: For an objective that is known by batches: from a key to a batch, the
            last argument of ``f``. The method is then an Optax optimiser, by default
            Adam with a falling rate, and the values are means over sixteen batches.

    Returns:
        The point, its projection, certificates and history; see `Result`. Its
        ``message`` says why the run ended.

    Raises:
        ValueError: If the objective is not a finite real scalar at the start, if a
            metric is not positive definite, if a regularizer has no proximal map and
            the method needs one, and on unknown options.

    Examples:
        The three leading eigenvectors, and the same with sparse entries:

        >>> import jax, jax.numpy as jnp, cdopt_jax as cdx
        >>> m = jnp.diag(jnp.arange(1.0, 9.0))
        >>> x0 = cdx.stiefel.random(jax.random.key(0), (8, 3))
        >>> f = lambda x: -jnp.trace(x.T @ m @ x)
        >>> result = cdx.minimize(f, x0)
        >>> print(f"{result.value:.3f}", bool(result.converged))
        -21.000 True
        >>> sparse = cdx.minimize(f, x0, regularizer=cdx.prox.l1(0.5))
        >>> print(f"{sparse.sparsity:.2f}")
        0.88
    """
    check_options(_WHO, f, method, regularizer, beta, tol, max_steps, batch)
    key = jax.random.key(0) if key is None else key
    check_leaves(_WHO, x0)
    x0 = jax.tree.map(jnp.asarray, x0)
    start = _onto_manifold(x0, mask)

    def whole(params, *more):
        return f(params, *args, *more)

    judged = whole
    if batch is not None:
        judges = jax.vmap(batch)(jax.random.split(jax.random.fold_in(key, 1), JUDGES))
        judged = mean_over(judges, whole)
    check_scalar(_WHO, judged, start)
    # An Optax optimiser is given the parameters as they are.
    named = isinstance(method, str) and batch is None
    land = landscape(judged, mask, regularizer, start)
    prepare = jax.jit(partial(_prepared, land, factorise=named))
    factors, x = prepare(start)
    land = land._replace(factors=factors)
    value, usual = jax.jit(partial(_first, land))(x)
    traced = any(isinstance(v, Tracer) for v in (value, *x))
    if not traced and not np.isfinite(value):
        raise ValueError(
            f"{_WHO}: the objective is {float(value)} at x0; start where it is finite."
        )
    draw = None if batch is None else partial(_on_batch, land, whole, batch)
    chosen, others = _methods(method, regularizer, mask, beta, max_steps, batch)
    within = usual if tol is None else jnp.asarray(tol, value.dtype)
    plan = Plan(land, draw, chosen, within, max_steps)
    # It takes its time too; again, since the first call was compiled.
    spent = 0.0 if traced else timed(prepare, start)[1]
    go = run_traced if traced else partial(run, spent=spent)
    earlier = None
    if method == "continuation":
        # Nowhere near a solution of it: a few steps, to a loose tolerance.
        alone = plan._replace(
            draw=lambda _: land._replace(regularizer=None),
            tol=LOOSE * usual / jnp.sqrt(jnp.finfo(value.dtype).eps),
            budget=min(AHEAD, max_steps),
        )
        course, earlier = go(alone, x, key)
        if not traced and course.status == INTERRUPTED:
            return _result(land, chosen, course, earlier)
        x = chosen.point(land, course.state)
        taken = alone.budget if traced else int(course.steps)
        plan = plan._replace(taken=taken)
        go = run_traced if traced else run
    course, history = go(plan, x, key)
    if earlier is not None:
        history = joined(earlier, history)
    if others is not None and not traced and course.status == STALLED:
        # What is smooth would have come to an end: f has kinks.
        x = plan.method.point(land, course.state)
        plan = plan._replace(method=others, taken=int(course.steps))
        course, more = run(plan, x, key)
        history = joined(history, more)
    return _result(land, plan.method, course, history)


def _on_batch(land, f, batch, key):
    """The landscape of the objective on one batch."""
    data = batch(key)
    return land._replace(f=lambda params: f(params, data))


def _prepared(land, start, *, factorise):
    """Metrics taken apart, and the start as a point."""
    if factorise:
        land = land._replace(factors=land.factorised())
    return land.factors, land.read(start)


def _first(land, x):
    """The value at the start, and the usual tolerance."""
    value, size = land.value(x), land.stationarity(x)
    precision = jnp.sqrt(jnp.finfo(value.dtype).eps)
    return value, precision * jnp.maximum(1, jnp.where(jnp.isfinite(size), size, 1))


def _end(land, method, state):
    """The parameters, their projection, and the share of zeros."""
    x = method.point(land, state)
    params = land.write(x)
    entries = jnp.concatenate([jnp.abs(a).ravel() for a in jax.tree.leaves(params)])
    return params, land.write(land.project(x)), jnp.mean(entries < ZERO)


def _result(land, method, course, history):
    params, projected, sparsity = jax.jit(partial(_end, land, method))(course.state)
    return Result(
        params,
        projected,
        course.value,
        course.feasibility,
        course.stationarity,
        sparsity,
        course.steps,
        course.status == CERTIFIED,
        course.status,
        history,
        method.name,
        method.certificate,
    )


def _methods(
    method: str | optax.GradientTransformation,
    regularizer: Regularizer | None,
    mask: Mask,
    beta: Any,
    steps: int,
    batch: Any,
) -> tuple[Method, Method | None]:
    """The method, and another for where it comes to no end."""
    if batch is not None and method == "auto":
        method = stochastic(steps)
    if not isinstance(method, str):
        return transformed(method, mask, beta, sampled=batch is not None), None
    if method == "auto":
        if regularizer is None:
            return proximal(), subgradient("geometric")
        lacking = regularizer.prox is None
        return (subgradient("geometric") if lacking else proximal()), None
    if method in RULES:
        return subgradient(method), None
    named = {
        "proximal": proximal,
        "continuation": proximal,
        "tangential": tangential,
        "lbfgs": lambda: lbfgs(beta),
        "newton": lambda: newton(beta),
        "sampling": sampling,
    }
    return named[method](), None


def _onto_manifold(x0, mask):
    """The start, projected."""
    check_metrics(_WHO, x0, mask)
    start = project(x0, mask)
    pairs = list(zip(jax.tree.leaves(x0), jax.tree.leaves(start), strict=True))
    if any(isinstance(v, Tracer) for pair in pairs for v in pair):
        return start
    moved = max(float(jnp.max(jnp.abs(b - a), initial=0)) for a, b in pairs)
    slack = max(float(jnp.sqrt(jnp.finfo(b.dtype).eps)) for _, b in pairs)
    if moved > slack:
        warnings.warn(
            f"{_WHO}: x0 is not on the manifold; its projection was taken, which moves "
            f"an entry by {moved:.1e}.",
            stacklevel=3,
        )
    return start
