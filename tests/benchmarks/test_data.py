"""Data sets from their published files: small ones of the same form, and bad ones."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.shared import data
from benchmarks.shared.data import DataError, cifar, fashion_mnist

TRAIN, TEST = 200, 100
CLASSES = {"cifar10": 10, "cifar100": 100}
each_name = pytest.mark.parametrize("name", CLASSES)


def images(count, classes, seed):
    """Pixels in planes, as they are stored, and as many labels of each class."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % classes)
    return rng.integers(0, 256, (count, cifar.PIXELS), np.uint8), labels


def _string(content):
    return b"T" + struct.pack("<i", len(content)) + content


def _short(number):
    return b"M" + struct.pack("<H", number)


def as_pickle(name, pixels, labels):
    """The bytes as the authors wrote them, by Python 2: opcode by opcode."""
    key = b"labels" if name == "cifar10" else b"fine_labels"
    kind = b"cnumpy\ndtype\n" + _string(b"u1") + b"K\x00K\x01\x87R(K\x03"
    kind += _string(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
    array += _string(b"b") + b"\x87R(K\x01" + _short(len(pixels))
    array += _short(cifar.PIXELS) + b"\x86" + kind + b"\x89"
    array += _string(pixels.tobytes()) + b"tb"
    classes = b"](" + b"".join(_short(int(v)) for v in labels) + b"e"
    entries = _string(b"data") + array + _string(key) + classes
    return b"\x80\x02}(" + entries + b"u."


def as_rows(name, pixels, labels):
    """The bytes of the binary version; in CIFAR-100, after the label of a group."""
    columns = [labels[:, None].astype(np.uint8), pixels]
    if name == "cifar100":
        columns.insert(0, np.full((len(labels), 1), 7, np.uint8))
    return np.concatenate(columns, axis=1).tobytes()


@pytest.fixture
def published(monkeypatch):
    """Data sets of a few images, put into a folder as if they were the real ones."""
    monkeypatch.setattr(cifar, "COUNTS", (TRAIN, TEST))

    def put(folder, name, form, *, packed=False):
        version = cifar.VERSIONS[name][0 if form is as_pickle else 1]
        train, test = (images(c, CLASSES[name], c) for c in (TRAIN, TEST))
        parts = zip(
            *(np.array_split(a, len(version.train)) for a in train), strict=True
        )
        files = {
            file: form(name, *part)
            for file, part in zip(version.train, parts, strict=True)
        } | {version.test: form(name, *test)}
        digests = {f: hashlib.md5(c).hexdigest() for f, c in files.items()}
        version = version._replace(digests=version.digests and digests)
        if packed:
            file = folder / version.archive
            with tarfile.open(file, "w:gz") as archive:
                for inside, content in files.items():
                    member = tarfile.TarInfo(f"{version.folder}/{inside}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
            md5 = hashlib.md5(file.read_bytes()).hexdigest()
            version = version._replace(md5=md5)
        else:
            (folder / version.folder).mkdir()
            for file, content in files.items():
                (folder / version.folder / file).write_bytes(content)
        monkeypatch.setitem(cifar.VERSIONS, name, (version, version))
        return train, test

    return put


@each_name
@pytest.mark.parametrize("form", [as_pickle, as_rows])
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_images_and_labels_are_those_that_were_stored(
    name, form, packed, published, tmp_path
):
    stored = published(tmp_path, name, form, packed=packed)
    x, y, test_x, test_y = cifar.load(name, tmp_path)
    for found, labels, (pixels, right) in zip(
        (x, test_x), (y, test_y), stored, strict=True
    ):
        assert (labels == right).all()
        assert found.shape == (len(right), 32, 32, 3)
        # The red plane comes first, row by row.
        assert (found[..., 0].reshape(len(right), -1) == pixels[:, :1024]).all()
        assert (found[:, 0, 1, 2] == pixels[:, 2048 + 1]).all()


@each_name
def test_what_is_missing_is_named_with_its_source(name, tmp_path):
    with pytest.raises(DataError, match=r"cs.toronto.edu.*python.tar.gz.*binary"):
        cifar.load(name, tmp_path)


@pytest.mark.parametrize("form", [as_pickle, as_rows])
def test_a_damaged_archive_is_refused(form, published, tmp_path):
    published(tmp_path, "cifar10", form, packed=True)
    (file,) = tmp_path.glob("*.tar.gz")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged.*md5.*download it again"):
        cifar.load("cifar10", tmp_path)


def test_a_damaged_file_is_refused(published, tmp_path):
    published(tmp_path, "cifar10", as_pickle)
    file = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(DataError, match=r"data_batch_3 .*damaged"):
        cifar.load("cifar10", tmp_path)


def test_a_file_that_is_cut_off_is_refused(published, tmp_path):
    published(tmp_path, "cifar100", as_rows)
    file = tmp_path / "cifar-100-binary" / "train.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train.bin .*damaged"):
        cifar.load("cifar100", tmp_path)


def test_a_file_with_images_left_out_is_refused(published, tmp_path):
    published(tmp_path, "cifar100", as_rows)
    file = tmp_path / "cifar-100-binary" / "train.bin"
    file.write_bytes(file.read_bytes()[: -(2 + cifar.PIXELS)])
    with pytest.raises(DataError, match="200 such images and holds 199"):
        cifar.load("cifar100", tmp_path)


def test_a_file_that_is_gone_is_named(published, tmp_path):
    published(tmp_path, "cifar10", as_rows)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"test_batch.bin cannot be read"):
        cifar.load("cifar10", tmp_path)


class Evil:
    """What no one should unpickle."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_nothing_that_a_pickle_asks_for_is_called(published, tmp_path, monkeypatch):
    published(tmp_path, "cifar10", as_pickle)
    touched = tmp_path / "touched"
    content = pickle.dumps({b"data": Evil(touched)}, protocol=2)
    # Even if its checksum were the published one.
    version = cifar.VERSIONS["cifar10"][0]
    assert version.digests
    digests = {**version.digests, "data_batch_1": hashlib.md5(content).hexdigest()}
    version = version._replace(digests=digests)
    monkeypatch.setitem(cifar.VERSIONS, "cifar10", (version, version))
    (tmp_path / version.folder / "data_batch_1").write_bytes(content)
    with pytest.raises(DataError, match="damaged: it names"):
        cifar.load("cifar10", tmp_path)
    assert not touched.exists()


REAL = Path(os.environ.get("CDOPT_JAX_DATA", "data"))


@each_name
def test_the_published_data_are_read(name):
    try:
        split = data.DATASETS[name](REAL)
    except DataError:
        pytest.skip(f"no {name} in {REAL}")
    assert split.train.images.shape == (50_000, 32, 32, 3)
    assert split.test.images.shape == (10_000, 32, 32, 3)
    assert 110 < split.mean.min() < split.mean.max() < 130
    assert 60 < split.deviation.min() < split.deviation.max() < 75


def idx(array):
    """An array in the format of MNIST."""
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def test_fashion_mnist_is_read_from_its_four_files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 10, s) for s in ((6, 28, 28), (6,), (4, 28, 28), (4,))]
    files = dict(zip(fashion_mnist.FILES, map(idx, arrays), strict=True))
    digests = {file: hashlib.md5(c).hexdigest() for file, c in files.items()}
    monkeypatch.setattr(fashion_mnist, "FILES", digests)
    with pytest.raises(DataError, match=r"download train-images.*t10k-labels"):
        fashion_mnist.load(tmp_path)
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    found = fashion_mnist.load(tmp_path)
    for mine, right in zip(found, arrays, strict=True):
        assert (mine.reshape(right.shape) == right).all()
    name = "t10k-labels-idx1-ubyte.gz"
    (tmp_path / name).write_bytes(files[name][:-3])
    with pytest.raises(DataError, match=r"t10k-labels.*damaged"):
        fashion_mnist.load(tmp_path)
    with pytest.raises(DataError, match="damaged"):
        fashion_mnist.read_idx(b"not compressed")


def test_an_epoch_has_every_example_at_most_once_and_others_in_other_batches():
    first, second = (data.batches(3, epoch, 103, 10) for epoch in (1, 2))
    for order in (first, second):
        assert order.shape == (10, 10)
        assert len(np.unique(order)) == 100
    assert (first != second).any()
    assert (data.batches(3, 2, 103, 10) == second).all()
    assert (data.batches(4, 2, 103, 10) != second).any()


def test_augmented_images_are_shifted_by_up_to_four_pixels_or_mirrored():
    x = jnp.asarray(
        np.random.default_rng(0).integers(1, 256, (64, 12, 12, 3), np.uint8)
    )
    found = np.asarray(data.augmented(jax.random.key(0), x))
    framed = np.pad(np.asarray(x), ((0, 0), (4, 4), (4, 4), (0, 0)))
    shifts, mirrored = set(), 0
    for image, whole in zip(found, framed, strict=True):
        places = [
            (i, j, flip)
            for flip in (False, True)
            for i in range(9)
            for j in range(9)
            if (_view(whole, flip)[i : i + 12, j : j + 12] == image).all()
        ]
        assert len(places) == 1
        shifts.add(places[0][:2])
        mirrored += places[0][2]
    assert len(shifts) > 30
    assert 16 < mirrored < 48


def _view(image, flip):
    return image[:, ::-1] if flip else image


def test_normalised_digits_have_no_mean_and_unit_deviation():
    split = data.digits()
    x = split.normalised(split.train.images)
    assert abs(float(x.mean())) < 1e-4
    assert abs(float(x.std()) - 1) < 1e-4
