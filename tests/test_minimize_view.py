"""What a user sees of a run: callbacks, progress, summaries, figures, many starts."""

import contextlib
import importlib.util
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cdopt_jax as cdx
from tests.minimize_problems import BEST, N, quadratic, start, variance


def test_a_callback_sees_the_run_and_may_stop_it():
    seen = []

    def callback(info):
        seen.append(info)
        return len(seen) == 2

    result = cdx.minimize(quadratic, start(), tol=1e-300, callback=callback)
    assert 0 < seen[0].step < seen[1].step
    assert seen[-1].value == pytest.approx(float(quadratic(result.params)), abs=1e-12)
    assert seen[-1].seconds > seen[0].seconds > 0
    assert seen[-1].feasibility < 1e-8
    assert 0 < seen[-1].stationarity < seen[0].stationarity
    assert "stopped by the callback" in result.message
    assert int(result.steps) == seen[-1].step


def test_an_error_in_a_callback_is_the_users():
    def callback(info):
        raise KeyError(f"after step {info.step}")

    with pytest.raises(KeyError, match="after step"):
        cdx.minimize(quadratic, start(), callback=callback)


@pytest.mark.parametrize("installed", [True, False])
def test_progress_is_shown(installed, capfd, monkeypatch):
    if not installed:
        found = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: name != "tqdm" and found(name)
        )
        monkeypatch.setattr("cdopt_jax._minimize.run.EVERY_SECONDS", 0.0)
    cdx.minimize(quadratic, start(), progress=True)
    shown = capfd.readouterr().err
    assert "value" in shown
    assert "stationarity" in shown
    assert ("it]" in shown or "step/s" in shown) == installed


def test_a_summary_is_short_and_a_figure_has_six_panels():
    result = cdx.minimize(quadratic, start())
    text = str(result)
    assert "converged:   True" in text
    assert f"{BEST:.5g}"[:6] in text
    assert len(text.splitlines()) == 5
    figure = result.plot()
    panels = figure.axes
    assert len(panels) == 6
    np.testing.assert_array_equal(
        panels[2].lines[0].get_xdata(), np.asarray(result.history.step)
    )


def test_the_best_of_many_starts_is_returned():
    data = jnp.asarray(np.random.default_rng(0).normal(size=(20, 40)))
    options = {"args": (data,), "regularizer": cdx.prox.l1(0.6)}
    one = cdx.minimize(variance, start(n=40), **options)
    many = cdx.minimize(
        variance, start(n=40), starts=5, key=jax.random.key(0), **options
    )
    assert many.values is not None
    assert many.values.shape == (5,)
    assert float(many.value) == pytest.approx(float(many.values.min()))
    assert float(many.values[0]) == pytest.approx(float(one.value), rel=1e-6)
    assert float(np.ptp(np.asarray(many.values))) > 1e-3
    value = variance(many.params, data) + 0.6 * jnp.sum(jnp.abs(many.params))
    assert float(value) == pytest.approx(float(many.value), rel=1e-9)
    assert many.params.shape == (40, 3)


def test_a_path_of_weights_goes_on_from_each_result_with_one_program():
    data = jnp.asarray(np.random.default_rng(0).normal(size=(20, 40)))
    found = start(n=40)
    zeros, compiled = [], []

    def f(x, data):
        return variance(x, data)

    for weight in (0.1, 0.3, 0.5, 0.7):
        found = cdx.minimize(f, found, args=(data,), regularizer=cdx.prox.l1(weight))
        assert found.converged
        zeros.append(float(found.sparsity))
        compiled.append(found.compile_seconds > 0)
    assert compiled == [True, False, False, False]
    assert zeros == sorted(zeros)
    assert found.method == "proximal"


def test_seconds_are_those_of_steps():
    result = cdx.minimize(quadratic, start(), max_steps=30, tol=1e-300)
    assert np.all(np.diff(result.history.seconds) > 0)
    assert result.history.seconds[0] > 0


def test_a_callback_is_told_the_seconds_of_all_phases():
    data = jnp.asarray(np.random.default_rng(0).normal(size=(20, 40)))
    seen = []
    result = cdx.minimize(
        variance,
        start(n=40),
        args=(data,),
        method="continuation",
        regularizer=cdx.prox.l1(0.5),
        callback=seen.append,
    )
    told = {info.step: info.seconds for info in seen}
    kept = dict(zip(result.history.step, result.history.seconds, strict=True))
    # The last look of a phase has the seconds of its end as well.
    assert np.all(np.diff(list(told.values())) > 0)
    for step, seconds in told.items():
        assert kept[step] >= seconds
    assert max(told.values()) > 0.5 * result.history.seconds[-1]


def test_the_budget_ends_a_run_and_the_message_says_so():
    result = cdx.minimize(quadratic, start(), method="proximal", max_steps=3)
    assert int(result.steps) == 3
    assert not result.converged
    assert "budget" in result.message


@pytest.mark.slow
def test_an_interrupt_returns_the_point_reached():
    timer = threading.Timer(20.0, signal.raise_signal, [signal.SIGINT])
    before = float(quadratic(start()))
    result = None
    with contextlib.suppress(KeyboardInterrupt):
        timer.start()
        result = cdx.minimize(
            quadratic,
            start(),
            method="diminishing",
            max_steps=2_000_000_000,
            tol=1e-300,
        )
    timer.cancel()
    assert result is not None
    assert "interrupted" in result.message
    assert float(result.value) < before


def test_a_method_carries_its_options():
    few = cdx.minimize(
        quadratic, start(), method=cdx.methods.Tangential(history=1), tol=1e-10
    )
    more = cdx.minimize(
        quadratic, start(), method=cdx.methods.Tangential(history=12), tol=1e-10
    )
    assert few.converged
    assert more.converged
    assert int(more.steps) < int(few.steps)
    with pytest.raises(ValueError, match="rule must be one of"):
        cdx.methods.Subgradient(rule="steepest")
    assert cdx.methods.NAMED["continuation"] == cdx.methods.Proximal(ahead=300)
    assert more.params.shape[0] == N


def test_what_a_callback_takes_is_not_counted():
    slept = 0.05

    def callback(info):
        time.sleep(slept)
        return info.step > 20

    began = time.perf_counter()
    result = cdx.minimize(quadratic, start(), tol=1e-300, callback=callback)
    calls = len(result.history.step) - 1
    elapsed = time.perf_counter() - began
    assert calls > 1
    assert result.history.seconds[-1] + calls * slept <= elapsed
