"""The products and p×p polynomials that the formulas share.

Notation of `stiefel`: M = xᴴBx, E = M − I, Φ(s) = (s + sᴴ)/2. For real matrices the
conjugate transpose xᴴ is the transpose.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from cdopt_jax._errors import error

from .sharding import contracted, like

Metric = ArrayLike | Callable[[Array], Array] | None
"""B of the constraint xᴴBx = I: None for the identity, an ``(n, n)`` array, or a
callable x ↦ Bx."""

AxisName = str | tuple[str, ...] | None
"""The names of mapped axes, inside ``shard_map``."""


def widen(dtype: DTypeLike) -> Any:
    """The dtype to compute in: float32 for half precision, else the same."""
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if half else dtype


def real_dtype(dtype: DTypeLike) -> Any:
    """The dtype of the real part, which is that of norms and weights."""
    return jnp.finfo(dtype).dtype


def is_complex(array_or_dtype: Any) -> bool:
    """Whether an array, or an array of a dtype, is complex."""
    return jnp.issubdtype(jnp.result_type(array_or_dtype), jnp.complexfloating)


def adjoint(a: Array) -> Array:
    """The conjugate transpose of each matrix."""
    return jnp.conj(a.mT)


def mm(a: Array, b: Array, out_sharding: Any = None) -> Array:
    """The product at the highest precision, without which feasibility is lost."""
    highest = lax.Precision.HIGHEST
    if out_sharding is not None:
        return jnp.matmul(a, b, precision=highest, out_sharding=out_sharding)
    return jnp.matmul(a, b, precision=highest)


class Form(NamedTuple):
    """The inner product aᴴBb, in which the sum over the rows may run over devices.

    Attributes:
        B: The metric: None for the identity, an ``(n, n)`` array or a callable.
        axis_name: The mapped axes that split the rows, inside ``shard_map``.
        across: The mapped axes that split the batch, inside ``shard_map``.
        stacked: Whether matrices come with one more axis in front than a callable B
            expects.
        indicator: Makes matrices of ones, with zeros in the rows that were added to
            make their number divisible among devices; None where there are none.
    """

    B: Metric = None
    axis_name: AxisName = None
    across: tuple[str, ...] = ()
    stacked: bool = False
    indicator: Callable[[], Array] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The form as keyword arguments of the functions of `stiefel`."""
        B = self.B
        if callable(B) and self.stacked:
            B = jax.vmap(B)
        return {"B": B, "axis_name": self.axis_name}

    def apply(self, x: Array) -> Array:
        """The product Bx."""
        if self.B is None:
            return x
        if callable(self.B):
            bx = jax.vmap(self.B)(x) if self.stacked else self.B(x)
            if fault := image_fault(bx, x):
                raise error(fault)
            return bx
        B = jnp.asarray(self.B)
        return mm(beside(B, x), x, like(x))

    def gram(self, a: Array, b: Array) -> Array:
        """The p×p matrix aᴴb, where B has been applied to one of the two."""
        sharding = contracted(a)
        if sharding is None:
            return self._total(mm(adjoint(a), b))
        # `jnp.matmul` drops axes of size one, and with them the order of a sharding.
        batch = tuple(range(a.ndim - 2))
        row = (a.ndim - 2,)
        return lax.dot_general(
            jnp.conj(a),
            b,
            ((row, row), (batch, batch)),
            precision=lax.Precision.HIGHEST,
            out_sharding=sharding,
        )

    def dot(self, a: Array, b: Array) -> Array:
        """The real part of the trace of aᴴb, a number for each matrix."""
        return self._total(jnp.sum(real_product(a, b), axis=(-2, -1)))

    def residual(self, x: Array, bx: Array) -> Array:
        """E = xᴴBx − I, given Bx."""
        m = self.gram(x, bx)
        return m - eye(m)

    def largest_entry(self, x: Array) -> Array:
        """The largest absolute value in each matrix."""
        top = jnp.max(jnp.abs(x), axis=(-2, -1))
        return top if self.axis_name is None else lax.pmax(top, self.axis_name)

    def maximum(self, values: Array) -> Array:
        """The largest of one number for each matrix, the same on every device."""
        top = jnp.max(values)
        return lax.pmax(top, self.across) if self.across else top

    def _total(self, part):
        return part if self.axis_name is None else lax.psum(part, self.axis_name)


def image_fault(bx: Any, x: Array) -> str | None:
    """Why something cannot be Bx, or None."""
    shape, dtype = getattr(bx, "shape", None), getattr(bx, "dtype", None)
    made = f"a {type(bx).__name__}"
    if dtype is not None:
        fits = jnp.issubdtype(dtype, jnp.inexact)
        if shape == x.shape and fits and (is_complex(x) or not is_complex(dtype)):
            return None
        made = f"shape {shape} and dtype {dtype}"
    return (
        f"B must map an array of shape {x.shape} and dtype {x.dtype} to another; it "
        f"returned {made}."
    )


def phi(s: Array) -> Array:
    """The Hermitian part; of a real matrix, the symmetric one."""
    return (s + adjoint(s)) / 2


def eye(m: Array) -> Array:
    """The identity, in the shape and dtype of square matrices."""
    one = jnp.eye(m.shape[-1], dtype=m.dtype)
    return one if m.ndim == 2 else jnp.broadcast_to(one, m.shape)


def norm(e: Array) -> Array:
    """The Frobenius norm of each matrix."""
    return jnp.sqrt(jnp.sum(squared_modulus(e), axis=(-2, -1)))


def real_product(a: Array, b: Array) -> Array:
    """The real part of āb, entry by entry, of which inner products are sums."""
    return jnp.real(jnp.conj(a) * b)


def squared_modulus(a: Array) -> Array:
    """|a|², entry by entry."""
    return real_product(a, a)


def per_matrix(scalars: Array) -> Array:
    """One number for each matrix, in the shape that multiplies the matrices."""
    return scalars[..., None, None]


def beside(a: Any, x: Array) -> Any:
    """Numbers as complex ones where they meet complex matrices.

    JAX does so by itself, but not where it is told to promote no dtype.
    """
    if not is_complex(x):
        return a
    # By NumPy: in that mode `jnp.promote_types` has no result for these.
    return jnp.asarray(a, np.promote_types(getattr(a, "dtype", x.dtype), x.dtype))


def of_rank(a: Array, ndim: int) -> Array:
    """The array with axes of size one in front; a scalar as it is.

    JAX can be told to broadcast nothing but scalars to more axes.
    """
    return jnp.expand_dims(a, tuple(range(ndim - a.ndim))) if a.ndim else a


def dissolved_gradient(
    x: Array, g: Array, form: Form, beta: Any, damping: Callable[[Array], Any]
) -> Array:
    """c·(gP + BxQ) + βBxE, with Q = −T + (3/2)Φ(TE), T = Φ(xᴴg) and c = damping(E).

    With c = 1 that is the gradient of h. Both sums over rows are taken at once.
    """
    y = form.apply(x)
    # Not xᴴg: the transpose of x would be kept from the product xᴴx on.
    e, t = form.residual(x, y), phi(form.gram(g, x))
    c, beta = beside(damping(e), e), beside(beta, e)
    p = map_factor(e, mm(e, e))
    return mm(g, c * p) + mm(y, c * normal_factor(t, e) + beta * e)


def map_factor(e: Array, e2: Array) -> Array:
    """P = I − E/2 + 3E²/8, with which A(x) = xP."""
    return eye(e) + map_correction(e, e2)


def map_correction(e: Array, e2: Array) -> Array:
    """P − I, with which A(x) = x + x(P − I) is found to the last digit."""
    return 0.375 * e2 - e / 2


def normal_factor(s: Array, e: Array) -> Array:
    """Q = −S + (3/2)Φ(SE), with which J_A(x)[d] = dP + xQ for S = Φ(xᴴBd)."""
    return 1.5 * phi(mm(s, e)) - s
