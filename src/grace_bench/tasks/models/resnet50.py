from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from grace_bench.tasks.models.layers import BatchNorm, Dense, same_pad, symmetric_conv


class _Bottleneck(nn.Module):
    def __init__(self, before: int, middle: int, stride: int):
        super().__init__()
        out = 4 * middle
        self.shortcut = nn.Sequential()
        if before != out:
            self.shortcut = nn.Sequential(symmetric_conv(before, out, 1, stride), BatchNorm(out))
        # Version 1: the stride is in the first 1 x 1 convolution, not in the 3 x 3.
        self.conv1, self.norm1 = symmetric_conv(before, middle, 1, stride), BatchNorm(middle)
        self.conv2, self.norm2 = symmetric_conv(middle, middle, 3), BatchNorm(middle)
        self.conv3, self.norm3 = symmetric_conv(middle, out, 1), BatchNorm(out)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        inner = functional.relu(self.norm2(self.conv2(inner)))
        return functional.relu(self.shortcut(x) + self.norm3(self.conv3(inner)))


class ResNet50Model(nn.Module):
    """ResNet-50 v1 for images ``[n, 3, 224, 224]``: 25,559,081 parameters, 161 vectors."""

    def __init__(
        self,
        width: int = 64,
        blocks: Sequence[int] = (3, 4, 6, 3),
        classes: int = 1001,  # class 0 is a background class, which no image has
        channels: int = 3,
    ):
        super().__init__()
        self.conv, self.norm = symmetric_conv(channels, width, 7, 2), BatchNorm(width)
        layers, before = [], width
        for stage, count in enumerate(blocks):
            for block in range(count):
                layers.append(_Bottleneck(before, width << stage, 2 if stage and not block else 1))
                before = 4 * (width << stage)
        self.blocks = nn.Sequential(*layers)
        self.head = Dense(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.conv(x)))
        x = functional.max_pool2d(same_pad(x, 3, 2, value=float("-inf")), 3, 2)
        out: Tensor = self.head(self.blocks(x).mean((2, 3)))
        return out
