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
FIELDS = ("float64", "complex128")
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
each_field = pytest.mark.parametrize("dtype", FIELDS)
each_metric = pytest.mark.parametrize("metric", METRICS)


def normal(shape: tuple[int, ...], seed: int, dtype: Any = None) -> jax.Array:
    """Independent standard normal entries; float64 unless told otherwise.

    The real and the imaginary parts of complex ones are independent, too.
    """
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if dtype is not None and jnp.issubdtype(dtype, jnp.complexfloating):
        values = (values + 1j * rng.standard_normal(shape)) / math.sqrt(2)
    return jnp.asarray(values, dtype)


def points(
    shape: tuple[int, ...], count: int, dtype: Any = None
) -> Iterator[list[np.ndarray]]:
    """For each seed: a point with singular values of order one, then directions."""
    for seed in SEEDS:
        x, *rest = np.asarray(normal((count, *shape), seed, dtype))
        yield [x / math.sqrt(shape[-2]), *rest]


def spd(n: int, dtype: Any = None) -> np.ndarray:
    """A Hermitian positive definite matrix with eigenvalues between 0.5 and 3."""
    is_complex = dtype is not None and jnp.issubdtype(dtype, jnp.complexfloating)
    q = np.linalg.qr(normal((n, n), n, np.complex128 if is_complex else None))[0]
    return (q * np.linspace(0.5, 3.0, n)) @ q.conj().T


def metric_of(kind: str, n: int, dtype: Any = None) -> tuple[Any, jax.Array]:
    """What to pass as ``B``, and the matrix it stands for."""
    if kind == "none":
        return None, jnp.eye(n, dtype=dtype)
    b = jnp.asarray(spd(n, dtype), dtype)
    return (b if kind == "array" else lambda v: b @ v), b


def transpose(x: Any) -> Any:
    """The conjugate transpose of each matrix of a stack."""
    return x.conj().swapaxes(-1, -2)


def tall(x: Any) -> Any:
    """The matrices, or where they are wide their transposes, without conjugates."""
    return x if x.shape[-2] >= x.shape[-1] else x.swapaxes(-1, -2)


def symmetric(s: Any) -> Any:
    """Φ(S), the symmetric or Hermitian part."""
    return (s + transpose(s)) / 2


def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """The direction of steepest ascent of a real function, by autodiff."""
    return lambda x: jax.grad(f)(x).conj()


def pulled_back(f: Callable[..., Any], x: Any, w: Any) -> Any:
    """The adjoint of f's derivative at x, in the inner product `inner`."""
    return jax.vjp(f, x)[1](w.conj())[0].conj()


def double(x: Any) -> np.ndarray:
    """The same numbers in double precision."""
    return np.asarray(x, np.complex128 if np.iscomplexobj(x) else np.float64)


def gram_residual(x: Any, b: Any = 1.0) -> Any:
    """XᴴBX − I; ``b`` may be a scalar."""
    bx = b * x if np.ndim(b) == 0 else b @ x
    return transpose(x) @ bx - np.eye(x.shape[-1], dtype=x.dtype)


def plain_dissolve(x: Any, b: Any = 1.0) -> Any:
    """X(15I − 10M + 3M²)/8, one product after the other."""
    m = gram_residual(x, b) + np.eye(x.shape[-1], dtype=x.dtype)
    return (15 * x - 10 * (x @ m) + 3 * (x @ m @ m)) / 8


def plain_penalty(x: Any, b: Any = 1.0) -> Any:
    """‖XᴴBX − I‖²/4, one number for each matrix."""
    e = gram_residual(x, b)
    return (e.real**2 + e.imag**2).sum((-2, -1)) / 4


def polar(x: Any, b: Any = None) -> np.ndarray:
    """UVᴴ of the SVD in float64; with a metric X(XᴴBX)^(−1/2) = B^(−1/2)polar(√B X)."""
    x = double(x)
    if b is None:
        u, _, vt = np.linalg.svd(x, full_matrices=False)
        return u @ vt
    root = scipy.linalg.sqrtm(double(b))
    root = root if np.iscomplexobj(b) else np.real(root)
    return np.linalg.solve(root, polar(root @ x))


def spectral(x: Any, b: Any = None) -> float:
    """‖XᴴBX − I‖₂ in float64; of a stack, the largest."""
    e = gram_residual(double(x), 1.0 if b is None else double(b))
    return float(np.linalg.norm(e, 2, axis=(-2, -1)).max())


def proposed(x: Any, u: Any, b: Any = None) -> np.ndarray:
    """x + u in float64, with s·clip(s, 0, 1) for the mean normal part s of u."""
    x, u = double(x), double(u)
    bx = x if b is None else double(b) @ x
    s = np.sum((bx.conj() * u).real, axis=(-2, -1), keepdims=True) / x.shape[-1]
    return x + u - (s - s * np.clip(s, 0, 1)) * x


def near(
    n: int,
    p: int,
    seed: int,
    size: float,
    kind: str,
    b: Any = None,
    dtype: Any = None,
) -> Any:
    """A point with ‖E‖_F = ``size`` ≤ 1: E random, or all in one eigenvalue."""
    e, z = normal((p, p), seed, dtype), normal((n, p), seed + 1000, dtype)
    values, vectors = np.linalg.eigh(symmetric(np.asarray(e)))
    if kind != "spread":
        values = np.eye(p)[0] * (1.0 if kind == "stretched" else -1.0)
    gram = 1 + size * values / np.linalg.norm(values)
    q = polar(z, b)
    return jnp.asarray(q @ (vectors * np.sqrt(gram)) @ vectors.conj().T)


each_residual = pytest.mark.parametrize("kind", ["spread", "stretched", "shrunk"])


def inner(a: Any, b: Any) -> float:
    """The Euclidean inner product, of complex arrays its real part."""
    return float((a.conj() * b).sum().real)


def assert_close(actual: Any, desired: Any, tol: float) -> None:
    """Equal up to ``tol`` times the largest entry, or one: entries may cancel."""
    desired, actual = double(desired), double(actual)
    scale = max(1.0, float(np.max(np.abs(desired), initial=0.0)))
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
        e = gram_residual(x)
        normals = [x, x @ e, x @ e @ e, x @ e @ e @ e, jnp.sign(x)]
        tried = jnp.concatenate([random, jnp.stack(normals), -jnp.stack(normals)])
        tried *= bound / jnp.maximum(
            jnp.linalg.norm(tried, axis=(1, 2), keepdims=True), 1e-12
        )
        reached = jax.vmap(lambda d: x + tx.update(d, tx.init(x), x)[0])(tried)
        sizes = jnp.linalg.norm(gram_residual(reached), axis=(1, 2))
        worst = jnp.argmax(sizes)
        return reached[worst], sizes[worst]

    return jax.lax.scan(step, x, normal((steps, 8, *x.shape), 0, x.dtype))[1]


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
