"""The products and p×p polynomials that the formulas share.

Notation of `stiefel`: M = xᵀBx, E = M − I, Φ(s) = (s + sᵀ)/2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ._layout import contracted, like


def widen(dtype: Any) -> Any:
    """The dtype to compute in: float32 for half precision, else the same."""
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if half else dtype


def mm(a: Array, b: Array, out_sharding: Any = None) -> Array:
    """The product at the highest precision, without which feasibility is lost."""
    highest = lax.Precision.HIGHEST
    if out_sharding is not None:
        return jnp.matmul(a, b, precision=highest, out_sharding=out_sharding)
    return jnp.matmul(a, b, precision=highest)


class Form(NamedTuple):
    """The bilinear form aᵀBb, in which the sum over the rows may run over devices.

    Attributes:
        B: The metric: None for the identity, an ``(n, n)`` array or a callable.
        axis_name: The mapped axes that split the rows, inside ``shard_map``.
        across: The mapped axes that split the batch, inside ``shard_map``.
        stacked: Whether matrices come with one more axis in front than a callable B
            expects.
        indicator: Makes matrices of ones, with zeros in the rows that were added to
            make their number divisible among devices; None where there are none.
    """

    B: Any = None
    axis_name: Any = None
    across: tuple[str, ...] = ()
    stacked: bool = False
    indicator: Callable[[], Array] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The same as keyword arguments of the functions of `stiefel`."""
        mapped = self.stacked and callable(self.B)
        return {
            "B": jax.vmap(self.B) if mapped else self.B,
            "axis_name": self.axis_name,
        }

    def apply(self, x: Array) -> Any:
        """The product Bx."""
        if self.B is None:
            return x
        if callable(self.B):
            return jax.vmap(self.B)(x) if self.stacked else self.B(x)
        return mm(self.B, x, like(x))

    def inner(self, a: Array, b: Array) -> Array:
        """The product aᵀb, where B has been applied to one of the two."""
        sharding = contracted(a)
        if sharding is None:
            return self._total(mm(a.mT, b))
        # `jnp.matmul` drops axes of size one, and with them the order of a sharding.
        batch = tuple(range(a.ndim - 2))
        row = (a.ndim - 2,)
        return lax.dot_general(
            a,
            b,
            ((row, row), (batch, batch)),
            precision=lax.Precision.HIGHEST,
            out_sharding=sharding,
        )

    def length(self, u: Array, bu: Array) -> Array:
        """The trace of uᵀBu for each matrix."""
        return self._total(jnp.sum(u * bu, axis=(-2, -1)))

    def residual(self, x: Array, y: Array) -> Array:
        """E = xᵀy − I, where y = Bx."""
        m = self.inner(x, y)
        return m - eye(m)

    def largest(self, x: Array) -> Array:
        """The largest entry of each matrix, in absolute value."""
        top = jnp.max(jnp.abs(x), axis=(-2, -1))
        return top if self.axis_name is None else lax.pmax(top, self.axis_name)

    def worst(self, values: Array) -> Array:
        """The largest of one number for each matrix, the same on every device."""
        top = jnp.max(values)
        return lax.pmax(top, self.across) if self.across else top

    def _total(self, part):
        return part if self.axis_name is None else lax.psum(part, self.axis_name)


def phi(s: Array) -> Array:
    """The symmetric part."""
    return (s + s.mT) / 2


def eye(m: Array) -> Array:
    """The identity of the size and dtype of a square matrix."""
    return jnp.eye(m.shape[-1], dtype=m.dtype)


def norm(e: Array) -> Array:
    """The Frobenius norm of each matrix."""
    return jnp.sqrt(jnp.sum(e**2, axis=(-2, -1)))


def each(scalars: Array) -> Array:
    """One number for each matrix, in the shape that multiplies them."""
    return scalars[..., None, None]


def pull_back(
    x: Array, g: Array, form: Form, beta: Any, share: Callable[[Array], Any]
) -> Array:
    """c·(gP + BxQ) + βBxE, with Q = −T + (3/2)Φ(TE), T = Φ(xᵀg), and c = share(E).

    With c = 1 that is the gradient of h. Both sums over rows are taken at once.
    """
    y = form.apply(x)
    # Not xᵀg, for which the transpose of x would be kept since XᵀX was formed.
    e, t = form.residual(x, y), phi(form.inner(g, x))
    c = share(e)
    p = factor(e, mm(e, e))
    return mm(g, c * p) + mm(y, c * turn(t, e) + beta * e)


def factor(e: Array, e2: Array) -> Array:
    """P = I − E/2 + 3E²/8, with which A(x) = xP."""
    return eye(e) + correction(e, e2)


def correction(e: Array, e2: Array) -> Array:
    """P − I, with which A(x) = x + x(P − I) is found to the last digit."""
    return 0.375 * e2 - e / 2


def turn(s: Array, e: Array) -> Array:
    """Q = −S + (3/2)Φ(SE), with which J_A(x)[d] = dP + xQ for S = Φ(xᵀBd)."""
    return 1.5 * phi(mm(s, e)) - s
