"""Settings under which every test runs."""

import os

import jax

# Eight simulated devices, so that sharding is always under test.
jax.config.update("jax_num_cpu_devices", 8)
# Double precision shows accidental promotion, and lets the theorems be checked tightly.
jax.config.update("jax_enable_x64", val=True)
# Most of the time goes into machine code that runs once. Less of LLVM's optimisation
# halves it; XLA's own passes, which the counts of products see, are the same.
_FLAGS = (os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=1")
os.environ["XLA_FLAGS"] = " ".join(_FLAGS)
os.environ.setdefault("MPLBACKEND", "Agg")
