"""Programs that run once are compiled in haste, where nothing is timed.

LLVM then optimises little, though more than at level 0, at which some programs return
NaN, and XLA's older emitters, which are quicker, write the code.
"""

import mmap
import os
from pathlib import Path

import jaxlib

FLAGS = {
    "xla_backend_optimization_level": "1",
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_llvm_disable_expensive_passes": "true",
}


def flags() -> str:
    """Those that XLA has, as ``XLA_FLAGS``: one that it has not ends the process."""
    files = Path(jaxlib.__file__).parent.glob("*.so")
    library = max(files, key=lambda file: file.stat().st_size)
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        names = [name for name in FLAGS if text.find(name.encode()) >= 0]
    return " ".join(f"--{name}={FLAGS[name]}" for name in names)


def make_haste() -> None:
    """Compile so in this process, and in those that it starts.

    It must come before the first computation; flags that are set are left alone.
    """
    os.environ.setdefault("XLA_FLAGS", flags())
