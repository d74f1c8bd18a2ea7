"""The copying problem: ten symbols are to be said again after a long delay."""

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cdopt_jax as cdx
from benchmarks.muon.task import Column, Contender, Task

SYMBOLS, LENGTH = 8, 10
BLANK, MARKER, CLASSES = SYMBOLS, SYMBOLS + 1, SYMBOLS + 2
RATES = (3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1)
MASK = cdx.where("recurrent")

Cell = Callable[[Any, Any, jax.Array], Any]
"""From the parameters, a state and an input to the next state."""


def sequences(key: jax.Array, count: int, delay: int) -> tuple[jax.Array, jax.Array]:
    """Inputs and targets of shape (time, count).

    The inputs are ten symbols, blanks, a marker after `delay` steps, and blanks; the
    targets are blanks, and after the marker the ten symbols.
    """
    said = jax.random.randint(key, (LENGTH, count), 0, SYMBOLS)
    blanks = jnp.full((delay - 1, count), BLANK)
    marker, after = jnp.full((1, count), MARKER), jnp.full((LENGTH, count), BLANK)
    before = jnp.full((delay + LENGTH, count), BLANK)
    inputs = jnp.concatenate([said, blanks, marker, after])
    return inputs, jnp.concatenate([before, said])


def modrelu(z: jax.Array, bias: jax.Array) -> jax.Array:
    """The length |z| + b where that is positive, in the direction of z."""
    length = jnp.sqrt(jnp.real(z * z.conj()) + 1e-8)
    return z / length * jax.nn.relu(length + bias)


def _orthogonal_cell(params, h, x):
    return modrelu(h @ params["recurrent"] + params["input"][x], params["bias"])


def _gru_cell(params, h, x):
    a, b = params["input"][x], h @ params["recurrent"]
    (ra, za, na), (rb, zb, nb) = jnp.split(a, 3, axis=-1), jnp.split(b, 3, axis=-1)
    r, z = jax.nn.sigmoid(ra + rb), jax.nn.sigmoid(za + zb)
    return (1 - z) * jnp.tanh(na + r * nb) + z * h


def _lstm_cell(params, state, x):
    h, c = jnp.split(state, 2, axis=-1)
    gates = params["input"][x] + h @ params["recurrent"]
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    # A forget gate that starts open.
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c], axis=-1)


def _exponential(params):
    """The recurrence as the exponential of a skew matrix."""
    free = params["recurrent"]
    return params | {"recurrent": jax.scipy.linalg.expm(free - free.T)}


def _rotations(key, hidden):
    """The generator of turns by random angles in planes (Henaff and others, 2016)."""
    angles = jax.random.uniform(key, (hidden // 2,), minval=-jnp.pi, maxval=jnp.pi)
    upper = jnp.zeros(hidden - 1).at[::2].set(angles)
    return jnp.diag(upper, 1)


def _start(key, recurrent, hidden, gates=1, features=1):
    """Parameters with that recurrence; an LSTM has four gates, a GRU three."""
    one, two = jax.random.split(key)
    normal = jax.random.normal
    return {
        "recurrent": recurrent,
        "input": normal(one, (CLASSES, gates * hidden)) / math.sqrt(hidden),
        "bias": jnp.zeros(hidden),
        "output": normal(two, (features * hidden, CLASSES)) / math.sqrt(hidden),
        "offset": jnp.zeros(CLASSES),
    }


def orthogonal_start(key: jax.Array, hidden: int):
    """The exponential of random turns."""
    a = _rotations(key, hidden)
    return _start(key, jax.scipy.linalg.expm(a - a.T), hidden)


def exponential_start(key: jax.Array, hidden: int):
    """The same recurrence by its generator."""
    return _start(key, _rotations(key, hidden), hidden)


def unitary_start(key: jax.Array, hidden: int):
    """A diagonal of random phases."""
    angles = jax.random.uniform(key, (hidden,), minval=-jnp.pi, maxval=jnp.pi)
    return _start(key, jnp.diag(jnp.exp(1j * angles)), hidden, features=2)


def gated_start(key: jax.Array, hidden: int, gates: int):
    """Orthogonal blocks for the gates."""
    draw = jax.nn.initializers.orthogonal()
    parts = [draw(k, (hidden, hidden)) for k in jax.random.split(key, gates)]
    return _start(key, jnp.concatenate(parts, axis=1), hidden, gates)


def loss(
    params: Any,
    batch: tuple[jax.Array, jax.Array],
    *,
    cell: Cell,
    parts: int = 1,
    recurrence: Callable[[Any], Any] = lambda params: params,
) -> jax.Array:
    """The mean cross-entropy over all steps.

    Args:
        params: The parameters.
        batch: Inputs and targets.
        cell: What is done at each step.
        parts: How many vectors make up the state; the first is what is read.
        recurrence: From the parameters to those of the cell.
    """
    inputs, targets = batch
    whole, hidden = recurrence(params), len(params["bias"])
    empty = jnp.zeros((inputs.shape[1], parts * hidden), whole["recurrent"].dtype)

    def step(h, x):
        h = cell(whole, h, x)
        return h, h

    _, states = jax.lax.scan(step, empty, inputs)
    if jnp.iscomplexobj(states):
        features = jnp.concatenate([states.real, states.imag], axis=-1)
    else:
        features = states[..., :hidden]
    logits = features @ params["output"] + params["offset"]
    terms = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return jnp.mean(terms)


def _adam(fall, rate, *, share=1.0, mask=None):
    """Adam on clipped gradients, the recurrence at a share of the rate.

    A tenth for orthogonal recurrences is the choice of Lezcano-Casado and
    Martínez-Rubio (2019).
    """

    def kinds(params):
        return {name: "slow" if name == "recurrent" else "fast" for name in params}

    each: dict[Hashable, Any] = {
        "slow": optax.adam(fall(share * rate)),
        "fast": optax.adam(fall(rate)),
    }
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.partition(each, kinds))
    return tx if mask is None else cdx.constrain(tx, mask)


def contenders(hidden: int) -> dict[str, Contender]:
    """The recurrent networks."""
    turning = partial(loss, cell=_orthogonal_cell)
    kept = partial(_adam, share=0.1, mask=MASK)
    return {
        "orthogonal": Contender(
            label="orthogonal, constrain(adam)",
            start=partial(orthogonal_start, hidden=hidden),
            loss=turning,
            optimiser=kept,
            mask=MASK,
        ),
        "unitary": Contender(
            label="unitary, constrain(adam)",
            start=partial(unitary_start, hidden=hidden),
            loss=turning,
            optimiser=kept,
            mask=MASK,
        ),
        "exponential": Contender(
            label="exponential of a skew matrix",
            start=partial(exponential_start, hidden=hidden),
            loss=partial(turning, recurrence=_exponential),
            optimiser=partial(_adam, share=0.1),
            mask=None,
        ),
        "gru": Contender(
            label="GRU",
            start=partial(gated_start, hidden=hidden, gates=3),
            loss=partial(loss, cell=_gru_cell),
            optimiser=_adam,
            mask=None,
        ),
        "lstm": Contender(
            label="LSTM",
            start=partial(gated_start, hidden=hidden, gates=4),
            loss=partial(loss, cell=_lstm_cell, parts=2),
            optimiser=_adam,
            mask=None,
        ),
    }


def make(
    *,
    hidden: int = 128,
    delay: int = 200,
    batch_size: int = 32,
    steps: int = 600,
    rates: tuple[float, ...] = RATES,
) -> Task:
    """The task; every batch is drawn anew."""

    def batch(data, number):
        return sequences(jax.random.fold_in(data, number), batch_size, delay)

    def order(seed):
        rng = np.random.default_rng(seed)
        return rng.integers(2**31 - 1, size=steps, dtype=np.int32)

    def measure(contender, params, data):
        fresh = sequences(jax.random.fold_in(data, 2**31 - 1), 512, delay)
        return {"fresh": contender.loss(params, fresh)}

    guess = LENGTH * math.log(SYMBOLS) / (delay + 2 * LENGTH)
    return Task(
        about=f"The copying problem with {hidden} hidden units and a delay of {delay}, "
        f"batches of {batch_size}, {steps} steps: fewer and smaller than in the "
        "literature, so that the task is done in half an hour. A network that "
        f"remembers nothing has a loss of {guess:.4f}. All take Adam on gradients "
        "clipped to length one; the recurrence of the first three at a tenth of the "
        "rate, and that rate is the one in the table. The state of the unitary network "
        f"is {hidden} complex numbers, twice as many real ones as that of the "
        "orthogonal network.",
        contenders=contenders(hidden),
        data=jax.random.key(7),
        steps=steps,
        rates=rates,
        order=order,
        batch=batch,
        measure=measure,
        columns={
            "loss": Column("training loss", 1, ".2e", -1),
            "fresh": Column("loss on fresh sequences", 1, ".2e", -1),
        },
    )
