"""The names that ``method=`` accepts."""

from .dissolved_lbfgs import LBFGS
from .method import Method
from .newton import Newton
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
