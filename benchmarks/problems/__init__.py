"""Problems with orthonormal unknowns, each a function from a seed to a `Problem`."""

from collections.abc import Callable

from benchmarks.problems.linear_algebra import pca, procrustes, quadratic_assignment
from benchmarks.problems.networks import copy_task, digits_network
from benchmarks.problems.nonsmooth import (
    dictionary_learning,
    sparse_pca,
    subspace_recovery,
)
from benchmarks.problems.signature import Problem as Problem

PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "pca": pca,
    "procrustes": procrustes,
    "quadratic assignment": quadratic_assignment,
    "sparse pca": sparse_pca,
    "subspace recovery": subspace_recovery,
    "dictionary learning": dictionary_learning,
    "digits network": digits_network,
    "copy task": copy_task,
}
