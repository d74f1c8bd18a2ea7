"""Settings under which every test runs."""

import mmap
import os
from pathlib import Path

import jax
import jaxlib
import pytest

# Eight simulated devices, so that sharding is always under test.
jax.config.update("jax_num_cpu_devices", 8)
# Double precision shows accidental promotion, and lets the theorems be checked tightly.
jax.config.update("jax_enable_x64", val=True)
# Most of the time goes into machine code that runs once, so LLVM optimises little (with
# level 0, some programs return NaN) and XLA's older emitters, which are quicker, write
# it: `constrain` compiles in 0.30 s instead of 1.08. XLA's own passes, which the counts
# of products see, are the same. With XLA_FLAGS set, also to nothing, tests run on code
# as users compile it.
QUICK = {
    "xla_backend_optimization_level": "1",
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_llvm_disable_expensive_passes": "true",
}


def _known(flags: dict[str, str]) -> list[str]:
    """Those that XLA has: a flag that it has not ends the process."""
    files = Path(jaxlib.__file__).parent.glob("*.so")
    library = max(files, key=lambda file: file.stat().st_size)
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        names = [name for name in flags if text.find(name.encode()) >= 0]
    return [f"--{name}={flags[name]}" for name in names]


if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = " ".join(_known(QUICK))
os.environ.setdefault("MPLBACKEND", "Agg")

# The longest tests, and variants of tests whose shorter ones run by default: `-m slow`.
LONG = (
    "test_methods.py::test_it_is_solved_to_its_tolerance_from_any_multiplier[float32]",
    "test_methods.py::test_lookahead_is_that_of_optax[0]",
    "test_methods.py::test_without_the_l1_norm_it_is_a_riemannian_gradient_step",
    "test_ocnn.py::test_a_bad_argument_is_one_line_and_writes_nothing[--budget-minu"
    "tes 1e-6",
    "test_ocnn.py::test_a_budget_ends_a_run_that_can_be_resumed",
    "test_ocnn.py::test_a_run_that_was_stopped_goes_on_to_the_same_records",
    "test_ocnn.py::test_a_search_finds_the_rate_of_the_highest_accuracy",
    "test_ocnn.py::test_seeds_differ_and_the_table_has_their_spread",
    "test_processes.py::test_several_processes_end_where_one_does[2]",
    "test_solvers.py::test_infeasible_solvers_end_where_manpg_does_with_norms_of_rows",
    "test_solvers.py::test_manpg_descends_at_every_step_to_a_point_that_is_stationa"
    "ry[manpg]",
    "test_sweep.py::test_no_optimiser_rate_or_noise_drives_the_guarded_step_out[(3,"
    " 8, 4)-generalized]",
    "test_sweep.py::test_no_optimiser_rate_or_noise_drives_the_guarded_step_out[(3,"
    " 8, 4)-stiefel]",
    "test_sweep.py::test_nor_does_one_that_searches_or_has_two_copies[lbfgs]",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, before the markers decide what is run."""
    for item in items:
        if any(name in item.nodeid for name in LONG):
            item.add_marker(pytest.mark.slow)
