"""The names that ``method=`` accepts, and the method that an option stands for."""

from typing import Any

from cdopt_jax._errors import error
from cdopt_jax.prox import Regularizer

from .dissolved_lbfgs import LBFGS
from .method import Method
from .newton import Newton
from .optax_method import Optax, stochastic
from .proximal import Proximal
from .riemannian_lbfgs import Tangential
from .sampling import Sampling
from .subgradient import RULES, Subgradient

NAMED: dict[str, Method] = {
    "proximal": Proximal(),
    "continuation": Proximal(ahead=300),
    "tangential": Tangential(),
    "lbfgs": LBFGS(),
    "newton": Newton(),
    "sampling": Sampling(),
    **{rule: Subgradient(rule=rule) for rule in RULES},
}
"""Each name that ``method=`` accepts besides ``"auto"``, with its method."""


def chosen_method(
    method: Any,
    regularizer: Regularizer | None,
    batch: object,
    most: int,
    *,
    warm: bool,
) -> Method:
    """The method that an option stands for."""
    optimizer = hasattr(method, "update")
    if batch is not None:
        if isinstance(method, Optax):
            return Optax(optimizer=method.optimizer, sampled=True)
        if not optimizer and method != "auto":
            raise error(
                f"method={method!r} compares values of one function, and with batch= "
                "each step has its own; give an Optax optimiser, such as "
                "optax.adam(1e-2)."
            )
        drawn = stochastic(most) if isinstance(method, str) else method
        return Optax(drawn, sampled=True)
    if isinstance(method, Method):
        found = method
    elif optimizer:
        found = Optax(method)
    elif isinstance(method, str) and method in NAMED:
        found = NAMED[method]
    elif isinstance(method, str) and method == "auto":
        # From the end of another run there is nothing to go ahead for.
        ahead = regularizer is not None and not warm
        found = NAMED["continuation" if ahead else "proximal"]
        if regularizer is not None and regularizer.prox is None:
            found = NAMED["geometric"]
    else:
        raise error(
            f"method must be one of {', '.join(['auto', *NAMED])}, an object of "
            f"cdx.methods, or an Optax optimiser; it is {method!r}."
        )
    lacks = regularizer is not None and regularizer.prox is None
    if lacks and found.name in ("proximal", "continuation"):
        raise error(
            f'method="{found.name}" needs the proximal map of r, and prox is None; '
            'give one, or write method="geometric", which takes subgradients.'
        )
    return found
