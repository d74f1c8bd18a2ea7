"""The packages for PyTorch, as they are installed: geoopt, geotorch and pogo-torch.

Nothing of them is imported before it is asked for, and those that are not installed are
left out. Times are to be compared with `floor` here, the same products in PyTorch.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.shared.timing import interleaved

# geotorch takes the exponential of an n×n matrix: beyond this it runs for minutes.
GEOTORCH_ROWS = 1024


class Rival(NamedTuple):
    """One optimiser with its point.

    Attributes:
        step: Takes a step with that gradient.
        point: The point it is at.
    """

    step: Callable[[Any], None]
    point: Callable[[], Any]


def installed(module: str) -> bool:
    """Whether a module can be imported."""
    return importlib.util.find_spec(module) is not None


def _load(module) -> Any:
    return importlib.import_module(module)


def geoopt(x: np.ndarray, rate: float) -> Rival:
    """Riemannian SGD, Euclidean metric: tangent projection and QR."""
    package = _load("geoopt")
    manifold = package.Stiefel(canonical=False)
    point = package.ManifoldParameter(_load("torch").tensor(x), manifold=manifold)
    optimiser = package.optim.RiemannianSGD([point], lr=rate)

    def step(g):
        point.grad = g
        optimiser.step()

    return Rival(step=step, point=point.detach)


def geotorch(x: np.ndarray, rate: float) -> Rival:
    """SGD through the orthogonal parametrisation, its weight formed and pulled back."""
    torch = _load("torch")
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.tensor(x))
    _load("geotorch").orthogonal(module, "weight")
    module.weight = torch.tensor(x)
    optimiser = torch.optim.SGD(module.parameters(), lr=rate)

    def step(g):
        optimiser.zero_grad()
        module.weight.backward(g)
        optimiser.step()

    return Rival(step=step, point=lambda: module.weight.detach())


def pogo(x: np.ndarray, rate: float) -> Rival:
    """POGO over SGD, with its defaults."""
    package, torch = _load("pogo"), _load("torch")
    stack = (-1, *x.shape[-2:])
    point = torch.nn.Parameter(torch.tensor(x).reshape(stack))
    base = _load("pogo.base").SGD()
    optimiser = package.POGO([point], base, rate, rows=False)

    def step(g):
        point.grad = g.reshape(stack)
        optimiser.step()

    return Rival(step=step, point=lambda: point.detach().reshape(x.shape))


def floor(x: Any, g: Any) -> Any:
    """The products of `benchmarks.shared.timing.floor`."""
    m, k = x.mT @ x, x.mT @ g
    return x @ (k @ m) + g @ (m @ m)


def rivals(x: np.ndarray, rate: float) -> dict[str, Rival]:
    """Each that is installed, and can do with this shape, at the point ``x``."""
    made = {"geoopt": geoopt, "geotorch": geotorch, "pogo": pogo}
    if not installed("torch"):
        return {}
    if x.shape[-2] > GEOTORCH_ROWS:
        del made["geotorch"]
    return {
        f"{name}, PyTorch": make(x, rate)
        for name, make in made.items()
        if installed(name)
    }


def seconds(
    x: np.ndarray, g: np.ndarray, rate: float, repeats: int, budget: float
) -> dict[str, float]:
    """The median seconds of a step of each, and of the floor; empty without PyTorch."""
    stepped = rivals(x, rate)
    if not stepped:
        return {}
    torch = _load("torch")
    gradient, point = torch.tensor(g), torch.tensor(x)
    timed: dict[str, Callable[[], Any]] = {"floor": lambda: floor(point, gradient)}
    for name, rival in stepped.items():
        timed[name] = lambda rival=rival: rival.step(gradient)
    return interleaved(timed, repeats, budget=budget)


def endpoints(
    x: np.ndarray,
    gradient: Callable[[np.ndarray], np.ndarray],
    rate: float,
    steps: int,
) -> dict[str, np.ndarray]:
    """Where each is after some steps from ``x``."""
    stepped = rivals(x, rate)
    for rival in stepped.values():
        for _ in range(steps):
            g = gradient(rival.point().numpy())
            rival.step(_load("torch").tensor(g))
    return {name: rival.point().numpy() for name, rival in stepped.items()}
