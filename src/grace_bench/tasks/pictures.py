"""Labeled pictures: arrays in memory, or ImageNet's folders. Letters: n pictures, c channels, s pixels of a side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from grace_bench.tasks.embedded.chunks import Array, digest
from grace_bench.tasks.files.imagenet import ImageFolder
from grace_bench.tasks.suite import tensor

_TEST_BATCH = 250
_FOLDER_BATCH = 50
_DECODERS = 8  # threads at most


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Changes of a training picture, and the normalisation of all pictures.

    Attributes:
        pad: pixels on each side before a random crop. reflect: they mirror the picture, and are not black.
        flip: half of the pictures are mirrored. cutout: side of a random square that becomes 0; 0: none.
        mean, std: of each channel, of 0 to 255: what is subtracted and divided by.
    """

    pad: int = 4
    reflect: bool = False
    flip: bool = True
    cutout: int = 0
    mean: tuple[float, ...] = (127.5, 127.5, 127.5)
    std: tuple[float, ...] = (127.5, 127.5, 127.5)


class Pictures(Protocol):
    """Source of pictures."""

    def training(self, index: Array, random: np.random.RandomState) -> tuple[Tensor, Tensor]:
        """Pictures, float32 ``[n, c, s, s]``, and labels ``[n]``."""

    def testing(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All of the test set, in batches."""


class ArrayPictures:
    """Pictures in memory.

    Args:
        arrays: ``images`` uint8 ``[n, c, h, h]``, ``labels``, and the same of the test set as ``test_*``.
        augmentation: what is done to them.
        size: pixels of a side; pictures of another size are enlarged at last.
        first: what is added to labels: 1 where class 0 is a background class.
    """

    def __init__(self, arrays: dict[str, Array], augmentation: Augmentation, size: int, first: int = 0):
        self.images, self.labels = tensor(arrays["images"]), tensor(arrays["labels"]) + first
        self.test_images, self.test_labels = tensor(arrays["test_images"]), tensor(arrays["test_labels"]) + first
        self.augmentation, self.size = augmentation, size
        channels = self.images.shape[1]
        self.mean = torch.tensor(augmentation.mean[:channels]).view(-1, 1, 1)
        self.std = torch.tensor(augmentation.std[:channels]).view(-1, 1, 1)

    def training(self, index: Array, random: np.random.RandomState) -> tuple[Tensor, Tensor]:
        at = torch.from_numpy(index.astype(np.int64))
        return self._resize(self._augment(self.images[at], random)), self.labels[at]

    def testing(self) -> Iterator[tuple[Tensor, Tensor]]:
        parts = torch.split(self.test_images, _TEST_BATCH), torch.split(self.test_labels, _TEST_BATCH)
        for images, labels in zip(*parts, strict=True):
            yield self._resize((images.float() - self.mean) / self.std), labels

    def _augment(self, images: Tensor, random: np.random.RandomState) -> Tensor:
        how, (n, channels, h, w) = self.augmentation, images.shape
        wide = functional.pad(images.float(), (how.pad,) * 4, mode="reflect" if how.reflect else "constant")
        dy, dx = torch.from_numpy(random.randint(0, 2 * how.pad + 1, (2, n)))
        rows, columns = dy[:, None] + torch.arange(h), dx[:, None] + torch.arange(w)  # [n, h], [n, w]
        if how.flip:
            mirrored = torch.from_numpy(random.randint(0, 2, n).astype(bool))
            columns[mirrored] = columns[mirrored].flip(1)
        pictures, planes = torch.arange(n)[:, None, None, None], torch.arange(channels)[:, None, None]
        x = wide[pictures, planes, rows[:, None, :, None], columns[:, None, None, :]]
        x = (x - self.mean) / self.std
        if side := how.cutout:
            top, left = torch.from_numpy(random.randint(0, [h - side + 1, w - side + 1], (n, 2))).t()[:, :, None]
            y_in = (torch.arange(h) >= top) & (torch.arange(h) < top + side)  # [n, h]
            x_in = (torch.arange(w) >= left) & (torch.arange(w) < left + side)  # [n, w]
            x.masked_fill_((y_in[:, :, None] & x_in[:, None, :])[:, None], 0)
        return x

    def _resize(self, images: Tensor) -> Tensor:
        if images.shape[-1] == self.size:
            return images
        return functional.interpolate(images, size=(self.size, self.size), mode="bilinear", align_corners=False)


class FolderPictures:
    """ImageNet's folders; threads of the worker decode pictures as they are needed.

    Args:
        root: holds ``train`` and ``val``.
        size: pixels of a side.
        most: use at most this many classes, the first by name.
    """

    def __init__(self, root: Path, size: int, most: int):
        self.train, self.val, self.size = ImageFolder(root, "train", most), ImageFolder(root, "val", most), size
        self.pool = ThreadPoolExecutor(min(_DECODERS, os.cpu_count() or 1))

    def digest(self) -> str:
        """16 hexadecimal digits of both splits' files' names, sizes and labels; to read the pixels would take hours."""
        return digest(np.frombuffer(split.digest().encode(), np.uint8) for split in (self.train, self.val))

    def training(self, index: Array, random: np.random.RandomState) -> tuple[Tensor, Tensor]:
        seeds = random.randint(0, 1 << 31, len(index))

        def decode(at: int, seed: int) -> Array:
            return self.train.training(at, np.random.RandomState(seed), self.size)

        images = list(self.pool.map(decode, index.tolist(), seeds.tolist()))
        return torch.from_numpy(np.stack(images)), torch.tensor([self.train.files[at][1] for at in index])

    def testing(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.val.files), _FOLDER_BATCH):
            at = range(start, min(start + _FOLDER_BATCH, len(self.val.files)))
            images = list(self.pool.map(lambda k: self.val.evaluation(k, self.size), at))
            yield torch.from_numpy(np.stack(images)), torch.tensor([self.val.files[k][1] for k in at])
