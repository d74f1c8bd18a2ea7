"""The solver: checks what it is given, chooses the method, runs it and certifies."""

import dataclasses
from collections.abc import Callable
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.core import Tracer

from cdopt_jax._errors import error, public
from cdopt_jax._leaves.masks import Mask
from cdopt_jax.prox import Regularizer

from . import implicit
from .checks import check_layout, check_leaves, check_options, number, weight, whole
from .coordinates import coordinates
from .host_checks import feasibility_on_host, projected_on_host
from .loop import Ending
from .method import Method
from .named import NAMED, chosen_method
from .nonnegative import nonnegative_columns, nonnegative_phases
from .phase import FAINT, LOOSE, Phase
from .phased_run import run_phases
from .proximal import Proximal
from .result import CERTIFIED, INFEASIBLE, History, Info, Result
from .run import Callback, Progress, history
from .setup import Data, Setup
from .static import as_array, as_number, opaque, split


@public("minimize")
def minimize(
    f: Callable[..., Any],
    x0: optax.Params | Result,
    mask: Mask = None,
    *,
    method: str | Method | optax.GradientTransformation = "auto",
    regularizer: Regularizer | None = None,
    args: tuple[Any, ...] = (),
    tol: float | Array | None = None,
    max_steps: SupportsIndex = 10_000,
    key: Array | None = None,
    starts: SupportsIndex | None = None,
    callback: Callback | None = None,
    progress: bool = False,
    beta: float | str | Array = "auto",
    batch: Callable[[Array], Any] | None = None,
) -> Result:
    """Minimise f + r over parameters of which some leaves are orthonormal.

    The run is compiled, and what is compiled is kept: a second call with the same
    ``f``, method, mask and shapes compiles nothing, also with other ``args``, ``x0``,
    weights of the regularizer, ``tol``, ``beta`` and metrics. As under ``jax.jit``,
    ``f`` is identified by equality, which for a function is identity, and what it reads
    from outside is a constant of the program. So define ``f`` once, outside of loops,
    and hand over data by ``args``. An Optax optimiser, too, is another one each time it
    is made.

    Inside ``jit`` or ``vmap`` a run is one program, which cannot be interrupted. There
    a solution of a smooth problem can be differentiated with respect to ``args`` and
    metrics, by the implicit function theorem: ``jax.grad(lambda a: loss(cdx.minimize(f,
    x0, args=(a,)).projected))``. The derivative is as accurate as the solution is.

    Args:
        f: From the parameters, and ``args``, to a real scalar. Parameters may be
            complex; gradients are conjugated here, and not by the user.
        x0: Where to start: parameters, or a `Result` from whose ``params`` to go on.
            What is constrained is projected to the manifold first, with a warning where
            that changes it. A start that is stationary is perturbed, and counts as the
            solution if nothing lower is found: it might be a saddle.
        mask: Which leaves are constrained; see `where`.
        method: A name or an object of `methods`, or an Optax optimiser. ``"auto"`` is
            ``"continuation"`` with a regularizer, ``"proximal"`` without and from a
            `Result`, and ``"geometric"`` where f shows kinks (not inside a trace). The
            result says which it was.
        regularizer: A convex term r; see `prox`. Methods other than ``"proximal"`` and
            ``"continuation"`` take subgradients of it. With `prox.nonnegative_l1` the
            start is the absolute value of ``x0``, and the result is nonnegative.
        args: Further arguments of ``f``. Numbers and arrays are arguments of the
            program, all else is a part of it.
        tol: The relative tolerance of the certificate, which must fall below ``tol``
            times the size of the gradient at the point itself (and of its change over
            the length of x); a factor in front of f and r changes nothing. By default
            the square root of the precision.
        max_steps: The most steps.
        key: For methods that sample, for ``batch`` and for ``starts``.
        starts: From how many starts to run at once: ``x0`` and random ones. The best
            end is returned, with the values of all.
        callback: Called with an `Info` after every piece of the run; the run stops if
            it returns True.
        progress: Whether to show the course on standard error.
        beta: The weight β of the penalty in h, for ``"lbfgs"`` and ``"newton"``. With
            ``"auto"`` each leaf has its own, a small multiple of the gradient at the
            start, as in `objective`; it is doubled where the run strays.
        batch: For an objective that is known by batches: from a key to a batch, the
            last argument of ``f``. The method is then an Optax optimiser, by default
            Adam with a falling rate, and the values are means over sixteen batches.

    Returns:
        The point, its projection, certificates and history; see `Result`. Its
        ``message`` says why the run ended.

    Raises:
        ValueError: If the objective or its gradient is not finite at the start, if the
            objective is no real scalar, if a metric is not positive definite, if a
            regularizer has no proximal map and the method needs one, and on unknown
            options.

    Examples:
        The three leading eigenvectors, and the same with sparse entries:

        >>> import jax, jax.numpy as jnp, cdopt_jax as cdx
        >>> m = jnp.diag(jnp.arange(1.0, 9.0))
        >>> x0 = cdx.stiefel.random(jax.random.key(0), (8, 3))
        >>> f = lambda x, m: -jnp.trace(x.T @ m @ x)
        >>> result = cdx.minimize(f, x0, args=(m,))
        >>> print(f"{result.value:.3f}", bool(result.converged))
        -21.000 True
        >>> sparse = cdx.minimize(f, x0, args=(m,), regularizer=cdx.prox.l1(0.5))
        >>> print(f"{sparse.sparsity:.2f}")
        0.88
    """
    check_options(f, regularizer, args, callback, starts)
    most = whole("max_steps", max_steps)
    warm = isinstance(x0, Result)
    start = x0.params if isinstance(x0, Result) else x0
    check_leaves(start)
    start = jax.tree.map(as_array, start)
    chosen = chosen_method(method, regularizer, batch, most, warm=warm)
    check_layout(start, chosen.name)
    plain = coordinates(start, mask)
    structure, metrics = plain.structure, plain.metrics
    static_args, arrays = split(args)
    static_regularizer, weights = None, []
    if regularizer is not None:
        static_regularizer, weights = split(regularizer, keep_zeros=True)
    phases = [Phase(budget=most)]
    columns = nonnegative_columns(start, structure, regularizer)
    if columns is not None:
        if not isinstance(chosen, Proximal):
            raise error(
                f"method={chosen.name!r} leaves the orthant, outside of which "
                'prox.nonnegative_l1 is infinite; write method="auto".'
            )
        chosen = dataclasses.replace(chosen, ahead=0)
        phases = nonnegative_phases(most, warm=warm)
    name = chosen.name if columns is None else "nonnegative"
    if isinstance(chosen, Proximal) and chosen.ahead:
        ahead = min(chosen.ahead, max(most // 2, 1))
        phases = [Phase(budget=ahead, strength=FAINT, tol=LOOSE), *phases]
        chosen = dataclasses.replace(chosen, ahead=0)
    setup = Setup(
        f=opaque(f),
        batch=batch,
        method=chosen,
        structure=structure,
        args=static_args,
        regularizer=static_regularizer,
        columns=columns,
    )
    dtype = structure.dtype
    draws = chosen.draws or batch is not None or starts is not None
    usual = float(jnp.finfo(dtype).eps) ** 0.5
    data = Data(
        args=arrays,
        metrics=metrics,
        weights=weights,
        tol=as_number(usual if tol is None else number("tol", tol), dtype),
        beta=as_number(weight(beta), dtype),
        strength=as_number(1, dtype),
        key=_key(key) if draws else as_number(0, np.int32),
        overlap=as_number(0, dtype),
        allowed=[],
    )
    if any(isinstance(v, Tracer) for v in jax.tree.leaves((start, data))):
        if callback is not None or progress or starts is not None:
            raise error(
                "callback, progress and starts need a run of its own; call minimize "
                "outside of jit, vmap and grad, or vmap over the starts."
            )
        end, course = implicit.solve(setup, data, start, phases)
        return _result(setup, name, end, course, end.status == CERTIFIED)
    bar = Progress(most) if progress else None

    def watch(info: Info) -> bool:
        if bar is not None:
            bar(info)
        return callback is not None and callback(info) is True

    many = 0 if starts is None else whole("starts", starts)
    try:
        ended = run_phases(setup, data, start, phases, watch, many)
        switch = method == "auto" and ended.kinked and regularizer is None
        if switch and not ended.stopped:
            # What is smooth would have come to an end.
            name = "geometric"
            setup = dataclasses.replace(setup, method=NAMED[name])
            data = data._replace(key=_key(key))
            rest = [Phase(budget=most)]
            ended = run_phases(setup, data, ended.params, rest, watch, 0, ended)
    finally:
        if bar is not None:
            bar.close()
    met = bool(np.asarray(ended.end.status) == CERTIFIED)
    rows = history(ended.rows)
    result = _result(setup, name, ended.end, rows, as_array(met, bool))
    result = dataclasses.replace(
        result, values=ended.values, compile_seconds=ended.compile_seconds
    )
    single = jnp.finfo(dtype).bits <= 32
    if single and metrics:
        # xᵀBx is formed in double precision, or its rounding would be all that is seen.
        off = feasibility_on_host(result.params, mask)
        lost = met and off > usual
        result = dataclasses.replace(
            result,
            projected=projected_on_host(result.projected, mask),
            feasibility=as_array(off, dtype),
            converged=as_array(met and not lost, bool),
            status=as_array(INFEASIBLE, np.int32) if lost else result.status,
        )
    return result


def _key(key: Array | None) -> Array:
    return jax.random.key(0) if key is None else key


def _result(
    setup: Setup, name: str, end: Ending, course: History, converged: Array
) -> Result:
    return Result(
        **end._asdict(),
        converged=converged,
        history=course,
        values=None,
        method=name,
        certificate=setup.method.certificate,
    )
