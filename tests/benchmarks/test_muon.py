"""The Muon benchmark: its rivals against decompositions, its tasks in small."""

import itertools
import json
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

from benchmarks.muon import command, copying, modular, text
from benchmarks.muon.experiment import best_rate, missing, run_all
from benchmarks.muon.hyperball import hyperball
from benchmarks.muon.manifold_muon import manifold_muon, steepest_tangent
from benchmarks.muon.methods import METHODS
from benchmarks.muon.msign import minimax, msign, polynomials
from benchmarks.muon.report import Row, exactness, rows_of, spent, text_of
from benchmarks.muon.spel import spel
from benchmarks.muon.step_time import step_seconds
from benchmarks.muon.training import Trainer
from benchmarks.shared.data import digits
from benchmarks.shared.runs import Runs
from tests.marks import mostly
from tests.oracles import normal, polar

CONSTRAINED = ("constrain-adam", "constrain-muon", "spel", "manifold-muon")


def spectrum(n, p, least, seed=0):
    """A matrix with singular values from one down to that, and its sign."""
    u, v = polar(normal((n, p), seed)), polar(normal((p, p), seed + 1))
    return (u * np.geomspace(1, least, p)) @ v.T, u @ v.T


@pytest.mark.parametrize(("n", "p"), [(40, 8), (16, 16), (9, 1)])
@pytest.mark.parametrize("least", [1.0, 1e-2, 1e-3])
def test_msign_is_the_polar_factor(n, p, least):
    x, sign = spectrum(n, p, least)
    found = jax.jit(msign)(jnp.asarray(37 * x, jnp.float32))
    assert np.linalg.norm(found - sign, 2) < 1e-3


def test_msign_of_a_stack_is_that_of_each_and_of_zero_is_zero():
    stack = np.stack([spectrum(12, 4, 0.1, seed)[0] for seed in (0, 1)])
    stack = np.concatenate([stack, np.zeros((1, 12, 4))])
    found = np.asarray(jax.jit(msign)(jnp.asarray(stack, jnp.float32)))
    for got, x in zip(found[:2], stack[:2], strict=True):
        np.testing.assert_allclose(got, polar(x), atol=1e-4)
    assert not found[2].any()


@pytest.mark.parametrize("low", [1e-3, 0.1, 0.5])
def test_polynomials_are_the_best_of_their_degree(low):
    """A linear program over the values on a grid finds none that is better."""
    (a, b, c), error = minimax(low, 1.0)
    x = np.linspace(low, 1.0, 4001)
    powers = np.stack([x, x**3, x**5], axis=1)
    assert np.abs(powers @ [a, b, c] - 1).max() == pytest.approx(error, rel=1e-6)
    ones = np.ones((len(x), 1))
    best = scipy.optimize.linprog(
        [0, 0, 0, 1],
        A_ub=np.block([[powers, -ones], [-powers, -ones]]),
        b_ub=np.concatenate([np.ones(len(x)), -np.ones(len(x))]),
        bounds=[(None, None)] * 4,
    )
    assert best.fun == pytest.approx(error, rel=1e-4)


def test_all_polynomials_together_bring_the_interval_to_one():
    x = np.geomspace(1e-4, 1.0, 2000)
    for a, b, c in polynomials(1e-4):
        x = a * x + b * x**3 + c * x**5
    assert np.abs(x - 1).max() < 1e-6


def updated(tx, start, gradients, dtype=jnp.float32):
    """A leaf after updates with these gradients."""
    x = jnp.asarray(start, dtype)
    state = tx.init(x)
    for g in gradients:
        update, state = jax.jit(tx.update)(jnp.asarray(g, dtype), state, x)
        x = x + update
    return np.asarray(x)


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (6, 6)], ids=str)
def test_spel_is_two_polar_factors_of_the_tangential_momentum(shape):
    rate, wide = 0.2, shape[0] < shape[1]
    start = polar(normal(shape, 0).T).T if wide else polar(normal(shape, 0))
    grads = [np.asarray(normal(shape, seed)) for seed in (1, 2)]
    found = updated(spel(lambda _: rate), start, grads)
    x, momentum = (start.T if wide else start), 0.0
    for g in (g.T if wide else g for g in grads):
        momentum = g + 0.95 * momentum
        m = g + 0.95 * momentum
        inner = x.T @ m
        x = polar(x - rate * polar(m - x @ (inner + inner.T) / 2))
    np.testing.assert_allclose(found, x.T if wide else x, atol=2e-3)


def least_nuclear_norm(x, g):
    """The dual optimum by a general minimiser over symmetric matrices."""
    p = x.shape[1]
    rows, columns = np.triu_indices(p)

    def dual(entries):
        half = np.zeros((p, p))
        half[rows, columns] = entries
        y = g + x @ (half + half.T)
        u, s, vt = np.linalg.svd(y, full_matrices=False)
        slope = x.T @ (u @ vt)
        return s.sum(), (slope + slope.T)[rows, columns]

    best = scipy.optimize.minimize(dual, np.zeros(len(rows)), jac=True, method="BFGS")
    return best.fun


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_manifold_muon_takes_the_steepest_tangent(seed):
    """Tangential, of norm one, and with no gap to the dual problem."""
    x, g = polar(normal((9, 3), seed)), np.asarray(normal((9, 3), seed + 10))
    find = jax.jit(steepest_tangent)
    a = np.asarray(find(jnp.asarray(x, jnp.float32), jnp.asarray(g, jnp.float32)))
    assert np.linalg.norm(x.T @ a + a.T @ x) < 1e-4
    assert np.linalg.norm(a, 2) < 1.02
    assert np.sum(g * a) == pytest.approx(least_nuclear_norm(x, g), rel=0.01)


def test_on_the_orthogonal_group_it_is_the_sign_of_the_skew_part():
    x, g = polar(normal((6, 6), 0)), np.asarray(normal((6, 6), 1))
    k, rate = x.T @ g, 0.1
    expected = polar(x - rate * x @ polar(k - k.T))
    found = updated(manifold_muon(lambda _: rate), x, [g])
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_hyperball_turns_each_matrix_on_its_sphere():
    start, grads = np.asarray(normal((2, 5, 3), 0)), np.asarray(normal((2, 5, 3), 1))
    tx = hyperball(optax.identity(), lambda step: 0.1 / (1 + step))
    found = updated(tx, start, [grads] * 2)
    for w, g, got in zip(start, grads, found, strict=True):
        radius = np.linalg.norm(w)
        for rate in (0.1, 0.05):
            w = w - rate * radius * g / np.linalg.norm(g)
            w = w * radius / np.linalg.norm(w)
        np.testing.assert_allclose(got, w, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def small():
    """The network in small, on the digits: its first layer is wide."""
    return modular.make(
        "the digits", digits(), hidden=(96, 16), batch_size=128, epochs=2
    )


# The steps of these have tests of their own, here and in `test_constrain`.
TESTED_APART = ("constrain-adam", "spel", "muon", "hyperball")


@pytest.mark.parametrize("name", mostly(METHODS, slow=TESTED_APART))
def test_every_method_trains_the_network(small, name):
    found = Trainer(small, small.contenders[name]).run(0.01, 0)
    assert found["curve"][-1] < 0.95 * found["curve"][0]
    assert (found["feasibility"] < 1e-4) == (name in CONSTRAINED)
    assert found["test"] > 0.2
    assert len(found["curve"]) == small.steps == 22


def test_runs_go_on_where_they_stopped(small, tmp_path):
    seeds = (0, 1)
    task = small._replace(
        contenders={n: small.contenders[n] for n in ("adamw", "constrain-adam")},
        rates=(0.003, 0.01),
    )
    clock = partial(next, itertools.count())
    path = tmp_path / "runs" / "modular.jsonl"
    assert not run_all(task, Runs(path), seeds, 4.5, clock)
    done = path.read_text()
    assert done.count("\n") == 2
    # As if it had been killed while it wrote.
    path.write_text(done + done[:50])
    assert run_all(task, Runs(path), seeds)
    assert path.read_text().startswith(done)
    runs = Runs(path)
    keys = [(r["method"], r["rate"], r["seed"]) for r in runs.records]
    assert len(keys) == len(set(keys)) == 2 * (2 + 1)
    for name in task.contenders:
        grid = {r["rate"]: r["loss"] for r in runs.find(method=name, seed=0)}
        chosen = best_rate(runs.find(method=name), 0)
        assert grid[chosen] == min(grid.values())
        assert [r["rate"] for r in runs.find(method=name, seed=1)] == [chosen]
        assert not list(missing(task, runs, name, seeds))
    timed = step_seconds(task, dict.fromkeys(task.contenders, 0.01), 1)
    rows = rows_of(task, runs, seeds, timed)
    cost = spent(task, rows, seeds)
    assert cost.startswith("2 methods × (2 rates + 1 more seeds) are 6 runs of 22 ")
    report = text_of(
        task, rows, "constrain-adam", cost=cost, timed_apart=True, image="m.png"
    )
    assert re.search(r"\| AdamW +\| 0.0\d+ \(edge\) \|.* ± .*\| 2 ", report)
    assert "against constrain(adam)" in report


def test_the_exact_step_is_compared_at_equal_steps_and_in_time(small):
    def row(losses, seconds):
        records = [{"loss": x, "test": 0.5, "train": 0.5} for x in losses]
        return Row(label="", rate=1.0, at_edge=False, records=records, seconds=seconds)

    rows = {"constrain-muon": row([2.0, 2.02, 1.98], 0.1)}
    assert exactness(small, rows) == ""
    rows["manifold-muon"] = row([1.0, 1.01, 0.99], 0.15)
    said = exactness(small, rows)
    assert "training loss × 0.500 (better)" in said
    assert "test accuracy × 1.000 (within noise)" in said
    assert "takes 1.50 of the time" in said


def test_a_diverged_run_is_not_chosen():
    records = [
        {"rate": 0.1, "seed": 0, "loss": math.nan},
        {"rate": 0.01, "seed": 0, "loss": 2.0},
        {"rate": 0.001, "seed": 1, "loss": 1.0},
    ]
    assert best_rate(records, 0) == 0.01


def test_missing_data_are_named_and_what_to_do(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(["--data", str(tmp_path), "--runs", str(tmp_path / "runs")])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "cifar-10-python.tar.gz" in said
    assert "--data" in said


def test_the_text_is_long_enough_and_ascii():
    found = text.characters()
    assert len(found) >= 1_000_000
    assert found.max() < text.CHARACTERS


@pytest.mark.slow
def test_the_transformer_learns_with_stacked_matrices_constrained():
    task = text.make(width=16, depth=2, heads=2, context=16, batch_size=8, steps=30)
    found = Trainer(task, task.contenders["constrain-muon"]).run(0.03, 0)
    assert found["curve"][-1] < found["curve"][0] - 0.3
    assert found["held_out"] < math.log(text.CHARACTERS) - 0.3
    assert found["feasibility"] < 1e-4


def test_the_transformer_does_not_look_ahead():
    params = text.start(jax.random.key(0), 16, 2, 8)
    known = jax.random.randint(jax.random.key(1), (1, 9), 0, text.CHARACTERS)
    # Only the input at position 5 is changed; outputs before it must not move.
    changed = known.at[0, 5].add(1) % text.CHARACTERS

    def logits(batch):
        return np.asarray(text.logits(params, batch[:, :-1], 2))[0]

    same = np.abs(logits(known) - logits(changed)).max(axis=-1) < 1e-6
    assert list(same) == [True] * 5 + [False] * 3


def test_sequences_ask_for_their_first_symbols_after_the_marker():
    inputs, targets = (
        np.asarray(x) for x in copying.sequences(jax.random.key(0), 4, 30)
    )
    assert inputs.shape == targets.shape == (50, 4)
    (place,) = np.unique(np.argwhere(inputs == copying.MARKER)[:, 0])
    assert place == copying.LENGTH + 30 - 1
    np.testing.assert_array_equal(targets[place + 1 :], inputs[: copying.LENGTH])
    assert (targets[: place + 1] == copying.BLANK).all()
    assert (inputs[: copying.LENGTH] < copying.SYMBOLS).all()


def test_the_exponential_starts_as_the_orthogonal_network():
    task = copying.make(hidden=12, delay=15, steps=4)
    batch = copying.sequences(jax.random.key(1), 8, 15)
    values = [
        float(c.loss(c.start(jax.random.key(3)), batch))
        for c in (task.contenders[name] for name in ("orthogonal", "exponential"))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-5)


@pytest.mark.parametrize(
    "name", mostly(copying.contenders(8), slow=("unitary", "exponential", "gru"))
)
def test_every_recurrence_learns_to_say_blanks(name):
    task = copying.make(hidden=16, delay=12, batch_size=16, steps=60)
    found = Trainer(task, task.contenders[name]).run(0.01, 0)
    assert found["curve"][-1] < 0.8 * found["curve"][0]
    kept = name in ("orthogonal", "unitary")
    assert (found["feasibility"] is not None) == kept
    assert not kept or found["feasibility"] < 1e-4


@pytest.mark.slow
def test_the_command_writes_its_report_and_times_steps(tmp_path, capsys):
    folders = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    arguments = ["--task", "copying", "--quick", *folders]
    with pytest.raises(SystemExit):
        command.main([*arguments, "--time"])
    assert "before --time" in capsys.readouterr().err
    command.main(arguments)
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert "add --resume" in capsys.readouterr().err
    command.main([*arguments, "--time"])
    report = (tmp_path / "out" / "copying.md").read_text("utf-8")
    assert "timed apart" in report
    assert all(c.label in report for c in copying.contenders(8).values())
    assert (tmp_path / "out" / "copying.png").stat().st_size > 10_000
    result = json.loads((tmp_path / "out" / "copying.json").read_text("utf-8"))
    assert len(result["records"]) == len(copying.contenders(8))
