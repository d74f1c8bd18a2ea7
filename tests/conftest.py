"""Settings under which every test runs."""

import gc
import mmap
import os
import platform
from pathlib import Path

import jax
import jaxlib
import pytest

from cdopt_jax._minimize import programs

# Eight simulated devices, so that sharding is always under test.
jax.config.update("jax_num_cpu_devices", 8)
# Double precision shows accidental promotion, and lets the theorems be checked tightly.
jax.config.update("jax_enable_x64", val=True)
# Most of the time goes into machine code that runs once, so LLVM optimises nothing and
# XLA's older emitters, which are quicker, write it: `constrain` compiles in 0.3 s
# instead of 0.75 with level 1. XLA's own passes, which the counts of products see, are
# the same. With XLA_FLAGS set, also to nothing, tests run on code as users compile it.
QUICK = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_llvm_disable_expensive_passes": "true",
}
# Slow tests run their programs for long.
OPTIMISED = QUICK | {"xla_backend_optimization_level": "1"}
# At level 0, of two copies of a value one may have its products and sums fused and the
# other not. The gradient of a maximum, which looks for the entries that equal it, then
# finds none and is NaN. This set of instructions has none that fuses them.
if platform.machine() in ("x86_64", "AMD64"):
    QUICK["xla_cpu_max_isa"] = "AVX"


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


os.environ.setdefault("MPLBACKEND", "Agg")


def pytest_configure(config: pytest.Config) -> None:
    """Before XLA reads its flags, in each process."""
    if "XLA_FLAGS" not in os.environ:
        fast = config.getoption("markexpr") == "not slow"
        flags = _known(QUICK if fast else OPTIMISED)
        os.environ["XLA_FLAGS"] = " ".join(flags)
    # The solver compiles its first and its last program with options of their own.
    level = "xla_backend_optimization_level"
    if f"--{level}={QUICK[level]}" in os.environ["XLA_FLAGS"]:
        programs.HASTY[level] = QUICK[level]


def pytest_collection_finish() -> None:
    """What is imported stays, and Python need not look through it again and again.

    Tracing makes many objects: with the usual thresholds, a tenth of its time goes into
    collections of garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
