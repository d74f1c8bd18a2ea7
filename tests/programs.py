"""What a compiled program runs, branch by branch, read from the text of XLA."""

import itertools
import re
from collections import Counter
from typing import Any

from tests.oracles import products_in

MOVES = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"


class Program:
    """A compiled program as computations that call each other.

    Attributes:
        text: The text of each computation, by its name.
        entry: The name of the one that is run.
    """

    def __init__(self, text: str):
        self.text: dict[str, str] = {}
        self.entry = ""
        for part in re.split(r"\n(?=\S)", text):
            if head := re.match(r"(ENTRY )?%([\w.-]+) \(", part):
                self.text[head[2]] = part
                self.entry = head[2] if head[1] else self.entry

    def branches(self, name: str) -> list[list[str]]:
        """The branches of each conditional of a computation."""
        lines = [v for v in self.text[name].splitlines() if " conditional(" in v]
        after = [re.split(r"(?:branch|true)_computations?=", line)[1] for line in lines]
        return [re.findall(r"%([\w.-]+)", v.split("metadata=")[0]) for v in after]

    def loops(self, name: str) -> int:
        """How many ``while`` loops there are in a computation and in all it calls."""
        branches = itertools.chain.from_iterable(self.branches(name))
        called = [*self._called(name), *branches]
        return self._loops(name) + sum(map(self.loops, called))

    def ways(self, name: str = "") -> list[Counter[Any]]:
        """What is run, once for each choice of branches in which there is no loop.

        Products are counted by their multiplications, what moves between devices by its
        name and shape, and conditionals by that word.
        """
        name = name or self.entry
        assert not self._loops(name)
        choices = [
            [way for b in branches if not self.loops(b) for way in self.ways(b)]
            for branches in self.branches(name)
        ]
        choices += [self.ways(other) for other in self._called(name)]
        here: Counter[Any] = Counter(products_in(self.text[name]))
        here["conditional"] = len(self.branches(name))
        here.update(self.moves(name))
        return [sum(chosen, here) for chosen in itertools.product(*choices)]

    def moves(self, name: str) -> Counter[str]:
        """What moves between devices: "all-reduce f32[16,16]" and so on."""
        found: Counter[str] = Counter()
        pattern = rf"= (\(?[^=\n]*?) ({MOVES})(?:-start)?\("
        for shapes, kind in re.findall(pattern, self.text[name]):
            sizes = re.findall(r"\w+\[[\d,]*\]", shapes)
            found.update(f"{kind} {size}" for size in sizes)
        return found

    def _loops(self, name):
        return len(re.findall(r"\) while\(", self.text[name]))

    def _called(self, name):
        pattern = r"(?:calls|to_apply|body|condition)=%([\w.-]+)"
        return re.findall(pattern, self.text[name])
