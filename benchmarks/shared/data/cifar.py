"""CIFAR-10 and CIFAR-100 from their published archives, python and binary versions.

A folder may hold an archive or what is in it. Every file is checked before it is read:
those of the python versions, which are pickles, against their published checksums, and
then by an unpickler that makes NumPy arrays and nothing else.
"""

import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PIXELS = 32 * 32 * 3
COUNTS = (50_000, 10_000)
SITE = "https://www.cs.toronto.edu/~kriz/"


class DataError(ValueError):
    """The data are missing or not what they should be; the message is one line."""


class Version(NamedTuple):
    """One of the two forms in which a data set is published.

    Attributes:
        archive: The name of the archive.
        md5: Its checksum.
        folder: What it unpacks to.
        train: The files of the training images.
        test: The file of the test images.
        digests: The checksum of each file, or None where none is published.
        read: From the bytes of a file to its pixels and labels.
    """

    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    digests: dict[str, str] | None
    read: Callable[[bytes], tuple[np.ndarray, np.ndarray]]


class _Arrays(pickle.Unpickler):
    """Reads dictionaries, lists, numbers and NumPy arrays; anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.ndarray.__new__
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _from_pickle(labels: str) -> Callable[[bytes], tuple[np.ndarray, np.ndarray]]:
    def read(content: bytes) -> tuple[np.ndarray, np.ndarray]:
        entries = _Arrays(io.BytesIO(content), encoding="bytes").load()
        pixels = np.asarray(entries[b"data"], np.uint8)
        return pixels, np.asarray(entries[labels.encode()], np.int32)

    return read


def _from_bytes(skip: int) -> Callable[[bytes], tuple[np.ndarray, np.ndarray]]:
    """Rows of labels, of which all but the last are skipped, and pixels."""

    def read(content: bytes) -> tuple[np.ndarray, np.ndarray]:
        rows = np.frombuffer(content, np.uint8).reshape(-1, skip + 1 + PIXELS)
        return rows[:, skip + 1 :], rows[:, skip].astype(np.int32)

    return read


VERSIONS = {
    "cifar10": (
        Version(
            archive="cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            folder="cifar-10-batches-py",
            train=tuple(f"data_batch_{i}" for i in range(1, 6)),
            test="test_batch",
            digests={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
            read=_from_pickle("labels"),
        ),
        Version(
            archive="cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            folder="cifar-10-batches-bin",
            train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            test="test_batch.bin",
            digests=None,
            read=_from_bytes(0),
        ),
    ),
    "cifar100": (
        Version(
            archive="cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            folder="cifar-100-python",
            train=("train",),
            test="test",
            digests={
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            },
            read=_from_pickle("fine_labels"),
        ),
        Version(
            archive="cifar-100-binary.tar.gz",
            md5="03b5dce01913d631647c71ecec9e9cb8",
            folder="cifar-100-binary",
            train=("train.bin",),
            test="test.bin",
            digests=None,
            # The first label of each row is that of the class's group.
            read=_from_bytes(1),
        ),
    ),
}


def load(name: str, directory: Path) -> tuple[np.ndarray, ...]:
    """Training images and labels, test images and labels.

    Args:
        name: ``"cifar10"`` or ``"cifar100"``.
        directory: Where an archive, or what it unpacks to, is.

    Returns:
        Images of shape (count, 32, 32, 3) in bytes, and classes in int32.

    Raises:
        DataError: If there is nothing, or something else.
    """
    for version in VERSIONS[name]:
        if (directory / version.folder).is_dir():
            source = _folder(directory / version.folder)
        elif (directory / version.archive).is_file():
            source = _archive(directory / version.archive, version)
        else:
            continue
        train = [_examples(version, file, source(file)) for file in version.train]
        tests = _examples(version, version.test, source(version.test))
        images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
        classes = 10 if name == "cifar10" else 100
        for found, count in zip((labels, tests[1]), COUNTS, strict=True):
            _check_counts(version, found, count, classes)
        return images, labels, *tests
    python, binary = VERSIONS[name]
    raise DataError(
        f"there is no {name} in {directory}: download {SITE}{python.archive} (or "
        f"{binary.archive}) and put it there, packed or unpacked"
    )


def _folder(folder):
    def read(file):
        try:
            return (folder / file).read_bytes()
        except OSError as error:
            raise DataError(f"{folder / file} cannot be read: {error}") from None

    return read


def _archive(path, version):
    if hashlib.md5(path.read_bytes()).hexdigest() != version.md5:
        raise DataError(
            f"{path} is damaged, or not the published archive, whose md5 is "
            f"{version.md5}: download it again"
        )
    with tarfile.open(path) as archive:
        contents = dict(_members(archive))

    def read(file):
        return contents[f"{version.folder}/{file}"]

    return read


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        content = archive.extractfile(member)
        if content is not None:
            yield member.name, content.read()


def _examples(version, file, content):
    if version.digests is not None:
        found, right = hashlib.md5(content).hexdigest(), version.digests[file]
        if found != right:
            raise DataError(
                f"{file} of {version.folder} is damaged, or not the published one: its "
                f"md5 is {found} instead of {right}"
            )
    try:
        pixels, labels = version.read(content)
        # Stored plane by plane: red, green, blue.
        images = pixels.reshape(len(labels), 3, 32, 32).transpose(0, 2, 3, 1)
    except (ValueError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise DataError(f"{file} of {version.folder} is damaged: {error}") from None
    return np.ascontiguousarray(images), labels


def _check_counts(version, labels, count, classes):
    if len(labels) != count:
        raise DataError(
            f"{version.folder} should hold {count} such images and holds {len(labels)}"
        )
    if (np.bincount(labels, minlength=classes) != count // classes).any():
        raise DataError(
            f"{version.folder} should hold {count // classes} images of each of "
            f"{classes} classes, and does not"
        )
