"""Settings under which every test runs."""

import os

import jax
import pytest

# Eight simulated devices, so that sharding is always under test.
jax.config.update("jax_num_cpu_devices", 8)
# Double precision shows accidental promotion, and lets the theorems be checked tightly.
jax.config.update("jax_enable_x64", val=True)
# Most of the time goes into machine code that runs once. Less of LLVM's optimisation
# halves it; XLA's own passes, which the counts of products see, are the same.
_FLAGS = (os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=1")
os.environ["XLA_FLAGS"] = " ".join(_FLAGS)
os.environ.setdefault("MPLBACKEND", "Agg")

# The longest tests, and variants of tests whose shorter ones run by default: `-m slow`.
LONG = (
    "test_bounds.py::test_the_report_is_found_by_name_and_keeps_its_structure",
    "test_constrain.py::test_lbfgs_searches_along_the_manifold",
    "test_constrain.py::test_with_a_beta_a_line_search_sees_the_dissolving_function[",
    "test_flax.py::test_linen_and_nnx_take_the_same_steps_from_the_same_values[prox]",
    "test_flax.py::test_stacked_and_boxed_kernels_of_linen_are_trained[Partitioned",
    "test_flax.py::test_stacked_and_boxed_kernels_of_linen_are_trained[Scanned",
    "test_groups.py::test_a_leaf_steps_as_it_does_alone[constrain-prox]",
    "test_groups.py::test_a_leaf_steps_as_it_does_alone[keep_feasible]",
    "test_groups.py::test_groups_are_mapped_over_as_single_leaves_are[",
    "test_layers.py::test_a_layer_is_read_as_its_matrices[recurrent, Linen]",
    "test_layers.py::test_a_step_keeps_a_layer_on_the_manifold_and_others_where_the"
    "y_were[recurrent, NNX GRU]",
    "test_layers.py::test_an_initializer_is_on_the_manifold_of_its_reading[fused",
    "test_layers.py::test_an_initializer_is_on_the_manifold_of_its_reading[recurren"
    "t, NNX",
    "test_layers.py::test_an_initializer_serves_attention_which_asks_for_flat_kerne"
    "ls[6]",
    "test_master.py::test_constrained_copies_are_orthonormal_to_single_precision[bf"
    "loat16]",
    "test_memory.py::test_a_step_with_donated_buffers_reuses_all_of_them[adam]",
    "test_memory.py::test_a_step_with_donated_buffers_reuses_all_of_them[sgd]",
    "test_memory.py::test_a_training_step_needs_hardly_more_memory_than_without_the"
    "_constraint[adam]",
    "test_methods.py::test_it_is_solved_to_its_tolerance_from_any_multiplier[float32]",
    "test_methods.py::test_lookahead_is_that_of_optax[0]",
    "test_methods.py::test_without_the_l1_norm_it_is_a_riemannian_gradient_step",
    "test_ocnn.py::test_a_bad_argument_is_one_line_and_writes_nothing[--budget-minu"
    "tes 1e-6",
    "test_ocnn.py::test_a_budget_ends_a_run_that_can_be_resumed",
    "test_ocnn.py::test_a_run_that_was_stopped_goes_on_to_the_same_records",
    "test_ocnn.py::test_a_search_finds_the_rate_of_the_highest_accuracy",
    "test_ocnn.py::test_seeds_differ_and_the_table_has_their_spread",
    "test_precision.py::test_a_run_under_it_keeps_its_feasibility[constrain-adam]",
    "test_precision.py::test_half_precision_leaves_end_as_near_as_their_dtype_allow"
    "s[constrain-adam",
    "test_processes.py::test_several_processes_end_where_one_does[2]",
    "test_sharding.py::test_a_long_step_is_that_of_one_device[auto]",
    "test_sharding.py::test_a_long_step_is_that_of_one_device[explicit]",
    "test_sharding.py::test_a_step_is_that_of_one_device_and_keeps_its_layout[batch"
    "-and-",
    "test_sharding.py::test_a_step_is_that_of_one_device_and_keeps_its_layout[colum"
    "ns-of-",
    "test_sharding.py::test_array_functions_are_those_of_one_device[batch-and-rows",
    "test_sharding.py::test_array_functions_are_those_of_one_device[columns-explicit]",
    "test_sharding.py::test_array_functions_are_those_of_one_device[rows-and-columns",
    "test_sharding.py::test_inside_shard_map_a_step_is_that_of_one_device[batch-and-",
    "test_sharding.py::test_inside_shard_map_a_step_is_that_of_one_device[columns-of-",
    "test_sharding.py::test_tree_functions_are_those_of_one_device[conv-outputs-exp"
    "licit]",
    "test_solvers.py::test_infeasible_solvers_end_where_manpg_does_with_norms_of_rows",
    "test_solvers.py::test_manpg_descends_at_every_step_to_a_point_that_is_stationa"
    "ry[manpg]",
    "test_sweep.py::test_no_optimiser_rate_or_noise_drives_the_guarded_step_out[(3,"
    " 8, 4)-generalized]",
    "test_sweep.py::test_no_optimiser_rate_or_noise_drives_the_guarded_step_out[(3,"
    " 8, 4)-stiefel]",
    "test_sweep.py::test_nor_does_one_that_searches_or_has_two_copies[lbfgs]",
    "test_wrappers.py::test_a_wrapper_trains_to_the_optimum_on_the_manifold[lbfgs]",
    "test_wrappers.py::test_a_wrapper_trains_to_the_optimum_on_the_manifold[schedul"
    "e_free]",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, before the markers decide what is run."""
    for item in items:
        if any(name in item.nodeid for name in LONG):
            item.add_marker(pytest.mark.slow)
