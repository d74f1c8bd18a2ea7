"""What a step costs beyond its matrix products: ``python -m benchmarks.cost``.

Each function runs beside a bare program of the same products, in turns, so that a busy
machine slows both; the ratio of the medians is printed.
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cdopt_jax as cdx

SHAPES = ((1024, 128), (2304, 256), (4608, 512))


def _mm(a, b):
    return jnp.matmul(a, b, precision="highest")


def floor(x: jax.Array, u: jax.Array) -> jax.Array:
    """Four products of n×p×p and two of p×p×p, and nothing else."""
    m, k = _mm(x.mT, x), _mm(x.mT, u)
    return _mm(x, _mm(k, m)) + _mm(u, _mm(m, m))


def guarded(x: jax.Array, u: jax.Array) -> jax.Array:
    """The guarded step, to the new point."""
    tx = cdx.keep_feasible()
    updates, _ = tx.update(u, tx.init(x), x)
    return jnp.asarray(optax.apply_updates(x, updates))


def gradient(x: jax.Array, u: jax.Array) -> jax.Array:
    """The fused gradient of Algorithm 1."""
    return cdx.stiefel.gradient(x, u, 1.0)


FUNCTIONS: dict[str, Callable[..., jax.Array]] = {
    "floor": floor,
    "guarded step": guarded,
    "gradient": gradient,
}


def measure(shape: tuple[int, ...], repeats: int) -> dict[str, float]:
    """The median seconds of each function."""
    x = cdx.stiefel.random(jax.random.key(0), shape, jnp.float32)
    u = cdx.stiefel.tangent(x, jax.random.normal(jax.random.key(1), shape))
    u = 0.1 * u / jnp.linalg.norm(u)  # a short step, as in ordinary training
    compiled = {name: jax.jit(f) for name, f in FUNCTIONS.items()}
    for f in compiled.values():
        f(x, u).block_until_ready()
    seconds: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(repeats):
        for name, f in compiled.items():
            began = time.perf_counter()
            f(x, u).block_until_ready()
            seconds[name].append(time.perf_counter() - began)
    return {name: float(np.median(taken)) for name, taken in seconds.items()}


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=41)
    options = parser.parse_args(arguments)
    print("| shape | floor, ms | guarded step | gradient |\n|---|---|---|---|")
    for shape in SHAPES:
        taken = measure(shape, options.repeats)
        ratios = [taken[name] / taken["floor"] for name in ("guarded step", "gradient")]
        cells = " | ".join(f"{ratio:.2f} ×" for ratio in ratios)
        print(f"| {shape} | {1e3 * taken['floor']:.2f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
