"""Problems of unitary matrices whose least value another method knows.

A point is a stack of unitary matrices, of shape (k, n, n) and dtype complex128.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

import cdopt_jax as cdx

UNITARY = cdx.layers.dense()
"""The last two axes are a matrix, the first a stack."""


class Problem(NamedTuple):
    """A function of a stack of unitary matrices.

    Attributes:
        f: From the stack to a number.
        start: Where every method begins.
        least: The least value, or a bound below it.
        unit: What differences of values are divided by.
    """

    f: Callable[[jax.Array], jax.Array]
    start: jax.Array
    least: float
    unit: float

    def gap(self, value: Any) -> Any:
        """How far values are above the least."""
        return (value - self.least) / self.unit


class Kind(NamedTuple):
    """A family of problems.

    Attributes:
        title: Its name in the report.
        about: What is minimised, and who knows the least value.
        draw: From a seed to a problem.
        steps: How many steps a method may take.
        levels: The differences to the least value at which methods are compared.
    """

    title: str
    about: str
    draw: Callable[[int], Problem]
    steps: int
    levels: tuple[float, float] = (1e-6, 1e-12)


def random_stack(seed: int, *shape: int) -> jax.Array:
    """Uniformly random unitary matrices."""
    return cdx.stiefel.random(jax.random.key(seed), shape, jnp.complex128)


def _draws(seed: int, count: int, n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    pairs = rng.standard_normal((count, 2, n, n))
    return [(re + 1j * im) / np.sqrt(2 * n) for re, im in pairs]


def procrustes(seed: int, n: int = 32) -> Problem:
    """‖AU − C‖²: C is a turned A with noise; the least value is that of an SVD."""
    a, c, turn = _draws(seed, 3, n)
    c = a @ scipy.linalg.polar(turn)[0] + 0.3 * c
    # ‖AU − C‖² = ‖A‖² + ‖C‖² − 2 Re tr(UᴴAᴴC), and the trace is at most Σσ(AᴴC).
    most = np.linalg.svd(a.conj().T @ c, compute_uv=False).sum()
    size = np.sum(np.abs(a) ** 2) + np.sum(np.abs(c) ** 2)
    left, right = jnp.asarray(a), jnp.asarray(c)

    def f(u):
        return jnp.sum(jnp.abs(left @ u[0] - right) ** 2)

    return Problem(
        f=f,
        start=random_stack(seed, 1, n, n),
        least=float(size - 2 * most),
        unit=float(size),
    )


def diagonalisation(seed: int, n: int = 16) -> Problem:
    """tr(NUᴴHU) with N = diag(1, …, n): least where U has the eigenvectors in order."""
    (a,) = _draws(seed, 1, n)
    h = a + a.conj().T
    values = scipy.linalg.eigvalsh(h)
    weights = np.arange(1.0, n + 1)
    matrix, diagonal = jnp.asarray(h), jnp.asarray(weights)

    def f(u):
        return jnp.sum(diagonal * jnp.sum(u[0].conj() * (matrix @ u[0]), axis=0).real)

    return Problem(
        f=f,
        start=random_stack(seed, 1, n, n),
        least=float(values[::-1] @ weights),
        unit=float(np.abs(values) @ weights),
    )


def applied(gates: jax.Array, places: Sequence[int], state: jax.Array) -> jax.Array:
    """A circuit of gates on neighbouring qubits.

    Args:
        gates: Matrices of size four.
        places: The first qubit of each.
        state: With an axis of size two for each qubit, and any axes behind them.
    """
    for gate, i in zip(gates, places, strict=True):
        state = jnp.tensordot(gate.reshape(2, 2, 2, 2), state, ((2, 3), (i, i + 1)))
        state = jnp.moveaxis(state, (0, 1), (i, i + 1))
    return state


def gate(seed: int, count: int = 8) -> Problem:
    """A random unitary matrix of three qubits as a circuit: one minus its fidelity."""
    target = random_stack(100 + seed, 8, 8)
    basis = jnp.eye(8).reshape(2, 2, 2, 8)
    places = [k % 2 for k in range(count)]

    def f(gates):
        made = applied(gates, places, basis).reshape(8, 8)
        return 1 - jnp.abs(jnp.sum(target.conj() * made) / 8) ** 2

    return Problem(f=f, start=random_stack(seed, count, 4, 4), least=0.0, unit=1.0)


def least_energy(spins: int) -> float:
    """The least eigenvalue of −Σ ZᵢZᵢ₊₁ − Σ Xᵢ, with open ends."""
    x, z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])

    def at(matrix, i):
        left, right = map(scipy.sparse.identity, (2**i, 2 ** (spins - 1 - i)))
        return scipy.sparse.kron(scipy.sparse.kron(left, matrix), right)

    h = -sum(at(x, i) for i in range(spins))
    h = h - sum(at(z, i) @ at(z, i + 1) for i in range(spins - 1))
    found: Any = scipy.sparse.linalg.eigsh(
        scipy.sparse.csc_matrix(h), k=1, which="SA", return_eigenvectors=False
    )
    return float(found[0])


def ising(seed: int, spins: int = 10, depth: int = 6) -> Problem:
    """The energy of a brick wall of gates on |0…0⟩, above exact diagonalisation."""
    layers = [*range(0, spins - 1, 2), *range(1, spins - 1, 2)]
    pairs = depth // 2
    shapes = [[-1 if k == i else 1 for k in range(spins)] for i in range(spins)]
    signs = [np.array([1.0, -1.0]).reshape(shape) for shape in shapes]
    diagonal = jnp.asarray(sum(signs[i] * signs[i + 1] for i in range(spins - 1)))
    zero = jnp.zeros((2,) * spins, jnp.complex128).at[(0,) * spins].set(1)

    def f(gates):
        def two_layers(state, gates):
            return applied(gates, layers, state), None

        stacked = gates.reshape(pairs, len(layers), 4, 4)
        state, _ = jax.lax.scan(two_layers, zero, stacked)
        flipped = sum(jnp.flip(state, i) for i in range(spins))
        return -jnp.sum((state.conj() * (diagonal * state + flipped)).real)

    shape = (pairs * len(layers), 4, 4)
    noise = jax.random.normal(jax.random.key(seed), shape, jnp.complex128)
    start = cdx.project(jnp.eye(4) + 0.3 * noise, UNITARY)
    least = least_energy(spins)
    return Problem(f=f, start=start, least=least, unit=-least)


KINDS = {
    "procrustes": Kind(
        title="Procrustes",
        about="‖AU − C‖² for one unitary matrix of size 32, where C is a turned A with "
        "noise. The least value is that of a singular value decomposition, and "
        "differences are relative to ‖A‖² + ‖C‖².",
        draw=procrustes,
        steps=1000,
    ),
    "diagonalisation": Kind(
        title="Diagonalisation",
        about="tr(NUᴴHU) for one unitary matrix of size 16, with a Hermitian H and "
        "N = diag(1, …, 16): least where UᴴHU is diagonal with falling entries. The "
        "least value is that of the eigenvalues, and differences are relative to "
        "Σi|λᵢ|.",
        draw=diagonalisation,
        steps=1000,
    ),
    "gate": Kind(
        title="A gate of three qubits",
        about="One minus the fidelity of a circuit of eight gates on two qubits each, "
        "beside a random unitary matrix of size 8. The least value is 0.",
        draw=gate,
        steps=1000,
    ),
    "ising": Kind(
        title="The ground state of a chain of spins",
        about="The energy of a brick wall of 27 gates, of depth 6, in the transverse "
        "field Ising model of ten spins at its critical point. Differences are those "
        "to the least eigenvalue of the whole matrix, relative to it; what a circuit "
        "of this depth cannot reach is in them.",
        draw=ising,
        steps=1000,
        levels=(1e-3, 1e-4),
    ),
}
"""Under the name by which options ask for them."""

SMALL = {
    "procrustes": KINDS["procrustes"]._replace(draw=partial(procrustes, n=4), steps=40),
    "diagonalisation": KINDS["diagonalisation"]._replace(
        draw=partial(diagonalisation, n=3), steps=40
    ),
    "gate": KINDS["gate"]._replace(draw=partial(gate, count=3), steps=20),
    "ising": KINDS["ising"]._replace(draw=partial(ising, spins=3, depth=2), steps=20),
}
"""The same in small, to see them run."""
