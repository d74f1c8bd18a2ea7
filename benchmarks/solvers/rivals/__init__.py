"""Rival solvers for optimisation over the Stiefel manifold, by name."""

from benchmarks.solvers.rivals.manpg import manpg
from benchmarks.solvers.rivals.packages import PACKAGES as PACKAGES, Package as Package
from benchmarks.solvers.rivals.pencpg import pencpg
from benchmarks.solvers.rivals.riemannian_gradient import riemannian_gradient
from benchmarks.solvers.rivals.riemannian_subgradient import riemannian_subgradient
from benchmarks.solvers.rivals.slpg import slpg
from benchmarks.solvers.signature import Solver as Solver

RIVALS: dict[str, Solver] = {
    "riemannian-subgradient": riemannian_subgradient(),
    "riemannian-subgradient-geometric": riemannian_subgradient(decay=0.97),
    "manpg": manpg(),
    "manpg-ada": manpg(adaptive=True),
    "slpg": slpg(),
    "pencpg": pencpg(),
    "riemannian-gradient": riemannian_gradient(),
}
