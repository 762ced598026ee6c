from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from grace_bench.tasks.models.layers import BatchNorm, Dense, SameConv


class _DenseLayer(nn.Module):
    """Norm, ReLU, convolution, in this order."""

    def __init__(self, before: int, channels: int, kernel: int):
        super().__init__()
        self.norm = BatchNorm(before)
        # The convolution has a bias although a norm follows, and its variance is by the kernel 3 x 3 even at 1 x 1.
        self.conv = SameConv(before, channels, kernel, bias=True, std=math.sqrt(2 / 9 / channels))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(functional.relu(self.norm(x)))
        return out


class DenseNet(nn.Module):
    """DenseNet-40 (k = 12) of tf_cnn_benchmarks, for images ``[n, 3, 32, 32]``: 357,491 parameters, 158 vectors.

    A textbook DenseNet-40 has about 1.02 million parameters.
    """

    def __init__(
        self,
        growth: int = 12,
        layers: Sequence[int] = (12, 12, 12),
        stem: int = 16,
        classes: int = 11,  # the original counts a background class, which no image has
        channels: int = 3,
    ):
        super().__init__()
        self.stem = SameConv(channels, stem, 3, bias=True)
        self.stages, self.transitions = nn.ModuleList(), nn.ModuleList()
        width = stem
        for stage, count in enumerate(layers):
            self.stages.append(nn.ModuleList(_DenseLayer(width + growth * k, growth, 3) for k in range(count)))
            width += growth * count
            if stage + 1 < len(layers):
                # The original's counter of channels knows only the last layer, so a transition narrows to 2k.
                self.transitions.append(_DenseLayer(width, 2 * growth, 1))
                width = 2 * growth
        self.last = BatchNorm(width)
        self.head = Dense(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage, layers in enumerate(self.stages):
            assert isinstance(layers, nn.ModuleList)
            for layer in layers:
                x = torch.cat([x, layer(x)], dim=1)
            if stage < len(self.transitions):
                x = functional.avg_pool2d(functional.relu(self.transitions[stage](x)), 2)
        out: Tensor = self.head(functional.relu(self.last(x)).mean((2, 3)))
        return out
