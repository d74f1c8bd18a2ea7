"""What a 70B-parameter model would pay: ``python -m benchmarks large-model``.

Nothing runs. One step for each kernel of a Llama-like model, tensor-parallel over eight
devices, is compiled at its full size for eight simulated ones; its collectives and its
matrix products are read from the compiled program, and what they would take follows
from the assumptions in `ASSUMED`.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from tqdm import tqdm

import cdopt_jax as cdx
from benchmarks.scaling.hlo import Work, read
from benchmarks.shared.methods import OPTIMISERS, WRAPPERS
from benchmarks.shared.results import RESULTS, environment, make_parser, write
from benchmarks.shared.tables import table

MODEL, HEADS, KV_HEADS, HEAD, HIDDEN = 8192, 64, 8, 128, 28672
LAYERS, VOCABULARY = 80, 128256
DEVICES = 8  # of one copy of the model
TOKENS, COPIES = 4e6, 64
FLOPS, FLOPS_F32, LINK = 400e12, 50e12, 450e9

PARAMETERS = LAYERS * MODEL * (2 * MODEL + 2 * KV_HEADS * HEAD + 3 * HIDDEN)
PARAMETERS += 2 * VOCABULARY * MODEL
STEP_FLOPS = 6 * PARAMETERS * TOKENS
STEP_SECONDS = STEP_FLOPS / (DEVICES * COPIES * FLOPS)

ASSUMED = {
    "model": f"{LAYERS} layers of width {MODEL}, {HEADS} heads of {HEAD}, {KV_HEADS} "
    f"for keys and values, hidden {HIDDEN}: {PARAMETERS / 1e9:.1f}B parameters, bf16",
    "layout": f"tensor-parallel over {DEVICES} devices: queries, keys, values, gate "
    "and up split by columns, output and down by rows",
    "training step": f"6 × parameters × {TOKENS / 1e6:g}M tokens, on {COPIES} copies "
    f"of the model at {FLOPS / 1e12:g} TFLOP/s a device: {STEP_SECONDS:.1f} s",
    "constraint": f"in every copy; products in float32 at the highest precision, at "
    f"{FLOPS_F32 / 1e12:g} TFLOP/s, and, to compare, at {FLOPS / 1e12:g}",
    "link": f"{LINK / 1e9:g} GB/s from each device; of a result of b bytes on k "
    "devices, a sum moves 2b(k − 1)/k from each, an exchange b(k − 1)/k",
    "overlap": "none: products, links and training one after another",
}
# What leaves each device, for a byte of the result of a collective on it.
SENT = {"all-reduce": 2.0, "all-to-all": 1.0, "all-gather": 1.0}
SENT |= {"reduce-scatter": float(DEVICES), "collective-permute": 1.0}


class Kernel(NamedTuple):
    """A kernel of the model, how it is split and read, and how many a layer has."""

    shape: tuple[int, ...]
    split: P
    reading: cdx.Stiefel
    number: int = 1


_QUERY, _KEY = (MODEL, HEADS, HEAD), (MODEL, KV_HEADS, HEAD)
_OUT = (HEADS, HEAD, MODEL)
_HEADS_LAST, _HEADS_FIRST = P(None, "model", None), P("model", None, None)


def _attention(*, per_head: bool) -> dict[str, Kernel]:
    how = ", per head" if per_head else ", whole"
    inward = cdx.layers.attention(per_head=per_head)
    outward = cdx.layers.attention_out(per_head=per_head)
    return {
        f"query{how}": Kernel(shape=_QUERY, split=_HEADS_LAST, reading=inward),
        f"key, value{how}": Kernel(
            shape=_KEY, split=_HEADS_LAST, reading=inward, number=2
        ),
        f"output{how}": Kernel(shape=_OUT, split=_HEADS_FIRST, reading=outward),
    }


_DENSE = cdx.layers.dense()
_FEED_FORWARD = {
    "gate, up": Kernel(
        shape=(MODEL, HIDDEN), split=P(None, "model"), reading=_DENSE, number=2
    ),
    "down": Kernel(shape=(HIDDEN, MODEL), split=P("model", None), reading=_DENSE),
}
CHOICES: dict[str, dict[str, Kernel]] = {
    "attention, per head": _attention(per_head=True),
    "keys and values, whole": {
        name: kernel
        for name, kernel in _attention(per_head=False).items()
        if name.startswith("key")
    },
    "attention, whole": _attention(per_head=False),
    "feed-forward, whole": _FEED_FORWARD,
    "all, whole": _attention(per_head=False) | _FEED_FORWARD,
}
METHODS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "keep_feasible": cdx.keep_feasible,
    "constrain(adam)": lambda mask: WRAPPERS["constrain"](
        OPTIMISERS["adam"](1e-3), mask
    ),
}


def compile_step(kernel: Kernel, method: str, mesh: jax.sharding.Mesh) -> Any:
    """One update of one kernel, its buffers donated."""
    tx = METHODS[method]({"kernel": kernel.reading})
    place = NamedSharding(mesh, kernel.split)
    leaf = jax.ShapeDtypeStruct(kernel.shape, jnp.bfloat16, sharding=place)
    params = {"kernel": leaf}

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    with jax.set_mesh(mesh):
        state = jax.eval_shape(tx.init, params)
        lowered = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, params)
    # Unoptimised kernels do the same products, and are made sooner.
    return lowered.compile({"xla_backend_optimization_level": "0"})


def survey(
    method: str, mesh: jax.sharding.Mesh, choices: dict[str, dict[str, Kernel]]
) -> dict[str, dict[str, Any]]:
    """The work of one kernel of each sort, on one device."""
    kernels = {name: k for chosen in choices.values() for name, k in chosen.items()}
    found = {}
    for name, kernel in tqdm(kernels.items(), desc=method):
        program = compile_step(kernel, method, mesh)
        usual, rare = (_told(work) for work in read(program.as_text()))
        temporary = program.memory_analysis().temp_size_in_bytes
        found[name] = {"usual": usual, "rare": rare, "temporary": temporary}
    return found


def _told(work: Work) -> dict[str, Any]:
    sent = sum(SENT[kind] * n for kind, n in work.bytes.items())
    return {**work._asdict(), "sent": sent * (DEVICES - 1) / DEVICES}


def price(kernels: dict[str, Kernel], found: dict[str, Any]) -> dict[str, float]:
    """What a choice of kernels costs each device, in a step of the whole model."""

    def total(path, field):
        each = (k.number * found[name][path][field] for name, k in kernels.items())
        return LAYERS * sum(each)

    flops, sent = total("usual", "flops"), total("usual", "sent")
    rare = total("rare", "flops") / FLOPS_F32 + total("rare", "sent") / LINK
    seconds = flops / FLOPS_F32 + sent / LINK
    return {
        "flops": flops,
        "sent": sent,
        "flops, once": DEVICES * flops / STEP_FLOPS,
        "flops, repeated": DEVICES * COPIES * flops / STEP_FLOPS,
        "seconds": seconds,
        "seconds, fast products": flops / FLOPS + sent / LINK,
        "share": seconds / STEP_SECONDS,
        "long seconds": seconds + rare,
        "temporary": max(found[name]["temporary"] for name in kernels),
    }


def verdict(share: float) -> str:
    """In a word, what a share of the step's time means."""
    if share < 0.01:
        return "affordable"
    return "noticeable" if share < 0.1 else "not affordable"


def _kernel_table(found) -> str:
    rows = []
    for name, record in found.items():
        usual, rare = record["usual"], record["rare"]
        kinds = [f"{k} {n / 1e6:.3g} MB" for k, n in usual["bytes"].items() if n > 1e3]
        rows.append(
            [
                name,
                f"{usual['flops'] / 1e12:.3g}",
                f"{usual['sent'] / 1e6:.3g}",
                usual["rounds"],
                ", ".join(kinds) or "single numbers",
                f"{record['temporary'] / 1e6:.4g}",
                f"+{rare['flops'] / 1e12:.3g} TFLOP, {rare['sent'] / 1e6:.3g} MB",
            ]
        )
    heads = ("TFLOP", "MB sent", "rounds", "kinds", "temporary MB", "long")
    return table(("kernel", *heads), rows)


def _price_table(prices) -> str:
    heads = ("constrained", "FLOPs, of the step's", "the same in each copy", "GB sent")
    heads += ("seconds", "with fast products", "of the step's time", "long steps, s")
    rows = [
        [
            name,
            f"{p['flops, once']:.2e}",
            f"{p['flops, repeated']:.2%}",
            f"{p['sent'] / 1e9:.3g}",
            f"{p['seconds']:.3g}",
            f"{p['seconds, fast products']:.3g}",
            f"{p['share']:.2%}",
            f"{p['long seconds']:.3g}",
            verdict(p["share"]),
        ]
        for name, p in prices.items()
    ]
    return table((*heads, ""), rows)


def report(result: dict[str, Any]) -> str:
    """The report in Markdown."""
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
    parts = [
        "What the constraint would cost a 70B-parameter model, from the programs that "
        f"XLA compiles for its kernels at full size ({versions}); nothing was run.",
        table(("assumed", ""), result["assumed"].items()),
    ]
    for method, record in result["methods"].items():
        parts += [f"## {method}", _price_table(record["prices"])]
        parts += ["One kernel, on each device:", _kernel_table(record["kernels"])]
    if not result["quick"]:
        parts += conclusions(result["methods"])
    return "\n\n".join(parts)


def conclusions(methods: dict[str, Any]) -> Iterator[str]:
    """What follows, in words."""
    prices = methods["constrain(adam)"]["prices"]
    kernels = methods["constrain(adam)"]["kernels"]
    heads, whole = prices["attention, per head"], prices["all, whole"]
    query = kernels["query, per head"]["usual"], kernels["query, whole"]["usual"]
    spans = kernels["down"]["temporary"] / (4 * MODEL**2)
    yield "## In words"
    yield (
        f"Matrices of {MODEL} × {HEAD}, one for each head, are "
        f"{verdict(heads['share'])}: {heads['share']:.2%} of the step's time with "
        "Adam. Each device holds whole heads, so nothing but single numbers crosses "
        "the link."
    )
    yield (
        f"Whole kernels, with p = {MODEL}, are {verdict(whole['share'])}: "
        f"{whole['share']:.0%} of the step's time. As one matrix, the queries take "
        f"{query[1]['flops'] / query[0]['flops']:.0f} times the FLOPs that they take "
        "head by head. The p × p × p products are as large as those with n, and, "
        "while the rows are shared out, every device makes them in full. What is "
        f"summed over devices is p × p matrices, {4 * MODEL**2 / 1e6:.0f} MB each, "
        "however small a device's share. The program plans for "
        f"{spans:.0f} such matrices at a time, long steps included."
    )
    yield (
        f"Counted once, whole kernels are {whole['flops, once']:.1%} of the step's "
        f"FLOPs; that each of the {COPIES} copies repeats them, in float32, makes them "
        "dear. Sharing the update out among the copies, as sharded optimisers do, "
        "would divide that, and so would constraining fewer kernels."
    )


def main(arguments: list[str] | None = None) -> None:
    """Compile, count, and write the records and the report."""
    parser = make_parser("large-model", __doc__, RESULTS / "scaling")
    options = parser.parse_args(arguments)
    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = jax.make_mesh((DEVICES,), ("model",), (AxisType.Explicit,))
    kept = list(CHOICES)[:1] if options.quick else CHOICES
    choices = {name: CHOICES[name] for name in kept}
    result = environment() | {"assumed": ASSUMED, "quick": options.quick, "methods": {}}
    for method in METHODS:
        found = survey(method, mesh, choices)
        prices = {name: price(kernels, found) for name, kernels in choices.items()}
        result["methods"][method] = {"kernels": found, "prices": prices}
    write(options.out, "large_model", result, report(result))
