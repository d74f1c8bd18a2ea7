"""The benchmark of unitary matrices: problems and rivals against decompositions."""

import importlib.metadata
import json
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

import cdopt_jax as cdx
from benchmarks.shared.runs import Runs
from benchmarks.unitary import command
from benchmarks.unitary.experiment import best_rate
from benchmarks.unitary.methods import METHODS, minimize_run, optax_runs
from benchmarks.unitary.problems import (
    SMALL,
    UNITARY,
    diagonalisation,
    gate,
    ising,
    least_energy,
    procrustes,
    random_stack,
)
from benchmarks.unitary.pymanopt_group import group, pymanopt_run
from benchmarks.unitary.report import first_of, reached
from benchmarks.unitary.riemannian_adam import (
    AdamState,
    nearest,
    riemannian_adam,
    tangent,
)
from tests.oracles import normal, polar


def ascent(f, x):
    """The direction of steepest ascent."""
    return jnp.conj(jax.grad(f)(x))


def test_riemannian_adam_follows_its_formulas():
    """Two matrices for three steps, written out in NumPy and SciPy."""
    rate, b1, b2, eps = 0.2, 0.9, 0.999, 1e-8
    start = np.asarray(random_stack(0, 2, 6, 3))
    grads = [np.asarray(normal((2, 6, 3), seed, "complex128")) for seed in (1, 2, 3)]
    tx, x = riemannian_adam(lambda count: rate / (1 + count)), jnp.asarray(start)
    state = tx.init(x)
    for g in grads:
        update, state = tx.update(jnp.asarray(g), state, x)
        (x,) = jax.tree.leaves(optax.apply_updates(x, update))
    assert isinstance(state, AdamState)

    def projected(y, v):
        k = y.conj().T @ v
        return v - y @ (k + k.conj().T) / 2

    for i, y in enumerate(start):
        m, v = np.zeros_like(y), 0.0
        for t, g in enumerate(grads, 1):
            d = projected(y, g[i])
            m, v = b1 * m + (1 - b1) * d, b2 * v + (1 - b2) * np.linalg.norm(d) ** 2
            move = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
            y = scipy.linalg.polar(y - rate / t * move)[0]
            m = projected(y, m)
        np.testing.assert_allclose(x[i], y, atol=1e-12)
        np.testing.assert_allclose(state.momentum[i], m, atol=1e-12)


def test_its_parts_are_a_projection_and_the_nearest_point():
    x, v = random_stack(0, 2, 5, 3), normal((2, 5, 3), 1, "complex128")
    d = tangent(x, v)
    k = x.conj().mT @ d
    assert jnp.abs(k + k.conj().mT).max() < 1e-14
    np.testing.assert_allclose(tangent(x, d), d, atol=1e-14)
    np.testing.assert_allclose(nearest(v)[0], polar(np.asarray(v[0])), atol=1e-12)


@pytest.mark.parametrize("count", [1, 3])
def test_the_mended_group_has_the_gradient_of_the_function(count):
    pytest.importorskip("pymanopt")
    x = np.asarray(random_stack(0, count, 4, 4))
    weights = normal(x.shape, 1, "complex128")

    def f(x):
        return jnp.sum(jnp.abs(x @ x - weights) ** 2)

    one = (lambda a: a[0]) if count == 1 else np.asarray
    manifold = group(4, count, mended=True)
    slope = manifold.projection(one(x), one(np.asarray(ascent(f, x))))
    turns = manifold.random_tangent_vector(one(x))
    step = 1e-6
    ends = [
        float(f(x @ scipy.linalg.expm(sign * step * turns.reshape(x.shape))))
        for sign in (1, -1)
    ]
    expected = (ends[0] - ends[1]) / (2 * step)
    found = manifold.inner_product(one(x), slope, turns)
    assert found == pytest.approx(expected, rel=1e-6)


def test_the_group_as_installed_has_not():
    """What the report says of pymanopt, of the version it says it of."""
    pytest.importorskip("pymanopt")
    if importlib.metadata.version("pymanopt") != "2.2.1":
        pytest.skip("another version of pymanopt")
    x, g = (np.asarray(a) for a in (random_stack(0, 4, 4), normal((4, 4), 1, "c16")))
    k = group(4, 1, mended=False).projection(x, g)
    assert np.linalg.norm(k + k.conj().T) > 0.1 * np.linalg.norm(k)
    mended = group(4, 1, mended=True).projection(x, g)
    assert np.linalg.norm(mended + mended.conj().T) < 1e-14


def test_procrustes_is_solved_by_a_polar_factor():
    problem = procrustes(0, n=5)
    # Of a function of U alone: AᴴC is minus half of its slope at zero.
    cross = -ascent(problem.f, jnp.zeros((1, 5, 5), complex))[0] / 2
    best = jnp.asarray(polar(np.asarray(cross)))[None]
    assert float(problem.f(best)) == pytest.approx(problem.least, abs=1e-12)
    assert problem.gap(problem.f(problem.start)) > 0.01


def test_diagonalisation_is_solved_by_the_eigenvectors():
    n = 4
    problem = diagonalisation(1, n=n)
    # The matrix from the values at columns of the identity and sums of two of them.
    slope = np.asarray(ascent(problem.f, jnp.eye(n, dtype=complex)[None]))[0]
    h = slope / (2 * np.arange(1, n + 1))
    np.testing.assert_allclose(h, h.conj().T, atol=1e-12)
    _, vectors = np.linalg.eigh(h)
    best = jnp.asarray(vectors[:, ::-1])[None]
    assert float(problem.f(best)) == pytest.approx(problem.least, abs=1e-12)


def test_a_gate_is_reached_by_its_own_circuit():
    gates = np.asarray(gate(0, count=3).start)
    first, second = np.kron(gates[0], np.eye(2)), np.kron(np.eye(2), gates[1])
    target = np.kron(gates[2], np.eye(2)) @ second @ first
    problem = gate(0, count=3)
    made = np.asarray(random_stack(100, 8, 8))
    fidelity = np.abs(np.trace(made.conj().T @ target) / 8) ** 2
    assert float(problem.f(problem.start)) == pytest.approx(1 - fidelity, abs=1e-12)


def test_energies_are_those_of_the_whole_matrix():
    spins = 4
    x, z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])

    def at(matrix, i):
        return reduce(np.kron, [matrix if k == i else np.eye(2) for k in range(spins)])

    h = -sum(at(x, i) for i in range(spins))
    h = h - sum(at(z, i) @ at(z, i + 1) for i in range(spins - 1))
    assert least_energy(spins) == pytest.approx(np.linalg.eigvalsh(h)[0], abs=1e-10)
    problem = ising(0, spins=spins, depth=2)
    state = np.zeros(2**spins, complex)
    state[0] = 1
    for matrix, i in zip(np.asarray(problem.start), (0, 2, 1), strict=True):
        whole = np.kron(np.kron(np.eye(2**i), matrix), np.eye(2 ** (spins - 2 - i)))
        state = whole @ state
    energy = (state.conj() @ h @ state).real
    assert float(problem.f(problem.start)) == pytest.approx(energy, abs=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_but_one_solves_a_small_problem(name):
    if "pymanopt" in name:
        pytest.importorskip("pymanopt")
    method, problem = METHODS[name], procrustes(2, n=4)
    trace = method.prepare(problem, 400)(*((0.3,) if method.rated else ()))
    assert trace.feasibility[-1] < 1e-9
    assert np.diff(trace.steps).min() > 0
    assert np.diff(trace.seconds).min() >= 0
    assert (trace.gaps[-1] < 1e-6) == (name != "pymanopt")


def test_a_trace_begins_at_the_start_and_ends_where_the_run_does():
    problem = gate(0, count=3)
    runs = [
        optax_runs(problem, 100, make=riemannian_adam)(0.1),
        minimize_run(problem, 100),
    ]
    first = float(problem.gap(problem.f(problem.start)))
    for trace in runs:
        assert trace.steps[0] == 0
        assert trace.gaps[0] == pytest.approx(first, abs=1e-12)
        assert trace.gaps[-1] < trace.gaps[0]
    assert runs[0].steps[-1] == 100


def test_pymanopt_counts_accepted_steps():
    pytest.importorskip("pymanopt")
    problem = procrustes(2, n=4)
    trace = pymanopt_run(problem, 5, optimizer="ConjugateGradient")
    assert trace.steps[:2] == [0, 1]
    assert trace.steps[-1] <= 5
    assert trace.gaps == sorted(trace.gaps, reverse=True)


def test_starts_are_unitary():
    for kind in SMALL.values():
        start = kind.draw(0).start
        assert max(map(float, cdx.feasibility(start, UNITARY).values())) < 1e-12
        assert start.dtype == jnp.complex128


def test_a_level_counts_once_the_run_stays_below_it():
    record = {"gaps": [1.0, 1e-7, 1e-5, 1e-8, 1e-9], "steps": [0, 10, 20, 30, 40]}
    assert reached(record, 1e-6, "steps") == 30
    assert reached(record, 1e-10, "steps") == np.inf
    assert reached(record, 2.0, "steps") == 0
    assert reached({"gaps": [1.0, np.nan], "steps": [0, 1]}, 0.1, "steps") == np.inf


def test_the_verdict_names_who_is_quicker_and_who_never_comes():
    def run(seconds, end):
        return [{"gaps": [1.0, end], "seconds": [0.0, seconds]}]

    kind = SMALL["gate"]._replace(levels=(1e-3, 1e-9))
    rows = {"minimize": run(1.0, 1e-10), "riemannian-adam": run(2.0, 1e-4)}
    said = first_of(kind, rows)
    assert "To 0.001 our quickest, minimize, takes 0.50 of the time" in said
    assert "To 1e-09 minimize comes, and no rival." in said


def test_the_rate_is_the_one_that_ends_lowest(tmp_path):
    runs = Runs(tmp_path / "runs.jsonl")
    for rate, gap in {0.1: 1e-3, 0.3: -1e-16, 1.0: 1e-15, 3.0: float("nan")}.items():
        key = {"kind": "gate", "method": "m", "stage": "tuning"}
        runs.add({**key, "rate": rate, "gap": gap})
    assert best_rate(runs, "gate", "m") == 0.3


@pytest.mark.slow
def test_the_command_tunes_runs_and_writes_its_report(tmp_path, capsys):
    pytest.importorskip("pymanopt")
    folders = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    command.main(["--quick", "--tune", "--only", "gate", *folders])
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit):
        command.main(["--quick", *folders])
    assert "add --resume" in capsys.readouterr().err
    command.main(["--quick", "--resume", "--only", "gate", "procrustes", *folders])
    report = (tmp_path / "out" / "unitary.md").read_text("utf-8")
    assert all(method.label in report for method in METHODS.values())
    assert "## A gate of three qubits" in report
    assert (tmp_path / "out" / "unitary.png").stat().st_size > 10_000
    records = json.loads((tmp_path / "out" / "unitary.json").read_text())["records"]
    assert {r["kind"] for r in records} == {"gate", "procrustes"}
