"""Nonnegative matrices with orthonormal columns.

Nonnegative columns are orthonormal if they have unit length and no row has two nonzero
entries. With several columns A leaves the orthant, but with one column it does not. So
each column is constrained to unit length by itself, and the overlap of the columns,
Σᵢ Σ_{j<k} xᵢⱼxᵢₖ, is a penalty: Jiang, Meng, Wen and Chen, "An exact penalty approach
for optimization with nonnegative orthogonality constraints", arXiv 1907.12424.

1. The weight of the penalty rises from phase to phase until there is no overlap.
2. Each row keeps its largest entry. In a phase without the penalty the other entries
   stay zero, but a row of zeros is free in all columns. If this phase ends without
   overlap, its certificate is that of the constrained problem: the point is stationary
   along every direction in which the constraints allow a step.
3. Otherwise the second part is repeated. In the end rows of zeros, too, are bound to
   one column. Then the point is feasible, and the result says that it is not certified.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from cdopt_jax._errors import error
from cdopt_jax._leaves.structure import Structure
from cdopt_jax.prox import Regularizer

from .phase import BOUND, FREE, LOOSE, SETTLED, Phase

WEIGHTS = tuple(2.0**k for k in range(-8, 7))
"""The weights of the penalty, relative to the size of the gradient at the start. Of 48
runs on clusters, random quadratics, linear functions and factorisations, those from
2⁻⁸ ended at a mean gap of 3 % to the least value seen, and those from 2⁻⁴ of 8 %."""

SHORT, ROUNDS = 300, 5
"""The most steps for one weight, and how often rows are assigned to columns."""

NOISE = 1e-2
"""The relative size of the perturbation of each start of a phase with the penalty."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """The leaves whose columns are nonnegative and orthonormal.

    Attributes:
        structure: The leaves of the parameters; others than these count as free.
    """

    structure: Structure

    def apart(self, structure: Structure) -> Structure:
        """The structure in which each of these columns is a matrix of its own."""

        def single(given, r):
            if r is None:
                return given
            if r.wide:
                return dataclasses.replace(r, batch=r.batch + r.rows, rows=())
            batch = r.batch + r.columns
            return dataclasses.replace(r, batch=batch, columns=(), blocks=1)

        pairs = zip(structure.readings, self.structure.readings, strict=True)
        return structure.read_as(single(*pair) for pair in pairs)

    @partial(jax.jit, static_argnums=0)
    def overlap(self, params: optax.Params) -> Array:
        """The sum of the products of two entries in one row, over all rows."""
        sums = [
            jnp.sum(jnp.sum(x, -1) ** 2 - jnp.sum(x * x, -1)) / 2
            for x in self._matrices(params)
        ]
        return jnp.sum(jnp.stack(sums))

    @partial(jax.jit, static_argnums=0)
    def overlapping(self, params: optax.Params) -> Array:
        """Whether a row has two nonzero entries."""
        found = [jnp.any(jnp.sum(x != 0, axis=-1) > 1) for x in self._matrices(params)]
        return jnp.any(jnp.stack(found))

    @partial(jax.jit, static_argnums=0)
    def assigned(
        self, params: optax.Params, kind: Array
    ) -> tuple[optax.Params, list[Array]]:
        """The absolute values as the start of a phase, and which may be nonzero in it.

        Args:
            params: The parameters.
            kind: `FREE` for all entries, `SETTLED` for the largest entry of each row
                and for rows of zeros, `BOUND` for one entry of each row.
        """
        pairs = [_assigned(x, kind) for x in self._matrices(params)]
        start = self._written([kept for kept, _ in pairs], params)
        return start, [allowed for _, allowed in pairs]

    def restricted(self, regularizer: Regularizer, allowed: list[Array]) -> Regularizer:
        """The regularizer for matrices that are zero where they are not allowed."""

        def prox(params, step):
            new = regularizer.prox(params, step)
            pairs = zip(self._matrices(new), allowed, strict=True)
            return self._written([jnp.where(a, x, 0) for x, a in pairs], new)

        return Regularizer(value=regularizer.value, prox=prox)

    def _matrices(self, params):
        pairs = zip(self.structure.read(params), self.structure.readings, strict=True)
        return [x for x, r in pairs if r is not None]

    def _written(self, matrices, params):
        new = iter(matrices)
        pairs = zip(jax.tree.leaves(params), self.structure.readings, strict=True)
        return self.structure.write([a if r is None else next(new) for a, r in pairs])


def nonnegative_columns(
    params: optax.Params, structure: Structure, regularizer: Regularizer | None
) -> Columns | None:
    """The leaves with nonnegative orthonormal columns, None if there are none."""
    if regularizer is None:
        return None
    kept = regularizer.keeps_nonnegative(params)
    if not any(kept):
        return None
    pairs = zip(structure.readings, kept, strict=True)
    readings = [r if nonnegative else None for r, nonnegative in pairs]
    for index, (r, slot) in enumerate(zip(readings, structure.slots, strict=True)):
        if r is not None and (r.B is not None or slot is not None):
            raise error(
                "prox.nonnegative_l1 is for orthonormal columns without a metric; "
                f"{structure.describe(index)} and a B. Give this leaf the weight 0."
            )
    return Columns(structure.read_as(readings)) if any(readings) else None


def nonnegative_phases(most: int, *, warm: bool) -> list[Phase]:
    """The phases of a run of so many steps; from the end of another, no penalty."""
    short = 0 if warm else min(SHORT, (most - 1) // 2 // len(WEIGHTS))
    # A first step shows how large the gradient is.
    ahead = [0.0, *WEIGHTS] if short else []
    found = [
        Phase(tol=LOOSE, budget=1 + i * short, overlap=weight, kind=FREE)
        for i, weight in enumerate(ahead)
    ]
    last = Phase(budget=most, kind=SETTLED)
    return [*found, *[last] * ROUNDS, last._replace(kind=BOUND)]


def _unit_length(x):
    size = jnp.linalg.norm(x, axis=-2, keepdims=True)
    return x / jnp.where(size > 0, size, 1)


def _assigned(x, kind):
    x = jnp.abs(x)
    columns = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    most = jnp.argmax(x, axis=-1, keepdims=True)
    largest = columns == most.astype(jnp.int32)
    own = jnp.vectorize(_own, signature="(n,p),(n,p)->(n)")(x, largest)
    # −1 in a row that no column has for its own.
    bound = jnp.where(own[..., None] < 0, largest, columns == own[..., None])
    zero = jnp.max(x, axis=-1, keepdims=True) == 0
    allowed = (kind == FREE) | bound | ((kind == SETTLED) & zero & (own < 0)[..., None])
    # Equal columns are a saddle of the penalty.
    waves = jnp.cos(12.9898 * jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    x = jnp.where(kind == FREE, (1 + NOISE * waves) * x, x)
    kept = jnp.where(allowed, x, 0)
    lost = jnp.max(kept, axis=-2, keepdims=True) == 0
    kept = jnp.where(lost & (columns == own[..., None]), 1, kept)
    return _unit_length(kept), allowed


def _own(x, largest):
    """For each row the column that has it for its own, so that no column is zero."""

    def one(own, j):
        # A row of which the entry is the largest, if there is one, or any other.
        first = (largest[:, j] & (x[:, j] > 0)).astype(x.dtype)
        score = jnp.where(own < 0, x[:, j] + first, -1)
        return own.at[jnp.argmax(score)].set(j), None

    none = jnp.full(x.shape[0], -1, jnp.int32)
    own, _ = lax.scan(one, none, jnp.arange(x.shape[1], dtype=jnp.int32))
    return own
