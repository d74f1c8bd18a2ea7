"""Hostile updates at random: no step leaves the radius, and no bound is too small."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx

COUNT = 24
"""How many matrices take a step together, each with an attack of its own."""

RADII = (0.5, 0.02, 0.99, 1e-3)
HALF = {"bfloat16": 0.03, "float16": 0.004}
"""What storing in half precision may add, over √p."""

DTYPES = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
SHAPES = ((8, 3), (20, 4), (64, 16), (5, 5), (40, 1), (30, 12), (40, 40))
CASES = [
    (shape, dtype, condition)
    for shape in SHAPES
    for dtype in DTYPES
    for condition in (1.0, 1e2, 1e4)
    if condition == 1 or dtype not in HALF
]
# By default a dtype of each kind, with and without a metric; all take minutes.
USUAL = [((20, 4), dtype, 1.0) for dtype in ("float32", "bfloat16", "complex128")]
USUAL += [((20, 4), "float32", 1e4), ((5, 5), "complex64", 1e2)]
# Square, where ‖E‖_F is much above ‖E‖, with a metric that magnifies rounding.
USUAL += [((40, 40), "float32", 1e4)]


class Attacker:
    """Draws points and updates, in double precision."""

    def __init__(self, shape: tuple[int, int], seed: int, *, is_complex: bool):
        self.shape, self._complex = shape, is_complex
        self._rng = np.random.default_rng(seed)

    def normal(self, *shape: int) -> np.ndarray:
        """Standard normal entries."""
        z = self._rng.standard_normal(shape)
        return z + 1j * self._rng.standard_normal(shape) if self._complex else z

    def power(self, least: float, most: float) -> float:
        """A number of any size between two powers of ten."""
        return 10 ** self._rng.uniform(least, most)

    def hermitian(self, p: int) -> np.ndarray:
        """A Hermitian matrix of norm one."""
        h = self.normal(p, p)
        h = h + h.conj().T
        return h / np.linalg.norm(h, 2)

    def metric(self, condition: float) -> np.ndarray | None:
        """A metric of this condition number; none for one."""
        if condition == 1:
            return None
        n = self.shape[0]
        q = np.linalg.qr(self.normal(n, n))[0]
        return (q * np.geomspace(1 / condition, 1, n)) @ q.conj().T

    def point(self, b: np.ndarray | None, radius: float, *, edge: bool) -> np.ndarray:
        """A point of the manifold, or one next to the edge of the radius."""
        x = self.normal(*self.shape)
        if b is None:
            x = np.linalg.qr(x)[0]
        else:
            factor = np.linalg.cholesky(b).conj().T
            x = np.linalg.solve(factor, np.linalg.qr(x)[0])
        if not edge:
            return x
        p = self.shape[1]
        w, v = np.linalg.eigh(np.eye(p) + 0.85 * radius * self.hermitian(p))
        return x @ (v * np.sqrt(w)) @ v.conj().T

    def update(self, x: np.ndarray) -> np.ndarray:
        """One of the attacks."""
        n, p = self.shape
        entry = np.zeros_like(x)
        entry[self._rng.integers(n), self._rng.integers(p)] = self.power(0, 18)
        nan = self.normal(n, p)
        nan[0, 0] = np.nan
        attacks: list[Callable[[], np.ndarray]] = [
            lambda: -x,
            lambda: -2 * x,
            lambda: self.normal(n, p) * self.power(-8, 10),
            lambda: self.normal(n, p) * self.power(-3, 0),
            lambda: self.normal(n, 1) @ self.normal(1, p) * self.power(-3, 9),
            lambda: x @ self.hermitian(p) * self.power(-3, 5),
            lambda: -x + self.normal(n, p) * self.power(-12, 0),
            lambda: -x * self._rng.integers(0, 3, p),
            lambda: entry,
            lambda: nan,
        ]
        return attacks[self._rng.integers(len(attacks))]()


def residual(x: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """‖xᴴBx − I‖ of each matrix, in double precision."""
    bx = x if b is None else b @ x
    gram = np.conj(np.swapaxes(x, -1, -2)) @ bx
    return np.linalg.norm(gram - np.eye(x.shape[-1]), 2, axis=(-2, -1))


def attack(shape: Any, dtype: str, condition: float, rounds: int) -> None:
    wide = "float32" if dtype in HALF else dtype
    double = np.result_type(wide, np.float64)
    foe = Attacker(shape, seed=rounds, is_complex="complex" in dtype)
    b = foe.metric(condition)
    # The metric as the package is given it, rounded.
    b = b if b is None else np.asarray(b, wide).astype(double)
    B = None if b is None else jnp.asarray(b, wide)

    @jax.jit
    def step(x, u, radius):
        reading = cdx.Stiefel(rows=-2, columns=-1, B=B)
        tx = cdx.keep_feasible(reading, radius=radius)
        updates, state = tx.update(u, tx.init(x), x)
        return optax.apply_updates(x, updates), optax.tree.get(state, "bound")[0]

    p = shape[1]
    rounding = 64 * float(jnp.finfo(wide).eps) * (p * condition) ** 0.5
    rounding += HALF.get(dtype, 0.0) * p**0.5
    for i in range(rounds):
        radius = RADII[i % len(RADII)]
        points = [foe.point(b, radius, edge=i % 2 == 1) for _ in range(COUNT)]
        # A round of short steps alone takes another branch.
        update = (lambda x: 1e-3 * foe.normal(*x.shape)) if i % 3 == 2 else foe.update
        updates = [update(x) for x in points]
        x = jnp.asarray(np.stack(points)).astype(dtype)
        y, bound = step(x, jnp.asarray(np.stack(updates)).astype(dtype), radius)
        before, after = (residual(np.asarray(a.astype(double)), b) for a in (x, y))
        assert np.all(after <= np.maximum(before, radius) + rounding), (i, radius)
        assert np.max(after) <= float(bound) * (1 + 1e-6) + 1e-14, (i, radius)


@pytest.mark.parametrize(("shape", "dtype", "condition"), USUAL, ids=str)
def test_no_attack_leaves_the_radius_or_passes_the_bound(shape, dtype, condition):
    attack(shape, dtype, condition, rounds=12)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "dtype", "condition"), CASES, ids=str)
def test_no_attack_of_many_leaves_the_radius(shape, dtype, condition):
    attack(shape, dtype, condition, rounds=60)
