"""Runs of whole packages: `cdx.minimize`, and geoopt and pogo-torch in PyTorch.

The packages for PyTorch are given the setting that was chosen for the same method in
JAX, and compute the gradient by the same products in PyTorch.
"""

import importlib
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cdopt_jax as cdx
from benchmarks.rivals.problems import Instance, Protocol
from benchmarks.rivals.running import Watch
from benchmarks.shared.methods.torch_packages import installed

TWINS = {"geoopt, PyTorch": "R-sgd, QR", "pogo-torch": "POGO"}
"""Of each package for PyTorch, the method in JAX whose setting it is given."""


def minimized(
    method: str, instance: Instance, protocol: Protocol, seconds: float
) -> dict[str, Any]:
    """A run of `cdx.minimize`, stopped when it is at the gap or its time is over.

    The first call compiles, and is stopped at once; the second call is the run.
    """
    mask = cdx.Stiefel(rows=-2, columns=-1, B=instance.metric)
    goal = instance.best + protocol.gap * abs(instance.best)
    looks = []

    def value(x, data):
        return instance.value(x, data)

    def solve(callback):
        return cdx.minimize(
            *(value, instance.start, mask),
            method=method,
            args=(instance.data,),
            tol=float(np.finfo(instance.start.dtype).eps),
            callback=callback,
        )

    def look(info):
        gap = (info.value - instance.best) / abs(instance.best)
        looks.append([info.step, info.seconds, gap, info.feasibility])
        return info.value <= goal or info.seconds >= seconds

    compiling = solve(lambda _: True).compile_seconds
    result = solve(look)
    return {"setting": result.method, "compile": compiling, "looks": looks}


def fits(name: str, instance: Instance) -> bool:
    """Whether a package for PyTorch is installed and made for a problem."""
    module = "geoopt" if name.startswith("geoopt") else "pogo"
    return instance.metric is None and installed("torch") and installed(module)


def in_torch(
    name: str,
    instance: Instance,
    protocol: Protocol,
    setting: tuple[float, float],
    seconds: float,
) -> dict[str, Any]:
    """A run of a package for PyTorch."""
    torch = importlib.import_module("torch")
    rate, momentum = setting
    make = _geoopt if name.startswith("geoopt") else _pogo
    point, take = make(torch, np.array(instance.start), rate, momentum)
    gradient = _gradient(torch, instance)
    watch = Watch(instance, protocol.gap, seconds, protocol.steps or math.inf)
    count, spent = 0, 0.0
    while not watch(count, spent, point().numpy()):
        now = rate
        if protocol.steps is not None:
            now *= (1 + math.cos(math.pi * count / protocol.steps)) / 2
        began = time.perf_counter()
        take(gradient(point(), count), now)
        count, spent = count + 1, spent + time.perf_counter() - began
    looks = [list(look) for look in watch.looks]
    return {"setting": setting, "compile": 0.0, "looks": looks}


def _gradient(torch: Any, instance: Instance) -> Callable[[Any, int], Any]:
    """`Instance.gradient` in PyTorch; batches are drawn by NumPy."""
    data = {name: torch.tensor(np.array(a)) for name, a in instance.data.items()}
    if "samples" not in data:
        return lambda x, _: data["h"] @ x - data["c"]
    samples, batch = data["samples"], instance.batch or len(data["samples"])

    def sampled(x, count):
        rows = np.random.default_rng(count).integers(0, len(samples), batch)
        some = samples[torch.tensor(rows)]
        return -some.T @ (some @ x) / batch

    return sampled


def _geoopt(torch, x, rate, momentum):
    package = importlib.import_module("geoopt")
    manifold = package.Stiefel(canonical=False)
    point = package.ManifoldParameter(torch.tensor(x), manifold=manifold)
    optimiser = package.optim.RiemannianSGD([point], lr=rate, momentum=momentum)
    return _driven(point, optimiser, lambda g: g, point.detach)


def _pogo(torch, x, rate, momentum):
    package = importlib.import_module("pogo")
    point = torch.nn.Parameter(torch.tensor(x)[None])
    base = importlib.import_module("pogo.base").SGD(momentum=momentum)
    optimiser = package.POGO([point], base, rate, rows=False)
    return _driven(point, optimiser, lambda g: g[None], lambda: point.detach()[0])


def _driven(parameter, optimiser, shaped, point):
    """From a gradient and a rate to a step, and the point it is at."""

    def take(g, rate):
        parameter.grad = shaped(g)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()

    return point, take
