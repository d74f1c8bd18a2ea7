"""What the paper claims of its methods, and ours of `constrain`, against the records.

A difference counts as noise where it is no more than twice the standard error of the
two means; with one seed there is no telling.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.ocnn.groups import Group
from benchmarks.shared.methods import METHODS
from benchmarks.shared.tables import table

OURS = (
    "algorithm-1",
    "algorithm-1-momentum",
    "algorithm-2",
    "algorithm-2-tangential",
    "algorithm-2-momentum",
    "ranger",
    "yogi",
    "constrain-sgd",
    "constrain-adam",
    "constrain-muon",
)
ON_H = ("algorithm-1", "ranger", "yogi")
PROXIMAL = ("algorithm-2", "algorithm-2-tangential", "algorithm-2-momentum")
FEW = 1.0
NOTHING = "nothing to compare: γ·Ση is too small to bring any entry to zero"
MUCH = 2.0
"""How many times the sparsity of R-proxsgd is much higher."""


def verdicts(found: Sequence[Group], seconds: Mapping[str, float] | None = None) -> str:
    """A row for each claim that the methods there allow to be looked at.

    Args:
        found: The runs.
        seconds: The time of a step of each method, timed apart; None if it was not.
    """
    groups = {group.name: group for group in found}
    rows = [
        *_compare(groups, OURS, "r-sgd-polar", "test_accuracy", "accuracy"),
        *_compare(groups, ON_H, "r-sgd-polar", "sparsity", "sparsity"),
        *_compare(groups, PROXIMAL, "r-proxsgd", "sparsity", "sparsity"),
        *_much(groups),
        *_quicker(groups, seconds or {}),
        *_feasible(groups),
    ]
    return table(("claim", "figures", "holds"), rows) if rows else ""


def _much(groups):
    """Ranger on h, which the paper finds to be much sparser than the others."""
    if not {"ranger", "r-proxsgd"} <= set(groups):
        return
    own, other = (
        100 * groups[name].last("sparsity").mean() for name in ("ranger", "r-proxsgd")
    )
    holds = "yes" if own >= MUCH * other else "no"
    claim = f"sparsity of Ranger on h at least {MUCH:g} × R-proxsgd’s"
    idle = max(own, other) < FEW
    yield claim, f"{own:.2f} against {other:.2f} %", NOTHING if idle else holds


def _quicker(groups, seconds):
    """The time of a step, where it was taken in turns on a machine of its own."""
    for rival in ("r-sgd-polar", "r-proxsgd"):
        for name in OURS:
            if not {name, rival} <= set(groups) & set(seconds):
                continue
            own, other = (1000 * seconds[key] for key in (name, rival))
            claim = f"a step of {METHODS[name].label} takes less than "
            claim += f"{METHODS[rival].label}’s"
            holds = "yes" if own < other else f"no: {own / other:.2f} ×"
            yield claim, f"{own:.3g} against {other:.3g} ms", holds


def _compare(groups, names, rival, field, word):
    """Each method against the rival, in percent."""
    if rival not in groups:
        return
    other = 100 * groups[rival].last(field)
    for name in names:
        if name not in groups:
            continue
        own, group = 100 * groups[name].last(field), groups[name]
        gap = own.mean() - other.mean()
        text = f"{own.mean():.2f} against {other.mean():.2f} %"
        claim = f"{word} of {METHODS[name].label} at least {METHODS[rival].label}’s"
        idle = field == "sparsity" and max(own.mean(), other.mean()) < FEW
        holds = _verdict(gap, own, other, group.diverged)
        yield claim, text, NOTHING if idle else holds


def _verdict(gap, own, other, diverged):
    if diverged:
        return f"no: {diverged} of {diverged + len(own)} diverged"
    if not np.isfinite(gap):
        return "no: diverged"
    if gap >= 0:
        return "yes"
    if min(len(own), len(other)) < 2:
        return "no, with one seed"
    error = np.hypot(*(x.std(ddof=1) / len(x) ** 0.5 for x in (own, other)))
    return "within noise" if -gap <= 2 * error else "no"


def _feasible(groups):
    """`constrain` against the soft penalty."""
    if "soft-penalty" not in groups:
        return
    soft = groups["soft-penalty"]
    for name in ("constrain-sgd", "constrain-adam", "constrain-muon"):
        if name not in groups:
            continue
        own = groups[name]
        far, near = soft.last("feasibility").mean(), own.last("feasibility").mean()
        times = [1000 * g.last("step_seconds").mean() for g in (own, soft)]
        hits = [100 * g.last("test_accuracy").mean() for g in (own, soft)]
        text = (
            f"{far:.1e} against {near:.1e}, {far / near:.0f} ×; accuracy {hits[1]:.2f} "
            f"against {hits[0]:.2f} %, {times[1]:.1f} against {times[0]:.1f} ms a step"
        )
        claim = f"the soft penalty is 1000 × farther off than {METHODS[name].label}"
        yield claim, text, "yes" if far >= 1000 * near else "no"
