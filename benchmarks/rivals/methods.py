"""The methods on the rivals' problems, each a step whose rate and momentum are chosen.

All of JAX: ours, and the rivals as they are written in `benchmarks.shared.methods`.
Momentum is that of each method's authors: POGO, landing and the Cayley step collect
Euclidean gradients, retractions and `constrain` projected ones.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import cdopt_jax as cdx
from benchmarks.rivals.problems import Data, Instance
from benchmarks.shared.algebra import product
from benchmarks.shared.methods.landing import landing, safe_step
from benchmarks.shared.methods.leaves import STACKS, descending
from benchmarks.shared.methods.pogo import pogo
from benchmarks.shared.methods.retraction import cayley, polar_gram, qr, retracted

RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
MOMENTA = (0.0, 0.9)
ADAM = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Adam's rates are lengths of entries, in units of 1/√n, the size of an entry of X."""

Maker = Callable[[Instance, Any, Any], optax.GradientTransformation]


class Contender(NamedTuple):
    """A method.

    Attributes:
        make: From the problem, the rate and the momentum to a transformation; None for
            the random submanifold method, which sees some rows of the gradient only.
        ours: Whether it is of this package.
        settings: The rates and momenta to choose between.
        by_entry: Whether the rate is in units of an entry of X.
        metric: Whether it can do with XᵀBX = I; None if it is for that alone.
    """

    make: Maker | None
    ours: bool = False
    settings: tuple[tuple[float, float], ...] = tuple(
        (rate, momentum) for rate in RATES for momentum in MOMENTA
    )
    by_entry: bool = False
    metric: bool | None = False

    def fits(self, instance: Instance) -> bool:
        """Whether it is made for a problem."""
        if self.make is None and "h" not in instance.data:
            return False
        if instance.metric is None:
            return self.metric is not None
        return self.metric is not False


def _constrained(optimiser: Callable[..., Any]) -> Maker:
    def make(instance, rate, momentum):
        mask = cdx.Stiefel(rows=-2, columns=-1, B=instance.metric)
        return cdx.constrain(optimiser(rate, momentum), mask)

    return make


def _retracted(retract: Callable[[jax.Array], jax.Array]) -> Maker:
    def make(instance, rate, momentum):
        del instance
        return retracted(optax.sgd(rate, momentum), STACKS, retract=retract)

    return make


def _stepping(step: Callable[..., jax.Array]) -> Maker:
    def make(instance, rate, momentum):
        del instance
        moved = descending(step, lambda _: rate, STACKS)
        return optax.chain(optax.trace(momentum), moved)

    return make


def _generalized_landing(instance: Instance, rate: Any, momentum: Any) -> Any:
    """Landing where XᵀBX = I: 2 skew(∇f XᵀB)BX and BX(XᵀBX − I).

    References:
        Vary, Ablin, Gao and Absil, "Optimization without retraction on the random
        generalized Stiefel manifold", ICML 2024.
    """
    b = jnp.asarray(instance.metric)

    def step(x, g, rate):
        bx = product(b, x)
        e = product(x.mT, bx) - jnp.eye(x.shape[-1], dtype=x.dtype)
        field = product(g, product(bx.mT, bx)) - product(bx, product(g.mT, bx))
        field = field + product(bx, e)
        size = jnp.sqrt(jnp.sum(field * product(b, field)))
        longest = safe_step(jnp.linalg.norm(e), size, 1.0, 0.5)
        return x - jnp.minimum(rate, longest) * field

    moved = descending(step, lambda _: rate, STACKS)
    return optax.chain(optax.trace(momentum), moved)


def _cholesky_qr(instance: Instance, rate: Any, momentum: Any) -> Any:
    """Riemannian descent in the metric of B, brought back by a Cholesky factor."""
    b = jnp.asarray(instance.metric)

    def tangent(x, g):
        xg = product(x.mT, g)
        # B⁻¹g would be the gradient in that metric; this is the one that needs no
        # inverse, as `project_gradients` takes it.
        return g - product(product(b, x), (xg + xg.mT) / 2)

    def back(x):
        factor = jnp.linalg.cholesky(product(x.mT, product(b, x)))
        return jax.scipy.linalg.solve_triangular(factor, x.mT, lower=True).mT

    inner = optax.sgd(rate, momentum)

    def update(updates, state, params=None, **extra_args):
        del extra_args
        x, g = jnp.asarray(params), jnp.asarray(updates)
        moves, state = inner.update(tangent(x, g), state, x)
        return back(x + jnp.asarray(moves)) - x, state

    return optax.GradientTransformationExtraArgs(inner.init, update)


CONTENDERS: dict[str, Contender] = {
    "constrain(sgd)": Contender(
        make=_constrained(lambda rate, momentum: optax.sgd(rate, momentum)),
        ours=True,
        metric=True,
    ),
    "constrain(adam)": Contender(
        make=_constrained(lambda rate, _: optax.adam(rate)),
        ours=True,
        settings=tuple((rate, 0.0) for rate in ADAM),
        by_entry=True,
        metric=True,
    ),
    "landing": Contender(make=_stepping(landing)),
    "POGO": Contender(make=_stepping(pogo)),
    "R-sgd, QR": Contender(make=_retracted(qr)),
    "R-sgd, polar": Contender(make=_retracted(polar_gram)),
    "R-sgd, Cayley": Contender(make=_stepping(cayley)),
    "RSDM": Contender(make=None, settings=tuple((rate, 0.0) for rate in RATES)),
    "generalized landing": Contender(make=_generalized_landing, metric=None),
    "R-sgd, Cholesky": Contender(make=_cholesky_qr, metric=None),
}
"""Under the names that the report shows."""


class State(NamedTuple):
    """Where a run stands: the point, the optimiser's state, and the steps taken."""

    x: jax.Array
    optimizer: Any
    step: jax.Array


Advance = Callable[[State, Data, Any, Any], State]


def start(contender: Contender, instance: Instance) -> State:
    """The state before the first step."""
    zero, own = jnp.zeros([], instance.start.dtype), ()
    if contender.make is not None:
        own = contender.make(instance, zero, zero).init(instance.start)
    return State(x=instance.start, optimizer=own, step=jnp.zeros([], jnp.int32))


def advance(contender: Contender, instance: Instance, steps: int | None) -> Advance:
    """The step, with a cosine decay of the rate over that many, or none."""

    def step(state: State, data: Data, rate, momentum) -> State:
        x, own, count = state
        key = jax.random.fold_in(jax.random.key(0), count)
        if steps is not None:
            rate = rate * (1 + jnp.cos(jnp.pi * count / steps)) / 2
        if contender.make is None:
            turned = _submanifold(instance, x, data, rate, key)
            return State(x=turned, optimizer=own, step=count + 1)
        tx = contender.make(instance, rate, momentum)
        updates, own = tx.update(instance.gradient(x, data, key), own, x)
        x = jnp.asarray(optax.apply_updates(x, updates))
        return State(x=x, optimizer=own, step=count + 1)

    return step


def _submanifold(instance: Instance, x, data, rate, key):
    """A step that turns some rows of X, drawn at random, among themselves.

    With r rows S, X_S becomes QX_S for the orthogonal factor Q of I − η skew(G_S X_Sᵀ).
    r is a third of n, as in the authors' largest problems.

    References:
        Han, Poirion and Takeda, "Efficient optimization with orthogonality constraint:
        a randomized Riemannian submanifold method", ICML 2025.
    """
    n = len(x)
    chosen = jax.random.permutation(key, n)[: max(2, n // 3)]
    part = x[chosen]
    turn = product(instance.rows(x, data, chosen), part.T)
    turn = qr(jnp.eye(len(chosen), dtype=x.dtype) - rate * (turn - turn.T) / 2)
    return x.at[chosen].set(product(turn, part))
