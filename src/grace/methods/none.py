"""No compression: the baseline of GRACE (Xu et al., ICDCS 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.kernels import TensorList, add_scaled_, encode_casts_many, sum_casts_many
from grace.kernels.multi_tensor import finite_many
from grace.random import Stream
from grace.registry import register


@register("none", communicator="allreduce", family="baseline", recovers={"whole": ""})
@dataclass(frozen=True, slots=True)
class Identity(Compressor):
    """No compression: the baseline, and the method of small tensors.

    ``C(x) = x``

    Wire:
        32 n bits (the gradient's own dtype under ``allreduce``, exactly what DistributedDataParallel sends), one round.
    Bias:
        unbiased and exact: delta = 1, omega = 0.
    Differs from the paper:
        no paper. Under ``allreduce`` bf16 and fp16 gradients are summed in their own dtype, as torch does.
    Example:
        >>> method("none")
        Allreduce(compressor=Identity())

    Reference:
        The baseline of Xu et al., "GRACE: A Compressed Communication Framework for Distributed Machine Learning",
        ICDCS 2021.
    """

    summable: ClassVar[bool] = True
    transparent: ClassVar[bool] = True
    handles_many: ClassVar[bool] = True
    overflows: ClassVar[bool] = True  # a wire holds numbers as they are, whatever the sender's flag says

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        wire = rows.clone()
        if keep_rest:
            rows.zero_()
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        wires.check_shape("numbers", wire, out.shape)
        add_scaled_(out, wire, scale)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_casts_many(message.view(torch.uint8), many, torch.float32)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        sum_casts_many(rows, many, torch.float32, scale)
        return many.all_set

    def put_many_(self, message: Tensor, many: TensorList, rng: Stream, into: TensorList) -> Tensor:
        sum_casts_many(message[None].view(torch.uint8), into, torch.float32, 1.0)
        return finite_many(into.all_set, into)

    def facts(self, n: int) -> Facts:
        return Facts(unbiased=True, contraction=1.0, variance=0.0, payload=4 * n)
