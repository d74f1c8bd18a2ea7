"""A run that is killed and restored by Orbax ends as if it had never stopped."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cdopt_jax as cdx

pytest.importorskip("orbax.checkpoint")
PROGRAM = Path(__file__).with_name("resumable.py")


def start(directory, mode):
    command = [sys.executable, str(PROGRAM), str(directory), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit_in_a_new_process(tmp_path):
    with start(tmp_path, "whole") as whole:
        with start(tmp_path, "killed") as killed:
            assert killed.stdout
            assert killed.stdout.readline() == "saved\n"
            killed.kill()
        assert killed.returncode == -signal.SIGKILL
        with start(tmp_path, "resumed") as resumed:
            pass
        assert resumed.returncode == 0
    assert whole.returncode == 0
    with np.load(tmp_path / "whole.npz") as a, np.load(tmp_path / "resumed.npz") as b:
        assert set(a) == set(b)
        # Two flavours, three recipes, four leaves each.
        assert len(set(a)) == 24
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
            assert np.isfinite(a[name]).all()


PARAMS = {"a": jnp.eye(4, 2), "b": jnp.eye(5, 3)}
STATES: dict[str, Any] = {
    "constrain": cdx.constrain(optax.adam(0.1)),
    "keep_feasible": cdx.keep_feasible(),
    "dissolve_gradients": cdx.dissolve_gradients("auto"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_restored_without_its_structure_is_refused(name):
    """As Orbax gives it without a target: dictionaries and lists."""
    tx = STATES[name]
    as_dict = tx.init(PARAMS)._asdict()
    who = name.split(",")[0]
    with pytest.raises(ValueError, match=rf"{who}.*dict.*init\(params\)"):
        tx.update(PARAMS, as_dict, PARAMS)


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_other_parameters_is_refused(name):
    tx = STATES[name]
    other = tx.init({"a": jnp.eye(4, 2)})
    who = name.split(",")[0]
    with pytest.raises(ValueError, match=rf"{who}.*'a', 'b'.*init\(params\)"):
        jax.eval_shape(tx.update, PARAMS, other, PARAMS)


def test_a_run_over_complex_and_scaled_leaves_goes_on_from_a_checkpoint(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    key = jax.random.key(0)
    params: Any = {"u": cdx.stiefel.random(key, (6, 3), jnp.complex64), "w": jnp.eye(4)}
    mask = {"u": True, "w": cdx.Stiefel(scale=1.5)}
    tx = cdx.constrain(optax.adam(0.1), mask)

    @jax.jit
    def step(params, state):
        grads = jax.tree.map(lambda x: x.conj() * x - 1, params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    saved: Any = step(params, tx.init(params))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", saved)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "saved", (params, tx.init(params)))
    for a, b in zip(
        jax.tree.leaves(step(*saved)), jax.tree.leaves(step(*restored)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
