"""What the tests compare against: formulas written out plainly, NumPy and SciPy.

Nothing here uses the package. The metric is always a dense matrix ``b``, the identity
when the constraint is the ordinary one.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
from jax.extend import core

import cdopt_jax as cdx

SEEDS = (0, 1, 2)
SHAPES = ((1, 1), (7, 1), (5, 5), (12, 4), (3, 8, 3), (2, 3, 6, 2))
METRICS = ("none", "array", "callable")
CASES = [(shape, "none") for shape in SHAPES]
CASES += [(shape, "array") for shape in ((1, 1), (5, 5), (12, 4), (2, 3, 6, 2))]
CASES += [(shape, "callable") for shape in ((7, 1), (3, 8, 3))]
FACTORIZATIONS = {"svd", "qr", "geqrf", "cholesky", "eigh", "eig", "lu", "schur"}
FACTORIZATIONS |= {"triangular_solve", "householder_product", "tridiagonal"}

each_seed = pytest.mark.parametrize("seed", SEEDS)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_case = pytest.mark.parametrize(("shape", "metric"), CASES, ids=str)
each_metric = pytest.mark.parametrize("metric", METRICS)


def normal(shape: tuple[int, ...], seed: int, dtype: Any = None) -> jax.Array:
    """Independent standard normal entries; float64 unless told otherwise."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(values, dtype)


def points(shape: tuple[int, ...], count: int) -> Iterator[list[jax.Array]]:
    """For each seed: a point with singular values of order one, then directions."""
    for seed in SEEDS:
        x, *rest = normal((count, *shape), seed)
        yield [x / math.sqrt(shape[-2]), *rest]


def spd(n: int) -> np.ndarray:
    """A symmetric positive definite matrix with eigenvalues between 0.5 and 3."""
    q = np.linalg.qr(np.random.default_rng(n).standard_normal((n, n)))[0]
    return (q * np.linspace(0.5, 3.0, n)) @ q.T


def metric_of(kind: str, n: int, dtype: Any = None) -> tuple[Any, jax.Array]:
    """What to pass as ``B``, and the matrix it stands for."""
    if kind == "none":
        return None, jnp.eye(n, dtype=dtype)
    b = jnp.asarray(spd(n), dtype)
    return (b if kind == "array" else lambda v: b @ v), b


def transpose(x: Any) -> Any:
    """The transpose of each matrix of a stack."""
    return x.swapaxes(-1, -2)


def tall(x: Any) -> Any:
    """The matrices, or where they are wide their transposes."""
    return x if x.shape[-2] >= x.shape[-1] else transpose(x)


def symmetric(s: Any) -> Any:
    """Φ(S), the symmetric part."""
    return (s + transpose(s)) / 2


def gram_residual(x: Any, b: Any = 1.0) -> Any:
    """XᵀBX − I; ``b`` may be a scalar."""
    bx = b * x if np.ndim(b) == 0 else b @ x
    return transpose(x) @ bx - np.eye(x.shape[-1], dtype=x.dtype)


def plain_dissolve(x: Any, b: Any = 1.0) -> Any:
    """X(15I − 10M + 3M²)/8, one product after the other."""
    m = gram_residual(x, b) + np.eye(x.shape[-1], dtype=x.dtype)
    return (15 * x - 10 * (x @ m) + 3 * (x @ m @ m)) / 8


def plain_penalty(x: Any, b: Any = 1.0) -> Any:
    """‖XᵀBX − I‖²/4, one number for each matrix."""
    return (gram_residual(x, b) ** 2).sum((-2, -1)) / 4


def polar(x: Any, b: Any = None) -> np.ndarray:
    """UVᵀ of the SVD in float64; with a metric X(XᵀBX)^(−1/2) = B^(−1/2)polar(√B X)."""
    x = np.asarray(x, np.float64)
    if b is None:
        u, _, vt = np.linalg.svd(x, full_matrices=False)
        return u @ vt
    root = np.real(scipy.linalg.sqrtm(np.asarray(b, np.float64)))
    return np.linalg.solve(root, polar(root @ x))


def spectral(x: Any, b: Any = None) -> float:
    """‖XᵀBX − I‖₂ in float64; of a stack, the largest."""
    x = np.asarray(x, np.float64)
    e = gram_residual(x, 1.0 if b is None else np.asarray(b, np.float64))
    return float(np.linalg.norm(e, 2, axis=(-2, -1)).max())


def proposed(x: Any, u: Any, b: Any = None) -> np.ndarray:
    """x + u in float64, with s·clip(s, 0, 1) for the mean normal part s of u."""
    x, u = np.asarray(x, np.float64), np.asarray(u, np.float64)
    bx = x if b is None else np.asarray(b, np.float64) @ x
    s = np.sum(bx * u, axis=(-2, -1), keepdims=True) / x.shape[-1]
    return x + u - (s - s * np.clip(s, 0, 1)) * x


def near(n: int, p: int, seed: int, size: float, kind: str, b: Any = None) -> Any:
    """A point with ‖E‖_F = ``size`` ≤ 1: E random, or all in one eigenvalue."""
    rng = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh(symmetric(rng.standard_normal((p, p))))
    if kind != "spread":
        values = np.eye(p)[0] * (1.0 if kind == "stretched" else -1.0)
    gram = 1 + size * values / np.linalg.norm(values)
    q = polar(rng.standard_normal((n, p)), b)
    return jnp.asarray(q @ (vectors * np.sqrt(gram)) @ vectors.T)


each_residual = pytest.mark.parametrize("kind", ["spread", "stretched", "shrunk"])


def inner(a: Any, b: Any) -> float:
    """The Euclidean inner product."""
    return float((a * b).sum())


def assert_close(actual: Any, desired: Any, tol: float) -> None:
    """Equal up to ``tol`` times the largest entry, or one: entries may cancel."""
    desired = np.asarray(desired, np.float64)
    scale = max(1.0, float(np.max(np.abs(desired), initial=0.0)))
    actual = np.asarray(actual, np.float64)
    assert actual.shape == desired.shape
    np.testing.assert_allclose(actual, desired, rtol=0, atol=tol * scale)


def step(tx: Any) -> Callable[..., Any]:
    """One step of an optimiser, from (params, state, grads) to (params, state)."""

    def take(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return take


def descend(tx: Any, gradient: Callable[..., Any], x: Any, steps: int) -> Any:
    """The end of a run and its state, and the points on the way, compiled."""

    def body(carry, _):
        x, state = step(tx)(*carry, gradient(carry[0]))
        return (x, state), x

    return jax.jit(lambda x: jax.lax.scan(body, (x, tx.init(x)), length=steps))(x)


def worst_run(tx: Any, x: jax.Array, bound: Any, steps: int) -> jax.Array:
    """‖E‖ after each step, the direction being the worst of many of norm ``bound``."""

    def step(x, random):
        e = x.T @ x - jnp.eye(x.shape[1])
        normals = [x, x @ e, x @ e @ e, x @ e @ e @ e, jnp.sign(x)]
        tried = jnp.concatenate([random, jnp.stack(normals), -jnp.stack(normals)])
        tried *= bound / jnp.maximum(
            jnp.linalg.norm(tried, axis=(1, 2), keepdims=True), 1e-12
        )
        reached = jax.vmap(lambda d: x + tx.update(d, tx.init(x), x)[0])(tried)
        sizes = jnp.linalg.norm(gram_residual(reached), axis=(1, 2))
        worst = jnp.argmax(sizes)
        return reached[worst], sizes[worst]

    return jax.lax.scan(step, x, normal((steps, 8, *x.shape), 0))[1]


def equations(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """Every equation of a jaxpr and of all jaxprs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for leaf in jax.tree.leaves(list(equation.params.values())):
            if isinstance(leaf, core.ClosedJaxpr):
                yield from equations(leaf.jaxpr)
            elif isinstance(leaf, core.Jaxpr):
                yield from equations(leaf)


def traced(f: Callable[..., Any], *args: Any) -> list[Any]:
    """Every equation that ``f`` is traced to."""
    return list(equations(jax.make_jaxpr(f)(*args).jaxpr))


def primitives(f: Callable[..., Any], *args: Any) -> set[str]:
    """The names of the primitives that ``f`` is traced to."""
    return {equation.primitive.name for equation in traced(f, *args)}


def traced_products(f: Callable[..., Any], *args: Any) -> list[int]:
    """The multiplications of each matrix product of the trace, in order of size."""
    work = []
    for equation in traced(f, *args):
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            lhs = equation.invars[0].aval.shape
            out = math.prod(equation.outvars[0].aval.shape)
            work.append(out * math.prod(lhs[axis] for axis in contracted))
    return sorted(work)


def products_in(computation: str) -> list[int]:
    """The multiplications of each matrix product in a computation of XLA's text."""
    found = re.findall(r"(%\S+) = \w+\[([\d,]*)\]", computation)
    found += re.findall(r"(\S+): \w+\[([\d,]*)\]", computation)
    shape = {
        name.lstrip("%("): [int(size) for size in sizes.split(",") if size]
        for name, sizes in found
    }
    pattern = r"%(\S+) = \S+ dot\(%(\S+), %\S+\), .*?lhs_contracting_dims={([\d,]+)}"
    work = []
    for out, lhs, axes in re.findall(pattern, computation):
        contracted = math.prod(shape[lhs][int(axis)] for axis in axes.split(","))
        work.append(math.prod(shape[out]) * contracted)
    return work


def compiled_text(f: Callable[..., Any], *args: Any) -> str:
    """The program that XLA compiles."""
    # In haste: machine code is not looked at.
    program = jax.jit(f).lower(*args).compile({"xla_backend_optimization_level": "0"})
    text = program.as_text() or ""
    assert not re.search(r"= \S+ (custom-call|convolution)\(", text)
    return text


def compiled_products(f: Callable[..., Any], *args: Any) -> list[int]:
    """The products of the program that XLA compiles, fusions included, by size."""
    parts = re.split(r"\n(?=\S)", compiled_text(f, *args))
    return sorted(work for part in parts for work in products_in(part))


def guarded_algorithm_1(beta, optimizer, mask=None):
    """Algorithm 1 of the paper with any optimiser, and the guarded step behind it."""
    first, last = cdx.dissolve_gradients(beta, mask), cdx.keep_feasible(mask)
    return optax.chain(first, optimizer, last)
