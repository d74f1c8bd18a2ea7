"""What a step costs each device when a matrix is split by rows over more of them.

Nothing runs: simulated devices would share the cores. The products of each device and
what it sends are read from the compiled program.
"""

from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec as P

import cdopt_jax as cdx
from benchmarks.scaling.hlo import read
from benchmarks.scaling.large_model import Kernel, compile_step

SHAPE = (8192, 256)
COUNTS = (1, 2, 4, 8)


def measure(shape: tuple[int, int] = SHAPE) -> list[dict[str, Any]]:
    """A record for each number of devices: FLOPs, bytes and rounds of each device.

    Call it when JAX knows of eight devices.
    """
    kernel = Kernel(shape=shape, split=P("model", None), reading=cdx.layers.dense())
    records = []
    for count in COUNTS:
        devices = jax.devices()[:count]
        mesh = jax.make_mesh(
            (count,), ("model",), (AxisType.Explicit,), devices=devices
        )
        program = compile_step(kernel, "constrain(adam)", mesh)
        usual, _ = read(program.as_text())
        records.append(
            {
                "devices": count,
                "shape": shape,
                "flops": usual.flops,
                "bytes": sum(usual.bytes.values()),
                "rounds": usual.rounds,
            }
        )
    return records
