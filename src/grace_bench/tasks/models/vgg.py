from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from grace_bench.tasks.models.layers import Dense, SameConv


class _Stage(nn.Sequential):
    """Convolutions with bias, each before a ReLU; no norms."""

    def __init__(self, before: int, width: int, count: int, scale: float):
        layers: list[nn.Module] = []
        for k in range(count):
            layers += [SameConv(before if k == 0 else width, width, 3, bias=True, scale=scale), nn.ReLU()]
        super().__init__(*layers)


def _stages(widths: Sequence[int], counts: Sequence[int], channels: int, scale: float) -> nn.ModuleList:
    befores = [channels, *widths]
    return nn.ModuleList(_Stage(b, w, n, scale) for b, w, n in zip(befores, widths, counts, strict=False))


class VGG16Cifar(nn.Module):
    """VGG16 for images ``[n, 3, 32, 32]``: 14,982,987 parameters, 30 vectors. No norms, no dropout.

    Args:
        scale: of the convolutions' initial variance: 1 as the original, 2 lets short runs start.
    """

    def __init__(
        self,
        widths: Sequence[int] = (64, 128, 256, 512, 512),
        counts: Sequence[int] = (2, 2, 3, 3, 3),
        hidden: int = 512,  # one hidden layer, where ImageNet's has two of 4,096
        classes: int = 11,  # the original counts a background class, which no image has
        channels: int = 3,
        scale: float = 1.0,
    ):
        super().__init__()
        self.stages = _stages(widths, counts, channels, scale)
        self.hidden = Dense(widths[-1], hidden, relu=True)
        self.head = Dense(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            last = stage is self.stages[-1]
            x = functional.max_pool2d(stage(x), 1 if last else 2, 2)  # the last one keeps the top left of 2 x 2
        out: Tensor = self.head(self.hidden(x.flatten(1)))
        return out


class VGG19Model(nn.Module):
    """VGG-19 for images ``[n, 3, 224, 224]``: 143,671,337 parameters, 38 vectors. No norms; dropout at both hidden layers.

    Args:
        size: pixels of a side. scale: as in ``VGG16Cifar``.
    """

    def __init__(
        self,
        widths: Sequence[int] = (64, 128, 256, 512, 512),
        counts: Sequence[int] = (2, 2, 4, 4, 4),
        hidden: int = 4096,
        classes: int = 1001,  # class 0 is a background class, which no image has
        channels: int = 3,
        size: int = 224,
        scale: float = 1.0,
        dropout: float = 0.5,
    ):
        super().__init__()
        self.stages = _stages(widths, counts, channels, scale)
        side = size // 2 ** len(widths)
        self.hidden1 = Dense(widths[-1] * side * side, hidden, relu=True)
        self.hidden2 = Dense(hidden, hidden, relu=True)
        self.head = Dense(hidden, classes)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = functional.max_pool2d(stage(x), 2)
        x = functional.dropout(self.hidden1(x.flatten(1)), self.dropout, self.training)
        x = functional.dropout(self.hidden2(x), self.dropout, self.training)
        out: Tensor = self.head(x)
        return out
