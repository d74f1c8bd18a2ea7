"""The unitary group of the package pymanopt, as it is installed and mended."""

import importlib
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.shared.timing import compiled
from benchmarks.unitary.problems import Problem
from benchmarks.unitary.trace import Trace, tracer

SECONDS = 15
"""How long a run may take; trust regions alone come to that, on the chain of spins."""


def group(n: int, count: int, *, mended: bool):
    """The group U(n)ᵏ of pymanopt.

    Its `projection` takes (K − Kᵀ)/2 of K = XᴴG in version 2.2.1, for complex matrices
    as for real ones. Then X times it is no tangent, and of the tangents iXS with a real
    symmetric S it has nothing. The mended group takes (K − Kᴴ)/2, and the real part of
    the inner product, which otherwise is a complex number.
    """
    manifolds = importlib.import_module("pymanopt.manifolds")
    whole = manifolds.UnitaryGroup(n, k=count)
    if not mended:
        return whole

    class Mended(manifolds.UnitaryGroup):
        def projection(self, point, vector):
            k = point.conj().swapaxes(-1, -2) @ vector
            return self.to_tangent_space(point, k)

        def inner_product(self, point, tangent_vector_a, tangent_vector_b):
            del point
            return float(np.vdot(tangent_vector_a, tangent_vector_b).real)

        def zero_vector(self, point):
            return np.zeros_like(point)

    return Mended(n, k=count)


def pymanopt_run(
    problem: Problem, steps: int, *, optimizer: str, mended: bool = True
) -> Trace:
    """A run of one of pymanopt's optimisers, from gradients that JAX compiles.

    Args:
        problem: What is minimised.
        steps: How many iterations it may take.
        optimizer: The name of the class.
        mended: Whether the group is.
    """
    pymanopt = importlib.import_module("pymanopt")
    optimizers = importlib.import_module("pymanopt.optimizers")
    x = problem.start
    f = problem.f

    def ascent(x):
        return jnp.conj(jax.grad(f)(x))

    def second(x, v):
        return jax.jvp(ascent, (x,), (v,))[1]

    value, slope = compiled(f, x).call, compiled(ascent, x).call
    turn = compiled(second, x, x).call
    manifold = group(x.shape[-1], len(x), mended=mended)
    # Its group of one matrix has points without the axis of a stack.
    one = len(x) == 1
    inside, outside = (lambda u: u[None], lambda u: u[0]) if one else (np.asarray,) * 2

    @pymanopt.function.numpy(manifold)
    def cost(u):
        return float(value(inside(u)))

    # One for each point: products with the Hessian ask for the gradient again.
    last: dict[str, Any] = {"point": None}
    points, times = [], []

    @pymanopt.function.numpy(manifold)
    def gradient(u):
        if last["point"] is not u:
            last.update(point=u, gradient=outside(np.asarray(slope(inside(u)))))
            points.append(inside(u))
            times.append(time.perf_counter())
        return last["gradient"]

    @pymanopt.function.numpy(manifold)
    def hessian(u, v):
        return outside(np.asarray(turn(inside(u), inside(v))))

    posed = pymanopt.Problem(
        manifold, cost, euclidean_gradient=gradient, euclidean_hessian=hessian
    )
    solver = getattr(optimizers, optimizer)(
        max_time=SECONDS,
        max_iterations=steps,
        min_gradient_norm=1e-10,
        min_step_size=1e-12,
        verbosity=0,
    )
    start = outside(np.asarray(x))
    jax.block_until_ready((value(x), turn(x, x)))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # As installed, it takes the real parts of complex inner products; and it
        # divides by a difference of gradients that is zero in the end.
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        solver.run(posed, initial_point=start)
    spent = np.asarray(times) - times[0]
    return tracer(problem)(np.arange(len(points)), spent, points)
