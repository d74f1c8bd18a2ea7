"""Settings under which every test runs."""

import os

import jax

# Programs here run for milliseconds and compile for seconds: let LLVM make haste. What
# XLA itself makes of the products is the same. JAX reads this with its first device.
_haste = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_haste}"
os.environ.setdefault("MPLBACKEND", "Agg")
# Eight simulated devices, so that sharding is always under test.
jax.config.update("jax_num_cpu_devices", 8)
# Double precision shows accidental promotion, and lets the theorems be checked tightly.
jax.config.update("jax_enable_x64", val=True)
