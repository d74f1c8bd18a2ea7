"""Optimisation with orthonormal weights, as Optax gradient transformations.

A mask says which leaves of a tree of parameters are matrices with orthonormal columns;
the constraint is then dissolved into the objective, after Hu, Xiao, Liu and Toh, and
any optimiser does the rest. `stiefel` is the mathematics of one array, `prox` holds
the regularizers, and what is named here works on whole trees.
"""

from importlib.metadata import version as _version

from . import (
    layers as layers,
    methods as methods,
    prox as prox,
    stiefel as stiefel,
    theory as theory,
)
from ._leaves.describe import describe as describe
from ._leaves.initializer import initializer as initializer
from ._leaves.masks import Mask as Mask, where as where
from ._leaves.reading import Stiefel as Stiefel
from ._minimize.minimize import minimize as minimize
from ._minimize.result import Result as Result
from ._minimize.scipy import scipy_objective as scipy_objective
from ._transforms.add_penalty import add_penalty as add_penalty
from ._transforms.constrain import constrain as constrain
from ._transforms.dissolve_gradients import dissolve_gradients as dissolve_gradients
from ._transforms.keep_feasible import keep_feasible as keep_feasible
from ._transforms.master_copies import master_copies as master_copies
from ._transforms.project_gradients import project_gradients as project_gradients
from ._transforms.proximal_step import proximal_step as proximal_step
from ._transforms.report import report as report
from ._transforms.restore_feasibility import restore_feasibility as restore_feasibility
from ._trees import (
    dissolve as dissolve,
    feasibility as feasibility,
    objective as objective,
    project as project,
    stationarity as stationarity,
)

__version__ = _version("cdopt_jax")
