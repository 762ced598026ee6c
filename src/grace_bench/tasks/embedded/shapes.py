"""Procedural images: one of ten shapes at a random place, size, angle and color, under a stray bar and noise.

Letters: n images, s pixels of a side.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from grace_bench.tasks.embedded.cache import load_or_build
from grace_bench.tasks.embedded.chunks import Array, stream

CHUNK = 250
_TEST = 100_000  # the first chunk of the test set
_SHAPES = 10

# Positive inside the shape; u and v are the shape's own coordinates.
_FIELDS: tuple[Callable[[Array, Array], Array], ...] = (
    lambda u, v: 0.85 - np.hypot(u, v),  # disc
    lambda u, v: 0.22 - np.abs(np.hypot(u, v) - 0.72),  # ring
    lambda u, v: 0.75 - np.maximum(np.abs(u), np.abs(v)),  # square
    lambda u, v: 0.2 - np.abs(np.maximum(np.abs(u), np.abs(v)) - 0.68),  # frame
    lambda u, v: 0.5 - np.maximum(np.maximum(v, 0.866 * u - 0.5 * v), -0.866 * u - 0.5 * v),  # triangle
    lambda u, v: np.maximum(  # cross
        np.minimum(0.95 - np.abs(u), 0.27 - np.abs(v)), np.minimum(0.95 - np.abs(v), 0.27 - np.abs(u))
    ),
    lambda u, v: 0.62 + 0.33 * np.cos(5 * np.arctan2(v, u)) - np.hypot(u, v),  # star
    lambda u, v: np.minimum(0.9 - np.hypot(u, v), np.hypot(u - 0.45, v) - 0.62),  # crescent
    lambda u, v: 0.48 - np.minimum(np.hypot(u - 0.5, v), np.hypot(u + 0.5, v)),  # two discs
    lambda u, v: np.minimum(0.9 - np.hypot(u, v), 0.14 - np.abs((v * 1.6) % 0.8 - 0.4)),  # bars in a disc
)


def _wave(x: Array) -> Array:
    wave: Array = np.sin(2 * math.pi * x)
    return wave


# 0 to 1 over the shape; x and y are the image's coordinates, p a phase.
_TEXTURES: tuple[Callable[[Array, Array, float], Array], ...] = (
    lambda x, y, p: np.ones_like(x),
    lambda x, y, p: 0.5 + 0.5 * np.sign(_wave(4 * y + p)),  # rows
    lambda x, y, p: 0.5 + 0.5 * np.sign(_wave(4 * x + p)),  # columns
    lambda x, y, p: 0.5 + 0.5 * np.sign(_wave(3 * x + p) * _wave(3 * y + p)),  # a chess-board
)


def shapes(
    train: int, test: int, size: int = 32, classes: int = 10, noise: float = 0.06, seed: int = 7
) -> dict[str, Array]:
    """``images`` uint8 ``[n, 3, s, s]`` and ``labels`` int64 ``[n]``, and the same of the test set as ``test_*``.

    Args:
        train: images to train with.
        test: images of the test set.
        size: pixels of a side.
        classes: 10, the shapes; or 20, 30, 40: shape (label mod 10) and texture (label // 10).
        noise: standard deviation of the grain, where white is 1.
        seed: of all of it.
    """

    def build() -> dict[str, Array]:
        first, second = (_part(start, n, size, classes, noise, seed) for start, n in ((0, train), (_TEST, test)))
        return {"images": first[0], "labels": first[1], "test_images": second[0], "test_labels": second[1]}

    return load_or_build(f"shapes{size}", (train, test, size, classes, noise, seed), build)


def _part(start: int, n: int, size: int, classes: int, noise: float, seed: int) -> tuple[Array, Array]:
    chunks = [shape_chunk(start + k, size, classes, noise, seed) for k in range(-(-n // CHUNK))]
    return np.concatenate([images for images, _ in chunks])[:n], np.concatenate([labels for _, labels in chunks])[:n]


def shape_chunk(chunk: int, size: int, classes: int, noise: float, seed: int) -> tuple[Array, Array]:
    """250 images and labels, which depend on the arguments alone."""
    random, n = stream(seed, chunk), CHUNK
    labels = random.randint(0, classes, n)
    shape, texture = labels % _SHAPES, labels // _SHAPES
    place, scale = random.uniform(-0.3, 0.3, (n, 2)), random.uniform(0.45, 0.70, n)
    angle, phase = random.uniform(0, 2 * math.pi, n), random.uniform(0, 1, n)
    ground = random.uniform(0.35, 0.65, (n, 3))
    # A weak hint of color: each shape prefers a sign of contrast in each channel, and has it four times out of five.
    preferred = np.random.RandomState(99).choice([-1.0, 1.0], (_SHAPES, 3))[shape]
    sign = np.where(random.uniform(0, 1, (n, 3)) < 0.8, preferred, -preferred)
    contrast = random.uniform(0.15, 0.45, (n, 3)) * sign
    light = 0.10 * smooth(random, n, size, 4)
    bar_angle, bar_place = random.uniform(0, math.pi, n), random.uniform(-0.7, 0.7, n)
    bar_color = random.uniform(0, 1, (n, 3))
    grain = random.standard_normal((n, 3, size, size)).astype(np.float32)
    grain *= random.uniform(0.5, 1.5, (n, 1, 1, 1)).astype(np.float32) * noise

    centers = (np.arange(size) + 0.5) / size * 2 - 1
    y, x = np.meshgrid(centers, centers, indexing="ij")
    edge = size / 4  # how steeply an edge rises from 0 to 1: within about two pixels
    images = np.empty((n, 3, size, size), np.float32)
    for i in range(n):
        dx, dy = x - place[i, 0], y - place[i, 1]
        cos, sin = math.cos(angle[i]) / scale[i], math.sin(angle[i]) / scale[i]
        inside = _FIELDS[shape[i]](cos * dx + sin * dy, cos * dy - sin * dx)
        mask = np.clip(inside * scale[i] * edge + 0.5, 0, 1)
        if texture[i]:
            mask = mask * (0.05 + 0.95 * _TEXTURES[texture[i]](dx, dy, phase[i]))
        away = np.abs(math.cos(bar_angle[i]) * x + math.sin(bar_angle[i]) * y - bar_place[i])
        bar = 0.8 * np.clip((0.05 - away) * edge + 0.5, 0, 1)
        images[i] = ground[i][:, None, None] + contrast[i][:, None, None] * mask
        images[i] += bar * (bar_color[i][:, None, None] - images[i])
    images += light[:, None] + grain
    return (np.clip(images, 0, 1) * 255 + 0.5).astype(np.uint8), labels.astype(np.int64)


def smooth(random: np.random.RandomState, n: int, size: int, cells: int) -> Array:
    """``n`` smooth fields ``[n, s, s]``, float32: unit normals on a grid of ``cells``, interpolated."""
    grid = random.standard_normal((n, cells + 1, cells + 1)).astype(np.float32)
    at = np.linspace(0, cells, size, endpoint=False)
    low = at.astype(int)
    part = (at - low).astype(np.float32)
    rows = grid[:, low] * (1 - part)[:, None] + grid[:, low + 1] * part[:, None]
    smoothed: Array = rows[:, :, low] * (1 - part) + rows[:, :, low + 1] * part
    return smoothed
