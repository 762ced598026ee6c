"""3LC: lightweight and effective traffic compression (Lim, Andersen and Kaminsky, MLSys 2019).

Letters: n numbers; L = ceil(n/5) bytes of five digits each; a digit is 0, 1 or 2, for -1, 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Range
from grace.errors import PayloadError
from grace.flags.refusals import refuse_unless
from grace.kernels import add_scaled_, block_divide, packed_trits_bytes
from grace.methods.common.quartic import lengthen_runs, pack_quartic, shorten_runs, unpack_quartic
from grace.random import Stream
from grace.registry import register


@register("3lc", communicator="allgather", memory="residual", family="hybrid", cases=["", "zre=false", "s=1.7"])
@dataclass(frozen=True, slots=True)
class ThreeLC(Compressor):
    """3LC: three values, -M, 0 and M, five to a byte, and runs of zeros shortened.

    ``C(x)_i = M rint(x_i / M)`` with ``M = s max |x|``; halves round to even, so that M/2 is 0

    Args:
        s: sparsity, in [1, 2); the larger, the more zeros.
        zre: whether runs of zeros are shortened.
    Wire:
        M (float32), then ceil(n/5) bytes: 32 + 1.6 n bits, one round. With ``zre`` a count (uint32) of the bytes
        follows M, and 2 to 14 bytes of zeros become one: 0.11 n bits for zeros only. Then it is data-dependent, so one
        more small round exchanges the sizes of all tensors of a bucket.
    Bias:
        biased; no error exceeds the number itself; delta = s(2-s)/n. Exact for zeros and one magnitude, if s = 1.
    Differs from the paper:
        the last byte is filled with zeros, not with -1, so that it may belong to a run.
    Example:
        >>> method("3lc:s=1.75,communicator=scatterreduce")
        ErrorFeedback(method=ScatterReduce(compressor=ThreeLC(s=1.75, zre=True)), beta=1.0, gamma=1.0)

    Reference:
        Lim, Andersen and Kaminsky, "3LC: Lightweight and Effective Traffic Compression for Distributed Machine
        Learning", MLSys 2019, arXiv 1802.07389.
    """

    s: Annotated[float, Range(1, below=2)] = 1.0
    zre: bool = True

    @property
    def varies(self) -> bool:  # type: ignore[override]
        """Only runs make the size depend on the data."""
        return self.zre

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        top = rows.abs().amax(dim=1, keepdim=True).mul_(self.s).clamp_max_(torch.finfo(torch.float32).max)
        scale, share = block_divide(rows, top, rows.shape[1])  # [b, 1], [b, n]
        bytes_ = pack_quartic(share.round_().add_(1))
        if self.zre:
            encoded = []
            for one, scale_one in zip(bytes_, scale[:, None], strict=True):
                short = shorten_runs(one)
                count = torch.tensor([[short.numel()]], dtype=torch.int32, device=rows.device)
                encoded.append(wires.join(scale_one, count, short[None])[0])
            wire = torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)
        else:
            wire = wires.join(scale, bytes_)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n = out.shape[1]
        L = packed_trits_bytes(n)
        for part, row in zip(wire[:, None], out[:, None], strict=True):
            head = [("scale", torch.float32, 1)]
            if self.zre:
                head.append(("count", torch.int32, 1))
                count = int(wires.split(part, head, slack=True)[1])
                wires.check_index("count", torch.tensor(count), L + 1)
                top, _, short = wires.split(part, [*head, ("digits", torch.uint8, count)], slack=True)
                packed = lengthen_runs(short[0], L)[None]
            else:
                top, packed = wires.split(part, [*head, ("digits", torch.uint8, L)])
                refuse_unless((packed <= 242).all(), lambda: PayloadError("field 'digits' must be in [0, 242]"))
            value = unpack_quartic(packed, n).float().sub_(1).mul_(wires.check_scale("scale", top))
            add_scaled_(row, value, scale)

    def facts(self, n: int) -> Facts:
        payload = None if self.zre else 4 + packed_trits_bytes(n)
        return Facts(contraction=self.s * (2 - self.s) / n, payload=payload)
