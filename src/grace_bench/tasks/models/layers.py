"""Layers with the rules of the original programs, most of which are TensorFlow's."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

_STD_OF_TWO_SIGMA = 0.87962566103423978  # the standard deviation of a unit normal that is cut off at 2 sigma


def same_pad(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pads ``[..., h, w]`` so that ceil(h / stride) outputs come out; the odd pixel goes to the bottom and the right."""
    pads: list[int] = []
    for size in (x.shape[-1], x.shape[-2]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return functional.pad(x, pads, value=value) if any(pads) else x


@torch.no_grad()
def variance_scaling_(
    weight: Tensor, scale: float = 1.0, mode: Literal["fan_in", "fan_out"] = "fan_in", uniform: bool = False
) -> None:
    """Fills a weight ``[out, in, ...]`` at a variance of ``scale / fan``: normal, cut off at 2 sigma, or uniform."""
    receptive = weight[0][0].numel() if weight.dim() > 2 else 1
    fan = receptive * weight.shape[1 if mode == "fan_in" else 0]
    if uniform:
        bound = math.sqrt(3 * scale / fan)
        nn.init.uniform_(weight, -bound, bound)
    else:
        truncated_normal_(weight, math.sqrt(scale / fan) / _STD_OF_TWO_SIGMA)


def truncated_normal_(weight: Tensor, std: float) -> None:
    """Normal numbers, those beyond 2 ``std`` drawn again."""
    nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std)


class SameConv(nn.Conv2d):
    """A square convolution with TensorFlow's SAME padding.

    Args:
        scale: of ``variance_scaling_``. std: instead, the parameter of a truncated normal.
    """

    def __init__(
        self,
        before: int,
        channels: int,
        kernel: int,
        stride: int = 1,
        *,
        bias: bool = False,
        scale: float = 1.0,
        std: float | None = None,
        uniform: bool = False,
    ):
        super().__init__(before, channels, kernel, stride, bias=bias)
        if std is None:
            variance_scaling_(self.weight, scale, uniform=uniform)
        else:
            truncated_normal_(self.weight, std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name for it
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1 and kernel % 2:
            return functional.conv2d(input, self.weight, self.bias, 1, kernel // 2)
        return functional.conv2d(same_pad(input, kernel, stride), self.weight, self.bias, stride)


def symmetric_conv(before: int, channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, padded by half a kernel on both sides, with initial weights as in ``SameConv``."""
    conv = nn.Conv2d(before, channels, kernel, stride, padding=kernel // 2, bias=False)
    variance_scaling_(conv.weight)
    return conv


class BatchNorm(nn.BatchNorm2d):
    """Batch normalization, without its scale if ``scale`` is false.

    Args:
        decay: of the moving averages, TensorFlow's way: torch's momentum is 1 - decay.
    """

    def __init__(self, channels: int, *, scale: bool = True, decay: float = 0.9, eps: float = 1e-5):
        super().__init__(channels, eps=eps, momentum=1 - decay)
        if not scale:
            self.register_parameter("weight", None)


class Dense(nn.Linear):
    """A fully connected layer as tf_cnn_benchmarks starts it: truncated normal, twice the variance before a ReLU."""

    def __init__(self, before: int, channels: int, *, relu: bool = False):
        super().__init__(before, channels)
        truncated_normal_(self.weight, math.sqrt((2.0 if relu else 1.0) / before))
        nn.init.zeros_(self.bias)
        self.relu = relu

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name for it
        x = super().forward(input)
        return functional.relu(x) if self.relu else x
