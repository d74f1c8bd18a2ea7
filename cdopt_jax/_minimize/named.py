"""The names that ``method=`` accepts."""

from cdopt_jax._minimize.dissolved_lbfgs import LBFGS
from cdopt_jax._minimize.method import Method
from cdopt_jax._minimize.newton import Newton
from cdopt_jax._minimize.proximal import Proximal
from cdopt_jax._minimize.riemannian_lbfgs import Tangential
from cdopt_jax._minimize.sampling import Sampling
from cdopt_jax._minimize.subgradient import RULES, Subgradient

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
