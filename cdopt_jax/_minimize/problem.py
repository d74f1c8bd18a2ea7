"""The problem as the methods see it: values and derivatives of f + r at points."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from cdopt_jax._math.products import real_dtype
from cdopt_jax.prox import Regularizer

from .coordinates import Coordinates
from .manifold import EDGE, Manifold
from .metric_prox import prox_in_metric
from .points import Point, dots, gradient_of, value_and_gradient


class Look(NamedTuple):
    """The objective around a point.

    Attributes:
        value: The objective f + r.
        whole_value: The same with r at its full strength.
        gradient: The gradient of f.
        subgradient: A subgradient of r.
        bend: ∇²f(x)[x], how the gradient of f changes along x itself; empty if it was
            not asked for.
    """

    value: Array
    whole_value: Array
    gradient: Point
    subgradient: Point
    bend: Point

    @property
    def sizes(self) -> tuple[Array, Array]:
        """The slope and the curvature.

        The slope is the size of the gradient of f and of the subgradient of r together.
        The curvature is the size of the bend, which is that of a gradient.
        """
        parts = self.gradient, self.subgradient
        gradient, subgradient = jnp.sqrt(dots(*((part, part) for part in parts)))
        bend = optax.tree.norm(self.bend) if self.bend else jnp.zeros_like(gradient)
        return gradient + subgradient, bend

    @property
    def whole(self) -> Point:
        """The subgradient of f + r."""
        return optax.tree.add(self.gradient, self.subgradient)


class Problem(NamedTuple):
    """f + r over the parameters, of which some leaves are orthonormal.

    Attributes:
        f: From the parameters to a scalar.
        regularizer: The term r, or None.
        coordinates: How parameters are read as a point.
        unit: What f and r are multiplied by. It makes gradients a number of order one,
            so that nothing depends on the unit in which the user's objective is given.
        strength: What r is multiplied by besides.
        tolerance: What the certificate must fall below.
        beta: The weight of the penalty in h.
    """

    f: Callable[[optax.Params], Array]
    regularizer: Regularizer | None
    coordinates: Coordinates
    unit: Array | float = 1.0
    strength: Array | float = 1.0
    tolerance: Array | float = 0.0
    beta: Array | float = 1.0

    @property
    def manifold(self) -> Manifold:
        """The constraint on points."""
        return self.coordinates.manifold

    def smooth(self, x: Point) -> Array:
        """The term f, in the unit of the problem."""
        return self.unit * self.f(self.coordinates.write(x))

    def regular(self, x: Point) -> Array:
        """The term r, in the unit of the problem; zero if there is none."""
        dtype = real_dtype(x[0].dtype)
        if self.regularizer is None:
            return jnp.zeros((), dtype)
        value = self.regularizer.value(self.coordinates.write(x))
        return self.unit * self.strength * value.astype(dtype)

    def value(self, x: Point) -> Array:
        """The objective f + r, in the unit of the problem."""
        return self.smooth(x) + self.regular(x)

    def evaluate(self, x: Point) -> tuple[Array, Point]:
        """The objective f + r and the gradient of f.

        Where the gradient is not finite the value is infinite: no step leads there.
        """
        value, gradient = value_and_gradient(self.smooth)(x)
        sound = jnp.isfinite(optax.tree.sum(gradient))
        return jnp.where(sound, value + self.regular(x), jnp.inf), gradient

    def look(self, x: Point, *, bent: bool = True) -> Look:
        """The objective around a point, by one derivative of the gradient of f."""
        if bent:
            # Backwards twice, since functions with a derivative rule of their own may
            # have no forward mode.
            (value, gradient), pull = jax.vjp(value_and_gradient(self.smooth), x)
            # The Hessian is symmetric, and its transpose has conjugates on both sides.
            (bend,) = pull((jnp.zeros_like(value), optax.tree.conj(x)))
            bend = optax.tree.conj(bend)
        else:
            (value, gradient), bend = value_and_gradient(self.smooth)(x), []
        regular = self.regular(x)
        return Look(
            value=value + regular,
            whole_value=value + regular / self.strength,
            gradient=gradient,
            subgradient=gradient_of(self.regular)(x),
            bend=bend,
        )

    def prox(self, x: Point, step: Array, near: Point) -> Point:
        """The proximal map of r at x, whose result is expected near another point."""
        if self.regularizer is None:
            return x
        return self.coordinates.read(self.prox_parameters(x, step, near))

    def prox_parameters(self, x: Point, step: Array, near: Point) -> optax.Params:
        """The proximal map as parameters, on which its zeros are exact."""
        coordinates = self.coordinates
        scales = set(coordinates.structure.scales)
        step = step * self.unit * self.strength
        if self.regularizer is None:
            return coordinates.write(x)
        if all(factor is None for factor in coordinates.factors) and len(scales) == 1:
            # A point is z/c for parameters z, so that the stepsize is c² times as long.
            return self.regularizer.prox(coordinates.write(x), step * scales.pop() ** 2)
        return prox_in_metric(coordinates, self.regularizer, x, step, near)

    def dissolved(self, x: Point, betas: Array) -> Array:
        """The constraint dissolving function h, with a wall around its region.

        Far out f∘A falls faster than the penalty rises, with the tenth power of x for
        a quadratic f. The wall rises with the twelfth, is twice differentiable, and
        zero where ‖E‖_F is below `EDGE`.
        """
        penalties = self.manifold.penalties(x)
        out = jnp.maximum(4 * jnp.sum(penalties) - EDGE**2, 0)
        h = self.value(self.manifold.dissolve(x)) + jnp.sum(betas * penalties)
        return h + 16 * jnp.max(betas) * out**3
