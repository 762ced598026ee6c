from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from grace_bench.tasks.models.layers import SameConv


def _conv(before: int, channels: int, kernel: int = 3) -> SameConv:
    return SameConv(before, channels, kernel, bias=True, scale=2.0, uniform=True)  # He's uniform


class _Pair(nn.Module):
    """Two convolutions, each before a ReLU."""

    def __init__(self, before: int, first: int, second: int):
        super().__init__()
        self.conv1, self.conv2 = _conv(before, first), _conv(first, second)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.conv2(functional.relu(self.conv1(x))))


class _Up(_Pair):
    """Two convolutions, then twice the size: nearest neighbor and a 2 x 2 convolution that halves the channels."""

    def __init__(self, before: int, first: int, second: int, out: int):
        super().__init__(before, first, second)
        self.up = _conv(second, out, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return functional.relu(self.up(functional.interpolate(x, scale_factor=2, mode="nearest")))


class UNetModel(nn.Module):
    """TinyUNet for gray images ``[n, 1, h, w]``, sides divisible by 16: 1,850,305 parameters, 46 vectors.

    23 convolutions with bias, no norms. Returns logits ``[n, 1, h, w]``.
    """

    def __init__(
        self,
        first: int = 32,
        downs: Sequence[int] = (32, 64, 128),
        bottom: int = 256,
        last: int = 32,
        channels: int = 1,
    ):
        super().__init__()
        widths = [first, *downs]
        befores = [channels, *widths]
        self.down = nn.ModuleList(_Pair(b, w, w) for b, w in zip(befores, widths, strict=False))
        self.ups = nn.ModuleList([_Up(widths[-1], bottom, bottom, bottom // 2)])
        before, skips = bottom // 2, list(widths)
        for width in reversed(downs):
            # A level's second convolution already halves its channels, and the one after the enlargement keeps them.
            self.ups.append(_Up(before + skips.pop(), width, width // 2, width // 2))
            before = width // 2
        self.end = _Pair(before + skips.pop(), last, last)
        self.head = _conv(last, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for pair in self.down:
            x = pair(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        for up in self.ups:
            x = torch.cat([up(x), skips.pop()], dim=1)
        out: Tensor = self.head(self.end(x))
        return out
