"""The step of before, and the table that has it beside the package's."""

import jax
import jax.numpy as jnp
import pytest

import cdopt_jax as cdx
from benchmarks.convergence import older_step


def pair(scale):
    x = cdx.stiefel.random(jax.random.key(0), (12, 4), float)
    return x, scale * jax.random.normal(jax.random.key(1), (12, 4), float)


def test_a_short_step_is_a_of_the_tangential_one():
    x, u = pair(1e-2)
    s = x.T @ u
    z = x + u - x @ (s + s.T) / 2
    assert jnp.allclose(older_step.older(x, u), cdx.stiefel.dissolve(z), atol=1e-12)


@pytest.mark.parametrize("scale", [0.5, 50.0])
def test_a_long_step_ends_on_the_manifold(scale):
    x, u = pair(scale)
    assert cdx.stiefel.feasibility(older_step.older(x, u)) < 1e-6


def test_the_table_has_ratios_where_both_arrive_from_all_starts():
    steps = {"ours": [[8, 2], [9, 9], [7, 7]], "before": [[4, 1], [9, None], [10, 10]]}
    record = {"problem": "PCA", "optimiser": "momentum", "rates": [0.5, 3.0, 3.5]}
    text = older_step.report([{**record, "starts": 2, "steps": steps}])
    assert [r.strip() for r in text.splitlines()[4].split("|")[3:7]] == [
        "0.5",
        "4.0",
        "2.0",
        "2.000",
    ]
    assert "from 1 of 2" in text
    assert "at most 2.000 times" in text
    assert "at 3 too" in text


def test_other_starts_are_on_the_same_side():
    start = jnp.eye(6)
    turned = older_step._turned(start, 3)
    assert jnp.linalg.det(turned) == pytest.approx(1)
