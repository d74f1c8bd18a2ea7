"""Where `constrain` leads, as a few numbers: what results of training depend on.

Of two versions of the step with the same numbers, one may be quicker than the other; a
network that is trained with the one ends as with the other, up to rounding. Short and
long steps are among the moves, a singular one, momentum, Adam, a complex and a wide
matrix. As a script it prints the numbers of the package that Python finds.
"""

import json
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cdopt_jax as cdx

TOLERANCE = 1e-3
"""How far numbers of the same moves may be apart: rounding, after some steps."""


@cache
def moves() -> tuple[float, ...]:
    """The numbers."""
    rng = np.random.default_rng(0)
    weights = jnp.asarray(rng.standard_normal((12, 4)), jnp.float32)
    x = jnp.asarray(np.linalg.qr(rng.standard_normal((12, 4)))[0], jnp.float32)
    u = jnp.asarray(rng.standard_normal((12, 4)), jnp.float32)
    found = [_seen(weights, _step(x, size * u)) for size in (1e-2, 0.1, 1.0, 10.0)]
    found.append(_seen(weights, _step(x, u.at[:, 0].set(-x[:, 0]))))
    found.append(_seen(weights.T, _step(x.T, 0.3 * u.T)))
    found.append(_seen(weights, _step((1 + 0j) * x, 0.3 * (u + 1j * weights))))
    for optimizer in (optax.sgd(0.3, momentum=0.9), optax.adam(0.1)):
        found.append(_seen(weights, _descent(optimizer, x, weights)))
    return tuple(round(number, 5) for number in found)


def _seen(weights, x):
    return float(jnp.real(jnp.vdot(weights, x)))


def _step(x, u):
    tx = cdx.keep_feasible()
    updates, _ = tx.update(u, tx.init(x), x)
    return x + updates


def _descent(optimizer, x, target):
    tx = cdx.constrain(optimizer)
    state, update = tx.init(x), jax.jit(tx.update)
    for _ in range(5):
        updates, state = update(x * jnp.arange(1.0, 5.0) - target, state, x)
        x = x + updates
    return x


if __name__ == "__main__":
    print(json.dumps(moves()))
