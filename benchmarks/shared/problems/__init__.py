"""Problems with orthonormal unknowns, each a function from a seed.

`TRAINING` is for optimisers, at sizes at which thousands of steps are quick, networks
included. `SUITE` and `REAL` are for solvers; those of `REAL` need files, or a package,
that do not come with scikit-learn.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.shared.problems import (
    compressed_modes,
    dictionary,
    generalized,
    networks,
    packing,
    smooth,
    sparse_pca,
    subspace,
)
from benchmarks.shared.problems.signature import Problem as Problem

TRAINING: dict[str, Callable[[int], Problem]] = {
    "pca": partial(smooth.pca, n=200, p=8),
    "procrustes": partial(smooth.procrustes, n=60),
    "quadratic assignment": smooth.quadratic_assignment,
    "sparse pca": partial(sparse_pca.sparse_pca, n=100, mu=0.4),
    "subspace": partial(subspace.subspace_l2, outliers=0.6),
    "dictionary": partial(dictionary.dictionary, n=20, count=2000),
    "digits network": networks.digits_network,
    "copy task": networks.copy_task,
}
"""From a seed to a problem for optimisers."""

SUITE: dict[str, Callable[..., Problem]] = {
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
"""From a seed, and sizes if others are wanted, to a problem for solvers."""

REAL: dict[str, Callable[[Path, int], Problem]] = {
    "pitprops": sparse_pca.pitprops,
    "golub": sparse_pca.golub,
    "faces": subspace.faces,
    "nutrimouse": lambda _, seed: generalized.nutrimouse(seed),
}
"""From the folder of the files and a seed to a problem of real data."""
