"""The paper's experiment at a size for two cores: γ, claims, and the whole of it."""

import json
import math

import numpy as np
import pytest

from benchmarks.ocnn import gamma, paper
from benchmarks.ocnn.claims import verdicts
from benchmarks.ocnn.groups import Group, find_groups
from benchmarks.ocnn.measuring import Record
from benchmarks.shared.methods import METHODS
from benchmarks.shared.vgg import VGG


def typical(channels):
    """The size of an entry, from the shapes of 3×3 convolutions on three channels."""
    inputs = (3, *channels[:-1])
    tall = [sorted((9 * a, b)) for a, b in zip(inputs, channels, strict=True)]
    return math.sqrt(sum(p for p, _ in tall) / sum(p * n for p, n in tall))


def test_an_entry_of_an_orthonormal_kernel_has_the_size_of_its_shape():
    nineteen = [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8
    assert gamma.entry(VGG(19, 1.0)) == pytest.approx(typical(nineteen))
    small = [8, 16, 32, 64, 64]
    assert gamma.entry(VGG(8, 0.125)) == pytest.approx(typical(small))


def test_gamma_takes_the_same_share_of_an_entry_as_in_the_paper():
    own = gamma.scaled(VGG(8, 0.125), 390, 6)
    harmonic = np.sum(1 / np.arange(10, 110)) * 10
    expected = 1e-5 * 390 * harmonic / gamma.entry(VGG(19, 1.0))
    assert gamma.paper().share == pytest.approx(expected)
    # γ has two digits.
    assert own.share == pytest.approx(expected, rel=0.05)
    assert f"{own.gamma:.3g}" in gamma.in_words(own)


def group(name, *, accuracy=0.5, sparsity=0.1):
    numbers = dict.fromkeys(Record._fields, 0.1)
    numbers |= {"test_accuracy": accuracy, "sparsity": sparsity}
    runs = [[Record._make(numbers.values())] for _ in range(2)]
    return Group(name=name, settings=[{}, {}], records=runs)


def test_the_claims_of_the_paper_are_judged_by_the_records():
    found = [
        group("algorithm-1", sparsity=0.3),
        group("ranger", sparsity=0.5),
        group("r-sgd-polar", sparsity=0.2, accuracy=0.6),
        group("r-proxsgd", sparsity=0.2),
    ]
    seconds = {"algorithm-1": 0.01, "ranger": 0.04, "r-sgd-polar": 0.02}
    rows = [row for row in verdicts(found, seconds).splitlines() if " | " in row]
    text = {row.split(" | ")[0].strip("| "): row for row in rows}
    label = METHODS["algorithm-1"].label
    assert "| no " in text[f"accuracy of {label} at least R-sgd, polar’s"]
    assert "| yes" in text[f"sparsity of {label} at least R-sgd, polar’s"]
    assert "| yes" in text["sparsity of Ranger on h at least 2 × R-proxsgd’s"]
    assert "| yes" in text[f"a step of {label} takes less than R-sgd, polar’s"]
    assert "no: 2.00 ×" in text["a step of Ranger on h takes less than R-sgd, polar’s"]
    # Without times that were taken apart, nothing is said of them.
    assert "a step of" not in verdicts(found)


def test_the_nine_methods_are_there():
    assert len(paper.METHODS) == 9
    assert set(paper.METHODS) <= set(METHODS)


@pytest.mark.slow
def test_the_whole_of_it_runs_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paper, "QUICK", tmp_path)
    out = tmp_path / "out"
    paper.main(["--quick", "--out", str(out), "--jobs", "1"])
    content = json.loads((out / "report.json").read_text("utf-8"))
    assert {run["method"] for run in content["runs"]} == {
        "constrain-adam",
        "r-sgd-polar",
    }
    timing = content["timing"]
    assert set(timing["seconds"]) == {"constrain-adam", "r-sgd-polar"}
    ours = find_groups(content)[0]
    alone = 2 * timing["steps"] * timing["seconds"]["constrain-adam"]
    assert ours.last("seconds") == pytest.approx([alone])
    steps = {run["settings"].get("step") for run in content["runs"]}
    assert content["made"]["step"] in steps
    assert "Steps timed apart" in (out / "report.md").read_text("utf-8")
    assert "constrain(adam)" in capsys.readouterr().out
