"""Procedural textures with a defect, after DAGM 2007: a band-passed texture, and on some images one elliptical defect,
labeled weakly by an ellipse around it.
"""

from __future__ import annotations

import math

import numpy as np

from grace_bench.tasks.embedded.cache import load_or_build
from grace_bench.tasks.embedded.chunks import Array, stream
from grace_bench.tasks.embedded.shapes import smooth

_TEST = 1_000_000  # the number of the first test image
# For each of the ten kinds: the spatial frequency at 128 pixels, and how much it is stretched along its tilt.
_CENTERS = (6, 10, 16, 8, 12, 20, 5, 14, 9, 18)
_STRETCHES = (1.0, 2.5, 1.0, 4.0, 1.5, 1.0, 3.0, 2.0, 1.0, 2.5)


def defects(
    kind: int, size: int, train: int = 79, test: int = 575, test_defective: int = 71, seed: int = 11
) -> dict[str, Array]:
    """``images`` and ``masks``, uint8 ``[n, s, s]``, all defective, and ``test_images``, ``test_masks``, of which the
    first ``test_defective`` are. The default counts are those of DAGM's class 1.

    Args:
        kind: texture and defect, 1 to 10.
        size: pixels of a side.
        train: images to train with.
        test: images of the test set.
        test_defective: those of them that have a defect.
        seed: of all of it.
    """

    def build() -> dict[str, Array]:
        first = [defect_image(i, kind, size, True, seed) for i in range(train)]
        second = [defect_image(_TEST + i, kind, size, i < test_defective, seed) for i in range(test)]
        images, masks = (np.stack([pair[k] for pair in first]) for k in range(2))
        test_images, test_masks = (np.stack([pair[k] for pair in second]) for k in range(2))
        return {"images": images, "masks": masks, "test_images": test_images, "test_masks": test_masks}

    return load_or_build(f"defects{size}", (kind, size, train, test, test_defective, seed), build)


def defect_image(index: int, kind: int, size: int, defective: bool, seed: int) -> tuple[Array, Array]:
    """An image and its mask (0 or 255), uint8 ``[s, s]``, which depend on the arguments alone."""
    random = stream(seed * 100 + kind, index)
    texture = _texture(random, size, kind)
    light = 0.35 * smooth(random, 1, size, 2)[0]
    mask = np.zeros((size, size), bool)
    if defective:
        texture, mask = _spoil(random, texture, size, kind)
    image = texture + light + 0.25 * random.standard_normal((size, size))
    return np.clip(127.5 + 36 * image, 0, 255).astype(np.uint8), mask.astype(np.uint8) * 255


def _texture(random: np.random.RandomState, size: int, kind: int) -> Array:
    """White noise through an anisotropic band-pass: mean 0, standard deviation 1."""
    frequencies = np.fft.fftfreq(size) * size
    fy, fx = np.meshgrid(frequencies, frequencies, indexing="ij")
    center, tilt = _CENTERS[kind - 1] * size / 128, math.pi * (kind - 1) / 10
    along = math.cos(tilt) * fx + math.sin(tilt) * fy
    across = (math.cos(tilt) * fy - math.sin(tilt) * fx) * _STRETCHES[kind - 1]
    r = np.hypot(along, across)
    gain = np.exp(-(((r - center) / (0.45 * center)) ** 2)) + 0.15 * np.exp(-((r / (3 * center)) ** 2))
    gain[0, 0] = 0
    texture: Array = np.fft.ifft2(np.fft.fft2(random.standard_normal((size, size))) * gain).real
    texture /= texture.std()
    return texture


def _spoil(random: np.random.RandomState, texture: Array, size: int, kind: int) -> tuple[Array, Array]:
    """The texture with a defect of the kind's style, and the ellipse around it."""
    other = _texture(random, size, kind % 10 + 1)
    long, ratio = random.uniform(0.09, 0.20) * size, random.uniform(0.3, 0.7)
    cx, cy = random.uniform(0.15, 0.85, 2) * size
    tilt, sign = random.uniform(0, math.pi), random.choice([-1.0, 1.0])
    strength = random.uniform(0.7, 1.3)
    y, x = np.meshgrid(np.arange(size) + 0.5, np.arange(size) + 0.5, indexing="ij")
    u = (math.cos(tilt) * (x - cx) + math.sin(tilt) * (y - cy)) / long
    v = (math.cos(tilt) * (y - cy) - math.sin(tilt) * (x - cx)) / (long * ratio)
    r = np.hypot(u, v)
    inside = np.clip((1 - r) * 3, 0, 1)
    style = (kind - 1) % 4
    if style == 0:  # a diffuse patch, darker or lighter
        texture = texture + sign * strength * 2.4 * inside
    elif style == 1:  # a thin scratch along the long axis
        texture = texture + sign * strength * 3.0 * np.clip(1 - np.abs(v) * 6, 0, 1) * (np.abs(u) < 1)
    elif style == 2:  # a foreign texture
        texture = texture * (1 - inside) + other * inside * 1.2
    else:  # the texture fades away
        texture = texture * (1 - 0.85 * strength * inside / 1.3)
    return texture, r < 1.15
