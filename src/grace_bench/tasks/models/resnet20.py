from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from grace_bench.tasks.models.layers import BatchNorm, Dense, SameConv


class _ShortcutBlock(nn.Module):
    def __init__(self, before: int, channels: int, stride: int, decay: float, eps: float):
        super().__init__()
        self.norm1 = BatchNorm(before, scale=False, decay=decay, eps=eps)
        self.conv1 = SameConv(before, channels, 3, stride)
        self.norm2 = BatchNorm(channels)
        self.conv2 = SameConv(channels, channels, 3)
        self.stride, self.more = stride, channels - before

    def forward(self, x: Tensor) -> Tensor:
        # The shortcut has no parameters ("option A"): it subsamples, and pads the channels on both sides.
        half = self.more // 2
        shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.more - half))
        inner = self.conv1(functional.relu(self.norm1(x)))
        out: Tensor = shortcut + self.conv2(functional.relu(self.norm2(inner)))
        return out


class ResNet20Model(nn.Module):
    """ResNet-20 v2 of tf_cnn_benchmarks, for images ``[n, 3, 32, 32]``: 269,467 parameters, 51 vectors.

    Args:
        decay, eps: of the norms before the blocks and the last one.
    """

    def __init__(
        self,
        widths: Sequence[int] = (16, 32, 64),
        blocks: int = 3,
        classes: int = 11,  # the original counts a background class, which no image has
        channels: int = 3,
        decay: float = 0.999,
        eps: float = 1e-3,
    ):
        super().__init__()
        self.conv = SameConv(channels, widths[0], 3)
        self.norm = BatchNorm(widths[0])
        layers, before = [], widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                # The nine norms before the blocks and the last one have a shift but no scale, and another decay and
                # epsilon: the original calls them with its library's defaults.
                layers.append(_ShortcutBlock(before, width, 2 if stage and not block else 1, decay, eps))
                before = width
        self.blocks = nn.Sequential(*layers)
        self.last = BatchNorm(before, scale=False, decay=decay, eps=eps)
        self.head = Dense(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.relu(self.norm(self.conv(x))))
        out: Tensor = self.head(functional.relu(self.last(x)).mean((2, 3)))
        return out
