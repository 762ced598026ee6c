"""DAGM 2007: gray textures, some with a defect."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grace_bench.tasks.embedded.chunks import Array
from grace_bench.tasks.files.finding import Published

DAGM = Published(
    "DAGM2007",
    "Class<k>/Train/0001.PNG and so on, Class<k>/Test likewise, and the masks of defects in Label/0001_label.PNG beside them",
    "https://hci.iwr.uni-heidelberg.de/content/weakly-supervised-learning-industrial-optical-inspection",
)


def read_dagm(root: Path, kind: int, size: int) -> dict[str, Array]:
    """``images`` and ``masks`` of the training set's defective images, ``test_images`` and ``test_masks`` of the whole test
    set: uint8 ``[n, s, s]``.

    Args:
        root: holds the folders ``Class1`` to ``Class10``, itself or in ``private`` or ``raw_images/private``.
        kind: the class, 1 to 10.
        size: pixels of a side; larger images, of a multiple of it, are averaged down.

    Raises:
        DataError: files that are not there, or images that do not fit.
        MissingExtraError: Pillow is not installed.
    """
    folder = DAGM.folder(root, f"Class{kind}", ["private", "raw_images/private"]) / f"Class{kind}"
    images, masks = _read_part(folder / "Train", size, defective_only=True)
    test_images, test_masks = _read_part(folder / "Test", size, defective_only=False)
    return {"images": images, "masks": masks, "test_images": test_images, "test_masks": test_masks}


def _read_part(folder: Path, size: int, *, defective_only: bool) -> tuple[Array, Array]:
    images, masks = [], []
    if not folder.is_dir():
        raise DAGM.missing(folder)
    for path in sorted(path for path in folder.iterdir() if path.suffix.lower() == ".png"):
        label = folder / "Label" / f"{path.stem}_label{path.suffix}"
        if label.is_file():
            images.append(_read_gray(path, size))
            masks.append(_read_gray(label, size))
        elif not defective_only:
            images.append(_read_gray(path, size))
            masks.append(np.zeros_like(images[-1]))
    if not images:
        raise DAGM.missing(folder / "Label" / "0001_label.PNG" if defective_only else folder / "0001.PNG")
    return np.stack(images), np.stack(masks)


def _read_gray(path: Path, size: int) -> Array:
    """uint8 ``[s, s]``."""
    image: Array = np.asarray(DAGM.picture(path, "L"))
    height, width = image.shape
    if height != width or height % size:
        raise DAGM.malformed(path, f"it has {width} x {height} pixels, which do not average down to {size} x {size}")
    k = height // size
    return image.reshape(size, k, size, k).mean((1, 3)).astype(np.uint8) if k > 1 else image
