"""What a training step costs: the models, what is measured, and the sentence on it."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.cost import models, paper_methods
from benchmarks.cost.models_report import added, against_polar, report
from benchmarks.cost.networks import make
from benchmarks.shared.methods.leaves import constrained
from cdopt_jax import stiefel

KERNELS = {"VGG-19": 16, "ResNet-18": 20, "transformer": 24, "LSTM": 4, "MLP": 300}


@pytest.mark.parametrize("name", KERNELS)
def test_the_models_have_the_kernels_that_are_said(name):
    network = make()[name]
    params, _ = jax.eval_shape(network.init)
    assert sum(constrained(params, network.mask)) == KERNELS[name]


@pytest.mark.slow
def test_a_model_is_measured_with_every_method_from_the_start_of_a_training():
    network = make(quick=True)["MLP"]
    record = models.measure(network, 2)
    assert set(record["updates"]) == set(models.transforms(network))
    assert set(record["whole"]) == {"Adam", "constrain(adam)"}
    assert record["constrained"] == 4
    # One step that does not count and two that do, of four kernels.
    long, steps = record["whole"]["constrain(adam)"]["long"]
    assert (long, steps) == (0, 12)
    params, _ = network.init()
    entries = sum(x.size for x in jax.tree.leaves(params))
    assert record["updates"]["Adam"]["state"] == 2 * 4 * entries + 4
    assert record["updates"]["SGD"]["state"] == 0
    assert record["feasibility"]["constrain(adam)"] <= 1e-5
    assert record["feasibility"]["Adam"] > 1e-3
    around = {"versions": {}, "device": "cpu", "processors": 2, "repeats": 2}
    text = report({**around, "records": {"MLP": record}})
    assert "constrain(adam)" in text
    assert "0 of 12" in text


@pytest.mark.parametrize(("ours", "said"), [(2.0, "no more"), (3.0, "more")])
def test_the_sentence_on_the_polar_retraction_follows_from_the_records(ours, said):
    seconds = {"Adam": 1.0, "SGD": 0.5, "R-sgd, polar": 3.0, "constrain(adam)": ours}
    updates = {name: {"seconds": s, "long": [3, 16]} for name, s in seconds.items()}
    record = {"updates": updates}
    assert added(record, "constrain(adam)") == ours - 1
    assert added(record, "R-sgd, polar") == 2.5
    text = against_polar({"VGG-19": record})
    assert f"{(ours - 1) / 2.5:.1%}, {said} than half" in text
    assert "3 of 16" in text
    assert against_polar({"MLP": record}) == ""


def test_bytes_are_those_of_all_arrays():
    tree = {"a": jnp.zeros((3, 2), jnp.float32), "b": (jnp.zeros(4, jnp.int8),)}
    assert models.bytes_of(tree) == 28


def test_the_methods_of_the_paper_are_timed_without_the_network(monkeypatch):
    monkeypatch.setattr(paper_methods, "NAMES", ("algorithm-1", "r-sgd-polar"))
    params = {"kernel": stiefel.random(jax.random.key(0), (6, 2)), "bias": jnp.ones(2)}
    mask = {"kernel": True, "bias": False}
    found = paper_methods.measure(params, params, mask, 1, 1.0)
    assert list(found) == ["Algorithm 1 (SGD on h)", "R-sgd, polar"]
    assert all(row["seconds"] > 0 and row["compile"] > 0 for row in found.values())
