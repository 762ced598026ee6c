"""ImageNet's folders of JPEG files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from grace_bench.tasks.embedded.chunks import Array
from grace_bench.tasks.files.finding import Published

IMAGENET = Published(
    "ImageNet",
    "train/<wnid>/*.JPEG such as train/n01440764, and val/<wnid>/* or all of val's files in val with val.txt (lines 'file "
    "label', 0 to 999) beside it",
    "https://image-net.org/download.php (ILSVRC 2012)",
)
_ENDS = (".jpeg", ".jpg", ".png")
_BILINEAR = 2  # Resampling.BILINEAR of Pillow, which is imported where it is used
_TRIES = 100  # to find a crop that lies within the image
_MARGIN = 1.145  # how much larger than the crop an image is made to evaluate: 256 for 224


class ImageFolder:
    """Files and labels of one split; label 0 is the background class, so the first class is 1.

    Args:
        root: holds ``train`` and ``val``.
        split: "train" or "val".
        most: use at most this many classes, the first by name.

    Raises:
        DataError: a folder or file is not there, or ``val.txt`` is malformed.
    """

    def __init__(self, root: Path, split: str, most: int):
        if not (root / "train").is_dir():
            raise IMAGENET.missing(root / "train")
        if not (root / split).is_dir():
            raise IMAGENET.missing(root / split)
        names = sorted(path.name for path in (root / "train").iterdir() if path.is_dir())[:most]
        self.classes = {name: label for label, name in enumerate(names, start=1)}
        self.files: list[tuple[Path, int]] = []
        folders = {path.name for path in (root / split).iterdir() if path.is_dir()}
        for name in sorted(folders & self.classes.keys()):
            paths = sorted(path for path in (root / split / name).iterdir() if path.suffix.lower() in _ENDS)
            self.files += [(path, self.classes[name]) for path in paths]
        if not folders:
            self._read_listing(root / split, root / f"{split}.txt")
        if not self.files:
            raise IMAGENET.missing(root / split / "n01440764" / "*.JPEG")

    def _read_listing(self, folder: Path, listing: Path) -> None:
        if not listing.is_file():
            raise IMAGENET.missing(listing)
        for number, line in enumerate(listing.read_text(errors="replace").splitlines(), start=1):
            name, _, label = line.strip().rpartition(" ")
            if not name or not label.isdigit():
                raise IMAGENET.malformed(listing, f"line {number} is {line[:80]!r}")
            if int(label) < len(self.classes):
                self.files.append((folder / name, int(label) + 1))

    def digest(self) -> str:
        """16 hexadecimal digits of the files' names, sizes and labels."""
        hasher = hashlib.sha256()
        for path, label in self.files:
            hasher.update(f"{path.name} {path.stat().st_size} {label}\n".encode())
        return hasher.hexdigest()[:16]

    def training(self, index: int, random: np.random.RandomState, size: int) -> Array:
        """float32 ``[3, s, s]``, -1 to 1: a random 5 to 100 % of the area at a ratio of 3/4 to 4/3, half the time mirrored."""
        picture = self._open(index)
        box = _draw_crop(picture.width, picture.height, random)
        pixels = np.asarray(picture.resize((size, size), _BILINEAR, box=box), np.float32)
        return _scale(pixels[:, ::-1] if random.randint(2) else pixels)

    def evaluation(self, index: int, size: int) -> Array:
        """float32 ``[3, s, s]``, -1 to 1: the center."""
        picture = self._open(index)
        scale = _MARGIN * max(size / picture.width, size / picture.height)
        picture = picture.resize((int(picture.width * scale), int(picture.height * scale)), _BILINEAR)
        x, y = (picture.width - size) // 2, (picture.height - size) // 2
        return _scale(np.asarray(picture.crop((x, y, x + size, y + size)), np.float32))

    def _open(self, index: int) -> Any:
        """The picture, in RGB."""
        return IMAGENET.picture(self.files[index][0], "RGB")


def _draw_crop(width: int, height: int, random: np.random.RandomState) -> tuple[int, int, int, int]:
    w, h = width, height
    for _ in range(_TRIES):
        area, ratio = random.uniform(0.05, 1) * width * height, random.uniform(3 / 4, 4 / 3)
        tried = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < tried[0] <= width and 0 < tried[1] <= height:
            w, h = tried
            break
    x, y = random.randint(width - w + 1), random.randint(height - h + 1)
    return x, y, x + w, y + h


def _scale(pixels: Array) -> Array:
    scaled: Array = np.ascontiguousarray(pixels.transpose(2, 0, 1)) / np.float32(127.5) - np.float32(1)
    return scaled
