"""The problems on which the rivals were published, at the sizes of their protocols.

Each is a quadratic function ⟨X, HX⟩/2 − ⟨C, X⟩ + c, or a sum over samples of which a
step sees a batch, scaled so that the largest eigenvalue that matters is one: then one
grid of learning rates serves all of them. Arrays are arguments of the programs, since
XLA would spend minutes on constants of this size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from benchmarks.shared.algebra import product
from benchmarks.shared.problems.draws import geometric, on_the_side_of, orthogonal

Data = dict[str, jax.Array]


class Instance(NamedTuple):
    """A problem to solve.

    Attributes:
        data: Its arrays: ``h``, ``c`` and ``constant``, or ``samples``.
        start: Where all methods start, on the manifold.
        best: The least value.
        metric: B of XᵀBX = I, or None.
        batch: How many samples a step sees; None if it sees all.
    """

    data: Data
    start: jax.Array
    best: float
    metric: jax.Array | None = None
    batch: int | None = None

    def value(self, x: jax.Array, data: Data) -> jax.Array:
        """The objective, over all samples."""
        if "samples" in data:
            samples = data["samples"]
            return -jnp.sum(product(samples, x) ** 2) / (2 * len(samples))
        slope = product(data["h"], x)
        return jnp.sum(x * (slope / 2 - data["c"])) + data["constant"]

    def gradient(self, x: jax.Array, data: Data, key: jax.Array) -> jax.Array:
        """The gradient that a step sees."""
        if "samples" not in data:
            return product(data["h"], x) - data["c"]
        samples = data["samples"]
        if self.batch is not None:
            drawn = jax.random.randint(key, (self.batch,), 0, len(samples))
            samples = samples[drawn]
        return -product(samples.T, product(samples, x)) / len(samples)

    def rows(self, x: jax.Array, data: Data, chosen: jax.Array) -> jax.Array:
        """Some rows of the gradient of a quadratic function."""
        slope = product(data["h"][chosen], x)
        return slope - (data["c"][chosen] if data["c"].ndim else data["c"])


class Protocol(NamedTuple):
    """A problem of a paper.

    Attributes:
        source: Whose it is, and what is to be known of it.
        make: From a size to the problem of that size.
        size: The size of the protocol.
        small: The size at which learning rates are chosen.
        gap: The relative gap that is to be met.
        steps: How many steps are taken at most, with a cosine decay of the learning
            rate over them; None for a constant rate until the time is over.
        double: Whether it is computed in float64.
        after: The same problem at a smaller size, whose leaders alone are run.
        patience: How many times the usual seconds each method has.
        threads: Of LAPACK; None for one a core. With two, which wait for those of XLA,
            a QR retraction took 20 ms at 800×600, and 15 with one; at 2000×1500 162,
            and 205 with one.
    """

    source: str
    make: Callable[..., Instance]
    size: tuple[int, ...]
    small: tuple[int, ...]
    gap: float = 1e-6
    steps: int | None = None
    double: bool = False
    after: str | None = None
    patience: float = 1.0
    threads: int | None = 1


def _start(n: int, p: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(1).normal(size=(n, p)))[0]


def _quadratic(h, c, constant, start, best, metric=None) -> Instance:
    """An instance of NumPy arrays, in JAX's default precision."""
    data = {"h": jnp.asarray(h), "c": jnp.asarray(c), "constant": jnp.asarray(constant)}
    data = {name: array.astype(jnp.zeros(()).dtype) for name, array in data.items()}
    dtype = data["h"].dtype
    return Instance(
        data=data,
        start=jnp.asarray(start, dtype),
        best=float(best),
        metric=None if metric is None else jnp.asarray(metric, dtype),
    )


def pca(n: int, p: int, *, transposed: bool) -> Instance:
    """−tr(XᵀMX)/2 for M = QDQᵀ of condition number 1000, or for M = QDQ.

    Of QDQ the symmetric part counts, whose eigenvalues have both signs and nothing of
    the condition number.
    """
    m, spectrum, q = geometric(0, n, 1e3)
    if not transposed:
        m = (q * spectrum) @ q
        m = (m + m.T) / 2
        spectrum = np.linalg.eigvalsh(m)[::-1]
        m, spectrum = m / spectrum[0], spectrum / spectrum[0]
    return _quadratic(-m, 0.0, 0.0, _start(n, p), -spectrum[:p].sum() / 2)


def procrustes(n: int) -> Instance:
    """‖AX − B‖²/2 over orthogonal X, for Gaussian A and B.

    The start has the determinant of the solution, since no path can change its sign.
    """
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, n, n))
    u, s, vt = np.linalg.svd(a.T @ b)
    start = on_the_side_of(u @ vt, _start(n, n))
    constant = np.sum(b**2) / 2
    best = np.sum(a**2) / 2 + constant - np.sum(s)
    h, c = a.T @ a / s[0], a.T @ b / s[0]
    return _quadratic(h, c, constant / s[0], start, best / s[0])


def online_pca(count: int, n: int, p: int, *, noise: float = 0.1) -> Instance:
    """−‖AX‖²/(2N) seen through batches of 128 of the N samples.

    As the authors of landing draw it: A is of rank p with singular values from 1 to
    0.5, standardised column by column, and noise is added.
    """
    rng = np.random.default_rng(0)

    def basis(rows):
        return np.linalg.qr(rng.standard_normal((rows, p), np.float32))[0]

    v = basis(n)
    low = (basis(count) * np.linspace(1, 0.5, p, dtype=np.float32)) @ v.T
    low = (low - low.mean(axis=0)) / low.std(axis=0)
    samples = low + noise * rng.standard_normal((count, n), np.float32)
    # The spectrum falls by a factor of hundreds behind p: a few iterations are exact.
    for _ in range(6):
        v = np.linalg.qr(samples.T @ (samples @ v))[0]
    values = np.linalg.svd((samples @ v).astype(np.float64), compute_uv=False)
    scale = values[0] / count**0.5
    start = _start(n, p).astype(np.float32)
    return Instance(
        data={"samples": jnp.asarray(samples / np.float32(scale))},
        start=jnp.asarray(start),
        best=-float(np.sum((values / scale) ** 2)) / (2 * count),
        batch=128,
    )


def generalized(n: int, p: int, *, condition: float = 100.0) -> Instance:
    """−tr(XᵀAX)/2 where XᵀBX = I, both with evenly spaced eigenvalues in [1/κ, 1]."""
    rng = np.random.default_rng(0)
    spectrum = np.linspace(1, 1 / condition, n)
    bases = [orthogonal(rng, n) for _ in range(2)]
    a, b = ((q * spectrum) @ q.T for q in bases)
    leading = scipy.linalg.eigh(a, b, eigvals_only=True)[::-1][:p]
    x = rng.normal(size=(n, p))
    factor = np.linalg.cholesky(x.T @ b @ x)
    start = scipy.linalg.solve_triangular(factor, x.T, lower=True).T
    # Scaled by the largest eigenvalue of A, not of the pencil: rates are of a gradient.
    return _quadratic(-a, 0.0, 0.0, start, -leading.sum() / 2, metric=b)


_POGO = "POGO and RSDM: "
# One function for both sizes, so that rates are chosen once.
_PCA = partial(pca, transposed=True)
PROTOCOLS: dict[str, Protocol] = {
    "PCA, smaller": Protocol(
        source=f"{_POGO}condition number 1000",
        make=_PCA,
        size=(800, 600),
        small=(160, 120),
    ),
    "PCA": Protocol(
        source=f"{_POGO}condition number 1000",
        make=_PCA,
        size=(2000, 1500),
        small=(160, 120),
        after="PCA, smaller",
        patience=5.0,
        threads=None,
    ),
    "PCA, QDQ, smaller": Protocol(
        source=f"{_POGO}as their scripts form it, QDQ in place of QDQᵀ",
        make=partial(pca, transposed=False),
        size=(800, 600),
        small=(160, 120),
    ),
    "Procrustes, smaller": Protocol(
        source=f"{_POGO}Gaussian A and B",
        make=procrustes,
        size=(800,),
        small=(120,),
    ),
    "Procrustes": Protocol(
        source=f"{_POGO}Gaussian A and B",
        make=procrustes,
        size=(2000,),
        small=(120,),
        after="Procrustes, smaller",
        patience=5.0,
        threads=None,
    ),
    "online PCA, p = 100": Protocol(
        source="landing: 15000×5000, noise 0.1, batches of 128",
        make=online_pca,
        size=(15000, 5000, 100),
        small=(3000, 600, 20),
        gap=1e-4,
        steps=1200,
    ),
    "online PCA, p = 200": Protocol(
        source="landing: 15000×5000, noise 0.1, batches of 128",
        make=online_pca,
        size=(15000, 5000, 200),
        small=(3000, 600, 40),
        gap=1e-4,
        steps=1200,
    ),
    "generalized eigenvalues": Protocol(
        source="landing on the generalized Stiefel manifold: n = 1000, p = 500, "
        "condition number 100, float64",
        make=generalized,
        size=(1000, 500),
        small=(120, 60),
        double=True,
    ),
}
"""By title; sparse PCA is with the solvers, in `benchmarks.rivals.sparse`."""


def judge(instance: Instance) -> Callable[[Any], tuple[float, float]]:
    """From a point to its relative gap and its distance from the manifold.

    The gap is that of the point after one Newton–Schulz step towards the manifold,
    which leaves a feasible point as it is, so that no method gains by being off it.
    """
    metric = instance.metric

    @jax.jit
    def measured(x, data):
        eye = jnp.eye(x.shape[-1], dtype=x.dtype)
        m = product(x.T, x if metric is None else product(metric, x))
        near = product(x, 1.5 * eye - 0.5 * m)
        return instance.value(near, data), jnp.linalg.norm(m - eye)

    def of(x):
        x = jnp.asarray(x, instance.start.dtype)
        value, off = map(float, measured(x, instance.data))
        return (value - instance.best) / abs(instance.best), off

    return of
