"""The methods of `minimize`, with their options.

A name, ``method="tangential"``, is a method with its defaults; an object carries its
options, ``method=cdx.methods.Tangential(history=20)``. ``"auto"`` is
``"continuation"`` with a regularizer and ``"proximal"`` without; where the latter shows
that f has kinks, ``"geometric"`` goes on from there.

- ``"proximal"``, ``Proximal()``: f smooth, with a regularizer or without.
- ``"continuation"``, ``Proximal(ahead=300)``: the same, for a strong regularizer.
- ``"tangential"``, ``Tangential()``: f + r smooth, where steps are dear.
- ``"lbfgs"``, ``LBFGS()``: f + r smooth, on the constraint dissolving function h.
- ``"newton"``, ``Newton()``: f + r smooth, second derivatives, on h.
- ``"geometric"``, …, ``Subgradient(rule=…)``: any f.
- ``"sampling"``, ``Sampling()``: any f of few variables.
- ``Optax(optimizer)``: any Optax optimiser, and objectives known by batches.
"""

from ._minimize.dissolved_lbfgs import LBFGS as LBFGS
from ._minimize.method import Method as Method
from ._minimize.named import NAMED as NAMED
from ._minimize.newton import Newton as Newton
from ._minimize.optax_method import Optax as Optax
from ._minimize.proximal import Proximal as Proximal
from ._minimize.riemannian_lbfgs import Tangential as Tangential
from ._minimize.sampling import Sampling as Sampling
from ._minimize.subgradient import Subgradient as Subgradient
