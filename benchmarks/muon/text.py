"""A character-level transformer on the sources of Python's standard library."""

import math
import sysconfig
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import cdopt_jax as cdx
from benchmarks.muon.methods import FREE_RATE, SHARED
from benchmarks.muon.task import Column, Contender, Task, every_method

CHARACTERS = 128
"""ASCII; any other character is replaced."""
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3)
MATRICES = ("query", "key", "value", "out", "up", "down")
MASK = cdx.where(
    *(f"blocks/{name}" for name in MATRICES), spec=cdx.Stiefel(rows=-2, columns=-1)
)
"""Every matrix of the blocks; the blocks are stacked."""


def characters(most: int = 4_000_000) -> np.ndarray:
    """The modules of the standard library one after the other, in bytes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    sources = [path.read_text("utf-8") for path in sorted(folder.glob("*.py"))]
    found = "".join(sources).encode("ascii", "replace")[:most]
    return np.frombuffer(found, np.uint8)


def start(key: jax.Array, width: int, depth: int, context: int):
    """Random parameters; the matrices of the blocks are projected later."""
    keys = iter(jax.random.split(key, 9))
    shapes = dict.fromkeys(("query", "key", "value", "out"), (width, width))
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    blocks = {
        name: jax.random.normal(next(keys), (depth, *shape))
        for name, shape in shapes.items()
    }
    gains = {name: jnp.ones((depth, width)) for name in ("attended", "mixed")}
    return {
        "blocks": blocks | gains,
        "embedding": 0.02 * jax.random.normal(next(keys), (CHARACTERS, width)),
        "position": 0.02 * jax.random.normal(next(keys), (context, width)),
        "last": jnp.ones(width),
        "head": jax.random.normal(next(keys), (width, CHARACTERS)) / math.sqrt(width),
    }


def _normalised(x, gain):
    return gain * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def _block(x, block, heads):
    y = _normalised(x, block["attended"])
    parts = (y @ block[name] for name in ("query", "key", "value"))
    q, k, v = (part.reshape(*x.shape[:-1], heads, -1) for part in parts)
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
    x = x + mixed @ block["out"]
    inner = jax.nn.gelu(_normalised(x, block["mixed"]) @ block["up"])
    return x + inner @ block["down"]


def logits(params, known: jax.Array, heads: int) -> jax.Array:
    """For each character what may come next, of shape (count, context, characters)."""
    x = params["embedding"][known] + params["position"]
    x, _ = jax.lax.scan(
        lambda x, block: (_block(x, block, heads), None), x, params["blocks"]
    )
    return _normalised(x, params["last"]) @ params["head"]


def loss(params, batch: jax.Array, heads: int) -> jax.Array:
    """The mean cross-entropy of each next character, in nats."""
    found = logits(params, batch[:, :-1], heads)
    terms = optax.softmax_cross_entropy_with_integer_labels(found, batch[:, 1:])
    return jnp.mean(terms)


def make(
    *,
    width: int = 128,
    depth: int = 6,
    heads: int = 4,
    context: int = 64,
    batch_size: int = 8,
    steps: int = 80,
    rates: tuple[float, ...] = RATES,
) -> Task:
    """The task; a tenth of the text is held out."""
    content = characters()
    cut = len(content) * 9 // 10
    train, held_out = jnp.asarray(content[:cut]), jnp.asarray(content[cut:])

    def windows(source, begins):
        places = begins[:, None] + jnp.arange(context + 1)
        return source[places].astype(jnp.int32)

    def order(seed):
        rng = np.random.default_rng(seed)
        return rng.integers(cut - context - 1, size=(steps, batch_size), dtype=np.int32)

    def measure(contender: Contender, params, data):
        _, source = data
        begins = jnp.linspace(0, len(source) - context - 1, 256).astype(jnp.int32)
        parts = begins.reshape(8, -1)
        each = jax.lax.map(
            lambda begins: contender.loss(params, windows(source, begins)), parts
        )
        return {"held_out": jnp.mean(each)}

    begin = partial(start, width=width, depth=depth, context=context)
    return Task(
        about=f"A transformer of {depth} layers, width {width} and {heads} heads that "
        f"predicts each next of {len(content) / 1e6:.1f} MB of characters, the sources "
        f"of Python's standard library. Windows of {context} characters, batches of "
        f"{batch_size}: few and short, so that the task fits in half an hour. "
        "All matrices of the blocks are constrained; embeddings, gains and the last "
        f"layer take Adam at the rate {FREE_RATE:g} in every method. {SHARED}",
        contenders=every_method(begin, partial(loss, heads=heads), MASK),
        data=(train, held_out),
        steps=steps,
        rates=rates,
        order=order,
        batch=lambda data, begins: windows(data[0], begins),
        measure=measure,
        columns={"held_out": Column("held-out loss", 1, ".4f", -1)},
    )
