"""The methods compared: functions from a `Task` to a `Method`, found by name."""

from collections.abc import Callable

from benchmarks.methods.dissolving import algorithm_1, algorithm_2
from benchmarks.methods.signature import (
    Method as Method,
    Params as Params,
    Task as Task,
)
from benchmarks.methods.unconstrained import adam

METHODS: dict[str, Callable[[Task], Method]] = {
    "algorithm-1": algorithm_1,
    "algorithm-2": algorithm_2,
    "adam": adam,
}
