"""CIFAR-10 in either of its official forms."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from grace_bench.tasks.embedded.chunks import Array
from grace_bench.tasks.files.finding import Published

CIFAR10 = Published(
    "CIFAR-10",
    "the folder cifar-10-batches-py (data_batch_1 to data_batch_5, test_batch) or cifar-10-batches-bin (the same with .bin)",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
)
_TRAIN = tuple(f"data_batch_{k}" for k in range(1, 6))
_TEST = ("test_batch",)
_PIXELS = 3 * 32 * 32
_CLASSES = 10


def read_cifar10(root: Path) -> dict[str, Array]:
    """``images`` uint8 ``[n, 3, 32, 32]`` and ``labels`` int64 ``[n]``, and the same of the test set as ``test_*``.

    ``root`` holds, or is, one of the two official folders.

    Raises:
        DataError: files that are not there or not of the form.
    """
    for below, end, read in (("cifar-10-batches-py", "", _read_pickle), ("cifar-10-batches-bin", ".bin", _read_binary)):
        for folder in (root, root / below):
            if (folder / f"{_TRAIN[0]}{end}").is_file():
                return _read_parts(folder, end, read)
    raise CIFAR10.missing(root / "cifar-10-batches-py" / _TRAIN[0])


def _read_parts(folder: Path, end: str, read: Callable[[Path], tuple[Array, Array]]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for prefix, names in (("", _TRAIN), ("test_", _TEST)):
        parts = []
        for path in (folder / f"{name}{end}" for name in names):
            if not path.is_file():
                raise CIFAR10.missing(path)
            images, labels = read(path)
            if labels.size and not 0 <= labels.min() <= labels.max() < _CLASSES:
                raise CIFAR10.malformed(path, f"labels from {labels.min()} to {labels.max()} where 0 to 9 are legal")
            parts.append((images, labels))
        arrays[f"{prefix}images"] = np.concatenate([images for images, _ in parts]).reshape(-1, 3, 32, 32)
        arrays[f"{prefix}labels"] = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return arrays


def _read_binary(path: Path) -> tuple[Array, Array]:
    """Records of a label's byte and 3,072 pixels, plane by plane."""
    records = np.fromfile(path, np.uint8)
    if not records.size or records.size % (1 + _PIXELS):
        raise CIFAR10.malformed(path, f"{records.size} bytes are not records of {1 + _PIXELS}")
    records = records.reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def _read_pickle(path: Path) -> tuple[Array, Array]:
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
        images, labels = np.asarray(content[b"data"]), np.asarray(content[b"labels"])
    except Exception as error:  # a damaged pickle raises whatever it likes
        raise CIFAR10.malformed(path, f"{type(error).__name__}: {error}") from error
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != _PIXELS:
        raise CIFAR10.malformed(path, f"data are {images.dtype}{list(images.shape)}, not uint8[n, {_PIXELS}]")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise CIFAR10.malformed(path, f"labels are {labels.dtype}{list(labels.shape)} for {len(images)} images")
    return images, labels


class _ArraysOnly(pickle.Unpickler):
    """Reads plain data and NumPy arrays. A pickle can name any function to be called; here it can name five."""

    # NumPy's own modules for the first two have moved, and some versions warn about the old names; so not by import.
    _ALLOWED: ClassVar[dict[str, Any]] = {
        "multiarray._reconstruct": np.empty(1).__reduce__()[0],
        "numeric._frombuffer": np.empty(1).__reduce_ex__(5)[0],
        "numpy.ndarray": np.ndarray,
        "numpy.dtype": np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how protocol 2 writes bytes
            return _latin1
        short = module.removeprefix("numpy._core.").removeprefix("numpy.core.")
        known = self._ALLOWED.get(f"{short}.{name}") if module.startswith("numpy") else None
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no array")
        return known


def _latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")
