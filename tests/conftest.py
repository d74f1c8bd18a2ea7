"""Settings under which every test runs."""

import os

import jax

# Eight simulated devices, so that sharding is always under test.
jax.config.update("jax_num_cpu_devices", 8)
# Double precision shows accidental promotion, and lets the theorems be checked tightly.
jax.config.update("jax_enable_x64", val=True)
os.environ.setdefault("MPLBACKEND", "Agg")
