"""What rounding adds to residuals: in the Gram matrix, and when a point is stored."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from .products import Form, adjoint, norm


class Stored(NamedTuple):
    """The dtypes to which the result of a step is rounded.

    Attributes:
        leaf: That of the parameters.
        update: That of the update, which is added to them.
        scale: What the matrices are multiplied by before they are stored.
    """

    leaf: Any
    update: Any
    scale: float = 1.0

    @property
    def half(self) -> bool:
        """Whether the parameters have half precision."""
        return jnp.finfo(self.leaf).bits < 32


def rounded(x: Array, move: Array, stored: Stored) -> Array:
    """The point x + move as it will be stored."""

    def to(v, dtype):
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return v  # there is no complex half precision
        # Not astype twice, which XLA may leave out.
        kind = jnp.finfo(dtype)
        return lax.reduce_precision(v, kind.nexp, kind.nmant)

    if stored.scale == 1:
        return to(x + to(move, stored.update), stored.leaf)
    c = stored.scale
    return to(c * x + to(c * move, stored.update), stored.leaf) / c


def storing_error(x: Array, move: Array, y: Array, form: Form, stored: Stored) -> Array:
    """What storing x + move in place of y adds to the residual of y.

    ‖E(y + d)‖ ≤ ‖E(y)‖ + 2‖y‖δ + δ², where δ is the norm of d and ‖y‖ ≤ 1.1.
    """
    d = lax.stop_gradient(rounded(x, move, stored) - y)
    delta = jnp.sqrt(form.dot(d, form.apply(d)))
    return 2.2 * delta + delta**2


def full_storing_error(distance: Array, p: int) -> Array:
    """A bound of `storing_error` in full precision, without a look at the entries.

    Each of the two roundings in x + (y − x) is at most half a unit in the last place
    of ‖x‖ + ‖y‖, and ‖x‖² ≤ p(1 + ``distance``).
    """
    eps = jnp.finfo(distance.dtype).eps
    delta = eps * p**0.5 * (2 + jnp.sqrt(1 + distance))
    return 2.2 * delta + delta**2


def gram_rounding(
    z: Array,
    bz: Array,
    gram: Array,
    form: Form,
    mean: Array,
    x: Array | None = None,
    twist: Any = 0.0,
) -> Any:
    """What rounding may add to zᴴBz/m.

    With a metric that includes what storing the next point y as x + (y − x) adds: to
    the first order 2‖By‖·‖d‖, where d is a rounding error of entries of x.
    """
    p, eps = z.shape[-1], jnp.finfo(z.dtype).eps
    if form.B is None:
        return float(16 * eps * p**0.5)
    # B is Hermitian: what is not Hermitian here is the rounding of Bz.
    asymmetry = norm(gram - adjoint(gram)) + jnp.abs(twist)
    size = 4 * jnp.sqrt(form.dot(z, z))
    if x is not None:
        size = size + jnp.sqrt(mean * form.dot(x, x))
    sizes = size * jnp.sqrt(form.dot(bz, bz) / p)
    return lax.stop_gradient((4 * eps * sizes + 4 * asymmetry) / mean)
