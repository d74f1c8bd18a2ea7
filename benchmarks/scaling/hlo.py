"""What a compiled program does, read from its text: collectives and products.

Of the branches of `keep_feasible` and `constrain`, a short step takes any but the
dearest; of those the dearest one is counted. The others are counted apart.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4}
BYTES |= {"f32": 4, "s64": 8, "u64": 8, "f64": 8}
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter")
COLLECTIVES += ("collective-permute",)

_LINE = re.compile(r"^\s*(?:ROOT )?%(\S+) = (.*?[\])}]) ([a-z][a-z0-9-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|body)=%([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations={(%[\w.%, -]+)}")


class Work(NamedTuple):
    """What a device does in a run.

    Attributes:
        bytes: What its part of each kind of collective results in.
        rounds: How many collectives there are, those of single numbers included.
        flops: Two for each multiplication of a matrix product.
    """

    bytes: Counter[str]
    rounds: int
    flops: int

    def plus(self, other: "Work", times: int = 1) -> "Work":
        """The sum, the other counted so many times."""
        more = Counter({kind: times * n for kind, n in other.bytes.items()})
        rounds = self.rounds + times * other.rounds
        return Work(
            bytes=self.bytes + more,
            rounds=rounds,
            flops=self.flops + times * other.flops,
        )


NOTHING = Work(bytes=Counter(), rounds=0, flops=0)


def read(text: str) -> tuple[Work, Work]:
    """The work of an ordinary run, and that of the branches it does not take.

    The second is an upper bound: every branch within them is counted, and every loop
    as often as it may run.
    """
    computations = dict(_computations(text))
    entry = re.search(r"^ENTRY %(\S+)", text, re.MULTILINE)
    assert entry
    return _ordinary(computations, entry[1])


def _computations(text: str) -> Iterator[tuple[str, str]]:
    for block in re.split(r"\n(?=(?:%|ENTRY )\S)", text):
        if name := re.match(r"(?:ENTRY )?%(\S+)", block):
            yield name[1], block


def _ordinary(computations, name):
    usual, rare = NOTHING, NOTHING
    for own, called, branches in _lines(computations[name]):
        usual = usual.plus(own)
        for inner, times in called:
            for_usual, for_rare = _ordinary(computations, inner)
            usual, rare = usual.plus(for_usual, times), rare.plus(for_rare, times)
        if branches:
            *_, chosen, _ = sorted(branches, key=lambda b: _cost(computations, b))
            for_usual, for_rare = _ordinary(computations, chosen)
            usual, rare = usual.plus(for_usual), rare.plus(for_rare)
            for branch in set(branches) - {chosen}:
                rare = rare.plus(_everything(computations, branch))
    return usual, rare


def _cost(computations, name):
    """By what branches are compared: products, and what crosses between devices."""
    work = _everything(computations, name)
    return work.flops, sum(work.bytes.values()), work.rounds


def _everything(computations, name):
    total = NOTHING
    for own, called, branches in _lines(computations[name]):
        total = total.plus(own)
        for inner, times in (*called, *((branch, 1) for branch in branches)):
            total = total.plus(_everything(computations, inner), times)
    return total


def _lines(block):
    """Of each instruction: its own work, what it calls how often, and its branches."""
    shapes = dict(_shapes(block))
    for line in block.splitlines():
        if not (found := _LINE.match(line)):
            continue
        _, result, operation, rest = found.groups()
        kind = operation.removesuffix("-start")
        own = NOTHING
        if kind in COLLECTIVES:
            own = Work(bytes=Counter({kind: _size(result)}), rounds=1, flops=0)
        elif operation == "dot":
            flops = _dot_flops(result, rest, shapes)
            own = Work(bytes=Counter(), rounds=0, flops=flops)
        branches = _BRANCHES.search(rest)
        assert branches or operation != "conditional", line
        calls = operation in ("fusion", "call", "while")
        trips = re.search(r'"known_trip_count":{"n":"(\d+)"}', rest)
        times = int(trips[1]) if trips else 1
        called = [(name, times) for name in _CALLED.findall(rest)] if calls else []
        yield own, called, branches[1].replace("%", "").split(", ") if branches else ()


def _shapes(block):
    for name, sizes in re.findall(r"%?([\w.-]+)(?: =|:) [a-z]+\d*\[([\d,]*)\]", block):
        yield name, [int(n) for n in sizes.split(",") if n]


def _size(result):
    arrays = _ARRAY.findall(result)
    return sum(
        BYTES[dtype] * math.prod(int(n) for n in sizes.split(",") if n)
        for dtype, sizes in arrays
    )


def _dot_flops(result, rest, shapes):
    left = re.match(r"%([\w.-]+)", rest)
    axes = re.search(r"lhs_contracting_dims={([\d,]+)}", rest)
    assert left
    assert axes
    depth = math.prod(shapes[left[1]][int(axis)] for axis in axes[1].split(","))
    _, sizes = _ARRAY.findall(result)[0]
    return 2 * depth * math.prod(int(n) for n in sizes.split(",") if n)
