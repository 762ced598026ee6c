from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional


def _unit(before: int, channels: int) -> nn.Sequential:
    conv = nn.Conv2d(before, channels, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU())


class ResNet9Model(nn.Module):
    """The residual network of the DAWNBench entry for CIFAR-10, ``[n, 3, 32, 32]``: 6,573,120 parameters, 25 vectors.

    Ten classes, unlike the survey's other networks for CIFAR. The head has no bias; its output is scaled by 1/8.
    """

    def __init__(self, widths: Sequence[int] = (64, 128, 256, 512), classes: int = 10, channels: int = 3):
        super().__init__()
        a, b, c, d = widths
        self.prepare = _unit(channels, a)
        self.layer1, self.residual1 = _unit(a, b), nn.Sequential(_unit(b, b), _unit(b, b))
        self.layer2 = _unit(b, c)
        self.layer3, self.residual3 = _unit(c, d), nn.Sequential(_unit(d, d), _unit(d, d))
        self.head = nn.Linear(d, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.layer1(self.prepare(x)), 2)
        x = x + self.residual1(x)
        x = functional.max_pool2d(self.layer2(x), 2)
        x = functional.max_pool2d(self.layer3(x), 2)
        x = x + self.residual3(x)
        out: Tensor = self.head(x.amax((2, 3))) * 0.125
        return out
