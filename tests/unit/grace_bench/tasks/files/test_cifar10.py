import os
import pickle

import numpy as np
import pytest

from grace.errors import DataError
from grace_bench.tasks.files.cifar10 import read_cifar10

NAMES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]


@pytest.fixture
def data():
    random = np.random.RandomState(0)
    return random.randint(0, 256, (6, 4, 3072)).astype(np.uint8), random.randint(0, 10, (6, 4))


def pickles(folder, data, protocol=2):
    folder.mkdir(parents=True)
    for name, images, labels in zip(NAMES, *data, strict=True):
        content = {
            b"batch_label": name.encode(),
            b"data": images,
            b"labels": labels.tolist(),
            b"filenames": [b"a.png"] * 4,
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol))


def records(folder, data):
    folder.mkdir(parents=True)
    for name, images, labels in zip(NAMES, *data, strict=True):
        np.concatenate([labels[:, None].astype(np.uint8), images], axis=1).tofile(folder / f"{name}.bin")


def check(arrays, data):
    images, labels = data
    assert np.array_equal(arrays["images"], images[:5].reshape(20, 3, 32, 32))
    assert np.array_equal(arrays["labels"], labels[:5].ravel())
    assert np.array_equal(arrays["test_images"], images[5].reshape(4, 3, 32, 32))
    assert np.array_equal(arrays["test_labels"], labels[5])
    assert arrays["labels"].dtype == np.int64


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles(tmp_path, data, protocol):
    pickles(tmp_path / "cifar-10-batches-py", data, protocol)
    check(read_cifar10(tmp_path), data)
    check(read_cifar10(tmp_path / "cifar-10-batches-py"), data)


def test_the_names_that_old_pickles_use(tmp_path, data):
    """As Python 2 wrote the published files: NumPy's module of then."""
    pickles(tmp_path / "cifar-10-batches-py", data)
    for name in NAMES:
        path = tmp_path / "cifar-10-batches-py" / name
        path.write_bytes(path.read_bytes().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    check(read_cifar10(tmp_path), data)


def test_records(tmp_path, data):
    records(tmp_path / "cifar-10-batches-bin", data)
    check(read_cifar10(tmp_path), data)
    check(read_cifar10(tmp_path / "cifar-10-batches-bin"), data)


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match=r"data_batch_1 is not there. Expected .*cs.toronto.edu") as error:
        read_cifar10(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_one_file_missing(tmp_path, data):
    records(tmp_path / "cifar-10-batches-bin", data)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin is not there"):
        read_cifar10(tmp_path)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({b"data": Evil(), b"labels": []}), "posix.mkdir, which is no array|nt.mkdir, which is no array"),
        (pickle.dumps({b"data": 1}), "KeyError"),
        (pickle.dumps({b"data": np.zeros((4, 3071), np.uint8), b"labels": [0] * 4}), r"uint8\[4, 3071\]"),
        (pickle.dumps({b"data": np.zeros((4, 3072)), b"labels": [0] * 4}), r"float64\[4, 3072\]"),
        (pickle.dumps({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0] * 3}), r"\[3\] for 4 images"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}), "labels from 10 to 10"),
        (b"", "EOFError"),
        (b"\x80\x02garbage", "UnpicklingError"),
    ],
)
def test_malformed_pickles(tmp_path, data, content, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickles(tmp_path / "cifar-10-batches-py", data)
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match=rf"data_batch_2 is not as expected: .*({message})"):
        read_cifar10(tmp_path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "0 bytes"), (bytes(3074), "3074 bytes"), (b"\x0b" * 3073, "11")]
)
def test_malformed_records(tmp_path, data, content, message):
    records(tmp_path / "cifar-10-batches-bin", data)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match=rf"test_batch\.bin is not as expected: .*{message}"):
        read_cifar10(tmp_path)
