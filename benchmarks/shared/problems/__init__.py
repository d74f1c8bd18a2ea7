"""Problems with orthonormal unknowns, each a function from a seed.

`PROBLEMS` are whole parameters in float32, with a loss that may draw a batch. `SUITE`
and `REAL` are for comparing optimisers on one unknown, in float64, with the regularizer
apart; those of `REAL` need files, or a package, that do not come with scikit-learn.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.shared.problems import (
    compressed_modes,
    dictionary,
    generalized,
    linear_algebra,
    networks,
    nonsmooth,
    packing,
    smooth,
    sparse_pca,
    subspace,
)
from benchmarks.shared.problems.signature import Instance as Instance, Problem as Problem

PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "pca": linear_algebra.pca,
    "procrustes": linear_algebra.procrustes,
    "quadratic assignment": linear_algebra.quadratic_assignment,
    "sparse pca": nonsmooth.sparse_pca,
    "subspace recovery": nonsmooth.subspace_recovery,
    "dictionary learning": nonsmooth.dictionary_learning,
    "digits network": networks.digits_network,
    "copy task": networks.copy_task,
}

SUITE: dict[str, Callable[..., Instance]] = {
    "sparse pca": sparse_pca.sparse_pca,
    "sparse pca, 100x1": partial(sparse_pca.sparse_pca, n=100, r=1),
    "sparse pca, 1000x2": partial(sparse_pca.sparse_pca, n=1000, r=2),
    "sparse pca, 1500x10": partial(sparse_pca.sparse_pca, n=1500, r=10),
    "group sparse pca": sparse_pca.group_sparse_pca,
    "subspace l1": subspace.subspace_l1,
    "subspace l2": subspace.subspace_l2,
    "dictionary": dictionary.dictionary,
    "compressed modes": compressed_modes.compressed_modes,
    "packing": packing.packing,
    "joint diagonalisation": smooth.joint_diagonalisation,
    "procrustes": smooth.procrustes,
    "pca": smooth.pca,
    "generalized eigenvalues": generalized.generalized_eigenvalues,
    "generalized eigenvalues, callable": partial(
        generalized.generalized_eigenvalues, metric="callable"
    ),
    "cca digits": generalized.cca_digits,
    "cca digits, callable": partial(generalized.cca_digits, metric="callable"),
    "lda digits": generalized.lda_digits,
    "lda digits, callable": partial(generalized.lda_digits, metric="callable"),
}
"""From a seed, and sizes if others are wanted, to a problem of the suite."""

REAL: dict[str, Callable[[Path, int], Instance]] = {
    "pitprops": sparse_pca.pitprops,
    "golub": sparse_pca.golub,
    "faces": subspace.faces,
    "nutrimouse": lambda _, seed: generalized.nutrimouse(seed),
}
"""From the folder of the files and a seed to a problem of real data."""
