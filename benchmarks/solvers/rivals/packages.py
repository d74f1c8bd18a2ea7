"""The packages pymanopt and pystop, as they are installed, behind one signature.

Nothing of them is imported before it is asked for. They work on NumPy arrays; what they
call, the objective with its derivatives, is compiled by JAX beforehand. Each calls for
the gradient at each of its iterates and nowhere else, which is where they are recorded.
Importing pymanopt switches JAX to 64 bits.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.shared.problems import Problem
from benchmarks.shared.timing import compiled
from benchmarks.solvers.driving import Judge, Stop, Trace, judge
from benchmarks.solvers.signature import (
    is_finite,
    is_matrix,
    is_stiefel,
    metric,
    row_weights,
)


class Package(NamedTuple):
    """A solver of a package.

    Attributes:
        run: Like `driving.run`, from an problem and its keywords to a trace.
        applies: Whether an problem is one that the solver is made for.
        name: The name of the distribution.
    """

    run: Callable[..., Trace]
    applies: Callable[[Problem], bool]
    name: str

    def installed(self) -> bool:
        """Whether it can be imported."""
        return importlib.util.find_spec(self.name) is not None

    def version(self) -> str:
        """The version that is installed."""
        return importlib.metadata.version(self.name)


class _Finished(Exception):
    """Raised out of a package that offers no other way to stop it."""


class _Recorder:
    """Iterates as they come, with a clock that stands still while they are judged."""

    def __init__(
        self, record_of: Judge, *, steps: int, every: int, seconds: float, stop: Any
    ) -> None:
        self._record_of = record_of
        self._limits = steps, every, seconds, stop
        self._began = time.perf_counter()
        self._step, self._spent = -1, 0.0
        self.records = []
        self.x: Any = None
        self.projected: Any = None

    def __call__(self, x: Any) -> None:
        now = time.perf_counter()
        steps, every, seconds, stop = self._limits
        self.x, self._step = x, self._step + 1
        self._spent = now - self._began
        last = self._step >= steps or self._spent >= seconds
        if self._step % every == 0 or last:
            self.record()
            last |= not math.isfinite(self.records[-1].value)
            last |= stop is not None and stop(self.records[-1])
        self._began += time.perf_counter() - now
        if last:
            raise _Finished

    def record(self) -> None:
        """Record the last iterate, if that has not been done."""
        if not self.records or self.records[-1].step < self._step:
            x = jnp.asarray(self.x)
            record, self.projected = self._record_of(self._step, self._spent, x)
            self.records.append(record)


def pymanopt_trust_regions(
    problem: Problem,
    *,
    steps: int,
    every: int = 1,
    seconds: float = math.inf,
    stop: Stop | None = None,
    gradient_norm: float = 1e-6,
    subspaces: bool = False,
) -> Trace:
    """Pymanopt's Riemannian trust regions, with exact products with the Hessian.

    For XᵀBX = I with an array B = LLᵀ the unknown is Y = LᵀX, on the ordinary manifold.
    A step is an accepted outer iteration; the conjugate gradient iterations inside it
    are not counted, but they are timed.

    Args:
        problem: What is to be solved.
        steps: How many steps may be taken.
        every: How many lie between two records.
        seconds: How long it may run.
        stop: From a record to whether to stop.
        gradient_norm: Where pymanopt itself stops, its own default.
        subspaces: Whether to take its Grassmann manifold, for an f of the span of X
            alone: on the Stiefel manifold the Hessian of such an f is singular, and
            there the method's last steps are slow.
    """
    pymanopt = importlib.import_module("pymanopt")
    manifolds = importlib.import_module("pymanopt.manifolds")
    optimizers = importlib.import_module("pymanopt.optimizers")

    start, back = jnp.asarray(problem.start), lambda y: y
    B = metric(problem)
    if B is not None:
        lower = jnp.linalg.cholesky(jnp.asarray(B, start.dtype))
        inverse = jnp.linalg.inv(lower).T
        start, back = lower.T @ start, lambda y: inverse @ y

    def f(y):
        return problem.f(back(y))

    def hessian(y, v):
        return jax.jvp(jax.grad(f), (y,), (v,))[1]

    programs, compiling = _compile(
        (f, start), (jax.grad(f), start), (hessian, start, start)
    )
    value, slope, turn = programs
    record_of = _warm(problem, back(start))
    recorder = _Recorder(
        lambda step, spent, y: record_of(step, spent, back(y)),
        steps=steps,
        every=every,
        seconds=seconds,
        stop=stop,
    )
    known: list[Any] = [None, None]

    kind = manifolds.Grassmann if subspaces else manifolds.Stiefel
    manifold = kind(*start.shape)

    @pymanopt.function.numpy(manifold)
    def cost(y):
        return float(value(y))

    # The Hessian asks for the gradient again, at the same point, for every product.
    @pymanopt.function.numpy(manifold)
    def gradient(y):
        if known[0] is not y:
            known[:] = y, np.asarray(slope(y))
            recorder(y)
        return known[1]

    @pymanopt.function.numpy(manifold)
    def product(y, v):
        return np.asarray(turn(y, v))

    posed = pymanopt.Problem(
        manifold, cost, euclidean_gradient=gradient, euclidean_hessian=product
    )
    solver = optimizers.TrustRegions(
        max_time=math.inf,
        # A step that is refused is an iteration too, but does not count here.
        max_iterations=10 * steps + 100,
        min_gradient_norm=gradient_norm,
        verbosity=0,
    )

    def solve():
        return solver.run(posed, initial_point=np.asarray(start))

    return _trace(solve, recorder, back, compiling)


def pystop_slpg(
    problem: Problem,
    *,
    steps: int,
    every: int = 1,
    seconds: float = math.inf,
    stop: Stop | None = None,
    gtol: float = 1e-9,
) -> Trace:
    """The authors' SLPG: of its three variants the one that the problem is made for.

    Args:
        problem: What is to be solved.
        steps: How many steps may be taken.
        every: How many lie between two records.
        seconds: How long it may run.
        stop: From a record to whether to stop.
        gtol: Where pystop itself stops.
    """
    solvers = importlib.import_module("pystop.solver")
    manifolds = importlib.import_module("pystop.manifold")
    start = jnp.asarray(problem.start)
    chosen, more, wanted = solvers.SLPG_smooth, {}, []
    if problem.regularizer is not None:
        weights = row_weights(problem)
        if weights is not None and np.allclose(weights, weights[0]):
            chosen, more = solvers.SLPG_l21, {"gamma": float(weights.mean())}
        else:
            chosen = solvers.SLPG
            wanted = [(problem.regularizer.prox, start, jnp.asarray(1.0))]
    value_and_slope = jax.value_and_grad(problem.f)
    programs, compiling = _compile((value_and_slope, start), *wanted)
    if wanted:
        program = programs[1]
        more = {"prox": lambda x, eta: np.asarray(program(x, jnp.asarray(float(eta))))}
    recorder = _Recorder(
        _warm(problem, start), steps=steps, every=every, seconds=seconds, stop=stop
    )

    def objective(x):
        value, slope = programs[0](x)
        value, slope = float(value), np.asarray(slope)
        recorder(x)
        return value, slope

    def solve():
        # At a fixed point its step size is 0/0.
        with np.errstate(all="ignore"):
            return chosen(
                objective,
                manifolds.Stiefel(*start.shape),
                Xinit=np.asarray(start),
                maxit=steps + 1,
                gtol=gtol,
                post_process=False,
                verbosity=0,
                **more,
            )

    return _trace(solve, recorder, lambda x: x, compiling)


def _compile(*wanted):
    programs = [compiled(f, *arguments) for f, *arguments in wanted]
    return [p.call for p in programs], sum(p.seconds for p in programs)


def _warm(problem, x):
    """A judge that has been compiled."""
    record_of = judge(problem)
    record_of(0, 0.0, x)
    return record_of


def _trace(solve, recorder, back, compiling):
    with contextlib.suppress(_Finished):
        solve()
    recorder.record()
    x = back(jnp.asarray(recorder.x))
    return Trace(
        x=x,
        projected=recorder.projected,
        records=recorder.records,
        compile_seconds=compiling,
    )


def _for_trust_regions(problem: Problem) -> bool:
    smooth = problem.smooth and problem.regularizer is None
    return smooth and is_matrix(problem) and not callable(metric(problem))


def _for_subspaces(problem: Problem) -> bool:
    """Whether f depends on the span of X alone, tried with one rotation."""
    if not _for_trust_regions(problem):
        return False
    x = jnp.asarray(problem.start)
    p = x.shape[1]
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((p, p)))[0]
    return bool(jnp.isclose(problem.f(x), problem.f(x @ turn), rtol=1e-9))


def _for_slpg(problem: Problem) -> bool:
    return problem.smooth and is_stiefel(problem) and is_finite(problem)


PACKAGES: dict[str, Package] = {
    "pymanopt-trust-regions": Package(
        run=pymanopt_trust_regions, applies=_for_trust_regions, name="pymanopt"
    ),
    "pymanopt-trust-regions-grassmann": Package(
        run=partial(pymanopt_trust_regions, subspaces=True),
        applies=_for_subspaces,
        name="pymanopt",
    ),
    "pystop-slpg": Package(run=pystop_slpg, applies=_for_slpg, name="pystop"),
}
