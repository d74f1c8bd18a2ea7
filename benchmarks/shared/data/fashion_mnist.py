"""Fashion-MNIST from its four published files."""

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np

from benchmarks.shared.data.cifar import DataError

SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


def load(directory: Path) -> tuple[np.ndarray, ...]:
    """Training images and labels, test images and labels.

    Raises:
        DataError: If a file is missing, or not the published one.
    """
    missing = [file for file in FILES if not (directory / file).is_file()]
    if missing:
        raise DataError(
            f"there is no fashion_mnist in {directory}: download {', '.join(missing)} "
            f"from {SITE} and put them there"
        )
    parts = []
    for file, md5 in FILES.items():
        content = (directory / file).read_bytes()
        found = hashlib.md5(content).hexdigest()
        if found != md5:
            raise DataError(
                f"{directory / file} is damaged, or not the published one: its md5 is "
                f"{found} instead of {md5}"
            )
        parts.append(read_idx(content))
    train, train_labels, test, test_labels = parts
    return (
        train[..., None],
        train_labels.astype(np.int32),
        test[..., None],
        test_labels.astype(np.int32),
    )


def read_idx(content: bytes) -> np.ndarray:
    """The array of bytes in a compressed file of the format IDX.

    Raises:
        DataError: If it is not one.
    """
    try:
        raw = gzip.decompress(content)
        axes = raw[3]
        shape = np.frombuffer(raw, ">u4", axes, offset=4).astype(int)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, IndexError, ValueError, zlib.error) as error:
        raise DataError(f"a file of the format IDX is damaged: {error}") from None
