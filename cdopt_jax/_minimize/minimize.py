"""The solver: checks what it is given, chooses the method, runs it and certifies."""

import dataclasses
import warnings
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
from .checks import check_layout, check_leaves, check_options, number, whole
from .host_checks import feasibility_on_host, projected_on_host
from .leaves import leaves_of
from .loop import NOISE, Data, Ending, Setup, nearby, phase_data
from .method import Method
from .named import NAMED
from .nonnegative import nonnegative_columns, nonnegative_phases
from .optax_method import Optax, stochastic
from .phase import BOUND, FAINT, FREE, LOOSE, SETTLED, Phase
from .proximal import Proximal
from .result import CERTIFIED, INFEASIBLE, UNSETTLED, History, Info, Result
from .run import Callback, Ended, Progress, begin, check_start, finish, history
from .static import opaque, split


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
    start = jax.tree.map(jnp.asarray, start)
    chosen = _chosen(method, regularizer, batch, most, warm=warm)
    check_layout(start, chosen.name)
    leaves = leaves_of(start, mask)
    structure, metrics = leaves.structure, leaves.metrics
    static_args, arrays = split(args)
    static_regularizer, weights = None, []
    if regularizer is not None:
        static_regularizer, weights = split(regularizer, keep_zeros=True)
    phases = [Phase(budget=most)]
    columns = nonnegative_columns(start, mask, regularizer)
    if columns is not None:
        if not isinstance(chosen, Proximal):
            raise error(
                f"method={chosen.name!r} leaves the orthant, outside of which "
                'prox.nonnegative_l1 is infinite; write method="auto".'
            )
        chosen = dataclasses.replace(chosen, ahead=0)
        structure = columns.apart(structure)
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
    usual = float(jnp.finfo(dtype).eps) ** 0.5
    data = Data(
        args=arrays,
        metrics=metrics,
        weights=weights,
        tol=jnp.asarray(usual if tol is None else number("tol", tol), dtype),
        beta=jnp.asarray(_automatic(beta), dtype),
        strength=jnp.ones((), dtype),
        key=jax.random.key(0) if key is None else key,
        overlap=jnp.zeros((), dtype),
        allowed=[],
    )
    if any(isinstance(v, Tracer) for v in jax.tree.leaves((start, data))):
        if callback is not None or progress or starts is not None:
            raise error(
                "callback, progress and starts need a run of its own; call minimize "
                "outside of jit, vmap and grad, or vmap over the starts."
            )
        end, course = implicit.solve(setup, data, start, phases)
        return _result(setup, name, end, course)
    bar = Progress(most) if progress else None

    def watch(info: Info) -> bool:
        if bar is not None:
            bar(info)
        return callback is not None and callback(info) is True

    many = 0 if starts is None else whole("starts", starts)
    try:
        ended = _run(setup, data, start, phases, watch, many)
        switch = method == "auto" and ended.kinked and regularizer is None
        if switch and not ended.stopped:
            # What is smooth would have come to an end.
            name = "geometric"
            setup = dataclasses.replace(setup, method=NAMED[name])
            rest = [Phase(budget=most)]
            ended = _run(setup, data, ended.params, rest, watch, 0, ended)
    finally:
        if bar is not None:
            bar.close()
    result = _result(setup, name, ended.end, history(ended.rows))
    result = dataclasses.replace(
        result, values=ended.values, compile_seconds=ended.compile_seconds
    )
    single = jnp.finfo(dtype).bits <= 32
    if single and metrics:
        # xᵀBx is formed in double precision, or its rounding would be all that is seen.
        off = feasibility_on_host(result.params, mask)
        lost = bool(result.converged) and off > usual
        result = dataclasses.replace(
            result,
            projected=projected_on_host(result.projected, mask),
            feasibility=jnp.asarray(off, dtype),
            converged=result.converged & (not lost),
            status=jnp.where(lost, INFEASIBLE, result.status),
        )
    return result


def _run(
    setup: Setup,
    data: Data,
    start: Any,
    phases: list[Phase],
    watch: Callable[[Info], bool],
    many: int,
    before: Ended | None = None,
) -> Ended:
    """The phases of a run, one from the end of the other.

    Args:
        setup: The setup.
        data: The arrays.
        start: The parameters to start from.
        phases: The phases of the run.
        watch: Called with each look at the run; true if the run is to stop.
        many: From how many starts to run, or zero.
        before: What was run before.
    """
    if many:
        start = _random_starts(setup, data, start, many)
    columns, ended = setup.columns, before
    overlapping, kind = np.ones((), bool), FREE
    for phase in phases:
        if columns is not None and ended is not None:
            look = columns.overlapping
            overlapping = np.asarray((jax.vmap(look) if many else look)(start))
            if not overlapping.any() and (phase.kind == FREE or kind == SETTLED):
                continue
        scale = 0.0 if ended is None else ended.scale
        here, start = phase_data(setup, data, phase, start, scale, many=many > 0)
        budget = 0 if ended is not None and ended.stopped else phase.budget
        found = _phase(setup, here, start, budget, watch, many, ended)
        ended = found if ended is None else found.after(ended)
        start, kind = ended.params, phase.kind
        if kind == BOUND and overlapping[ended.best]:
            ended = ended.with_status(UNSETTLED)
        if ended.stopped:
            # Another phase might yet have changed what this one has certified.
            if phase is not phases[-1]:
                ended = ended.with_status(ended.stopped)
            if columns is None:
                break
    assert ended is not None
    return ended


def _phase(
    setup: Setup,
    data: Data,
    start: Any,
    budget: int,
    watch: Callable[[Info], bool],
    many: int,
    before: Ended | None,
) -> Ended:
    """One phase of a run; the arguments are those of `_run`."""
    taken = 0 if before is None else int(np.max(before.end.steps))
    begun = begin(setup, data, start, noise=0.0, taken=taken, many=many)
    if before is None:
        check_start(begun.opened.report, setup.structure)
        _warn(begun.opened.report.moved, data.tol.dtype)
    found = finish(setup, data, begun, budget, watch)
    if many or not bool(begun.opened.stationary):
        return found
    # It may be a saddle: what is found from nearby counts if it is lower, or if r is
    # yet to count, since values have r at its full strength.
    data = nearby(data)
    begun = begin(setup, data, start, noise=NOISE, taken=taken, many=0)
    other = finish(setup, data, begun, budget, watch)
    value = float(found.end.value)
    slack = 100 * float(jnp.finfo(data.tol.dtype).eps) * abs(value)
    lower = float(other.end.value) < value - slack or float(data.strength) < 1
    return other.after(found) if lower else found


def _automatic(beta):
    """The weight β, zero for the automatic one."""
    return 0 if isinstance(beta, str) and beta == "auto" else number("beta", beta)


def _random_starts(setup, data, start, many):
    """The start and random ones, in a leading axis; free leaves are all the same."""
    keys = jax.random.split(jax.random.fold_in(data.key, 3), len(setup.structure.paths))

    def one(key, leaf, reading):
        first = leaf[None]
        if reading is None:
            return jnp.repeat(first, many, axis=0)
        drawn = jax.random.normal(key, (many - 1, *leaf.shape), leaf.dtype)
        return jnp.concatenate([first, drawn])

    rows = zip(keys, jax.tree.leaves(start), setup.structure.readings, strict=True)
    return setup.structure.treedef.unflatten(one(*row) for row in rows)


def _warn(moved, dtype):
    """Say so where the start was off the manifold."""
    distance = float(np.ravel(np.asarray(moved))[0])
    if distance > float(jnp.finfo(dtype).eps) ** 0.5:
        warnings.warn(
            "minimize: x0 is not on the manifold; its projection was taken, which "
            f"moves an entry by {distance:.1e}.",
            stacklevel=6,
        )


def _result(setup: Setup, name: str, end: Ending, course: History) -> Result:
    return Result(
        **end._asdict(),
        converged=end.status == CERTIFIED,
        history=course,
        values=None,
        method=name,
        certificate=setup.method.certificate,
    )


def _chosen(
    method: Any,
    regularizer: Regularizer | None,
    batch: Any,
    max_steps: int,
    *,
    warm: bool,
) -> Method:
    """The method that an option stands for."""
    optimizer = hasattr(method, "update")
    if batch is not None:
        if isinstance(method, Optax):
            return Optax(optimizer=method.optimizer, sampled=True)
        if not optimizer and method != "auto":
            raise error(
                f"method={method!r} compares values of one function, and with batch= "
                "each step has its own; give an Optax optimiser, such as "
                "optax.adam(1e-2)."
            )
        drawn = stochastic(max_steps) if isinstance(method, str) else method
        return Optax(drawn, sampled=True)
    if isinstance(method, Method):
        found = method
    elif optimizer:
        found = Optax(method)
    elif isinstance(method, str) and method in NAMED:
        found = NAMED[method]
    elif isinstance(method, str) and method == "auto":
        # From the end of another run there is nothing to go ahead for.
        ahead = regularizer is not None and not warm
        found = NAMED["continuation" if ahead else "proximal"]
        if regularizer is not None and regularizer.prox is None:
            found = NAMED["geometric"]
    else:
        raise error(
            f"method must be one of {', '.join(['auto', *NAMED])}, an object of "
            f"cdx.methods, or an Optax optimiser; it is {method!r}."
        )
    lacks = regularizer is not None and regularizer.prox is None
    if lacks and found.name in ("proximal", "continuation"):
        raise error(
            f'method="{found.name}" needs the proximal map of r, and prox is None; '
            'give one, or write method="geometric", which takes subgradients.'
        )
    return found
