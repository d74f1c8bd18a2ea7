"""Settings under which every test runs."""

import gc
import mmap
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import jax
import jaxlib
import pytest

from cdopt_jax._minimize import programs

# Eight simulated devices, so that sharding is always under test.
jax.config.update("jax_num_cpu_devices", 8)
# Double precision shows accidental promotion, and lets the theorems be checked tightly.
jax.config.update("jax_enable_x64", val=True)
# Most of the time goes into machine code that runs once, so LLVM optimises little and
# XLA's older emitters, which are quicker, write it. XLA's own passes, which the counts
# of products see, are the same. With XLA_FLAGS set, also to nothing, tests run on code
# as users compile it.
QUICK = {
    "xla_backend_optimization_level": "1",
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_llvm_disable_expensive_passes": "true",
}
# Slow tests run their programs for long. For the others LLVM optimises nothing, and
# `constrain` compiles in 0.3 s instead of 0.75. Then of two copies of a value one may
# have its products and sums fused and the other not; the gradient of a maximum, which
# looks for the entries that equal it, finds none and is NaN. This set of instructions
# has none that fuses them.
UNOPTIMISED = "JAX_DISABLE_MOST_OPTIMIZATIONS"
UNFUSED = {"xla_cpu_max_isa": "AVX"}


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
    """Before XLA reads its flags; workers and other processes inherit them."""
    if "XLA_FLAGS" not in os.environ:
        flags = QUICK
        if config.getoption("markexpr") == "not slow":
            os.environ[UNOPTIMISED] = "1"
            if platform.machine() in ("x86_64", "AMD64"):
                flags = QUICK | UNFUSED
        os.environ["XLA_FLAGS"] = " ".join(_known(flags))
    if os.environ.get(UNOPTIMISED) == "1":
        jax.config.update("jax_disable_most_optimizations", val=True)
        # The solver compiles its first and its last program with options of their own.
        programs.HASTY["xla_backend_optimization_level"] = "0"


@pytest.fixture
def optimised() -> Iterator[None]:
    """For a test that runs its programs for long."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", val=False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def pytest_collection_finish() -> None:
    """What is imported stays, and Python need not look through it again and again.

    Tracing makes many objects: with the usual thresholds, a tenth of its time goes into
    collections of garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
