"""SparseLoCo: top-k within chunks, values of two bits (Sarfi et al., 2025).

Letters: b rows of n numbers, of which K are kept: k of each chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Count, Range, check_knobs
from grace.errors import PayloadError, out_of_range
from grace.flags.refusals import refuse_unless
from grace.kernels import block_sum, index_bits, pack, packed_bytes, select_topk, square_root, unpack
from grace.kernels.index_codes.fixed import check_list
from grace.kernels.places import add_at_
from grace.random import Stream
from grace.registry import register

BITS = 2  # of a code
ENTRIES = 1 << BITS


@register(
    "chunktopk",
    communicator="allgather",
    memory="residual",
    memory_knobs={"beta": 0.95},
    family="hybrid",
    cases=["chunk=1024,k=16", "chunk=8,k=4,beta=1", "chunk=10,k=3,memory=none"],
)
@dataclass(frozen=True, slots=True)
class ChunkTopK(Compressor):
    """Chunked top-k of SparseLoCo: the k largest magnitudes of each chunk, as two bits each and a table of four numbers.

    ``C(x)_i = mean of the kept numbers with the code of x_i if x_i is kept, else 0``, where the code of a kept number v is
    ``min(max(round((v - a) / s + 2), 0), 3)``, a the mean of all kept numbers and s 1.5 times their standard deviation

    Args:
        chunk: numbers of which k are kept, 2 to 65536; the last chunk of a tensor is what is left.
        k: how many are kept, 1 to chunk; of the last chunk no more than it has.
    Wire:
        four means (float32), 2 bits for each number kept, then its place in its chunk, ceil(log2 chunk) bits: 0.219 n bits
        with chunks of 4096 of which 64 are kept. One round.
    Bias:
        biased; delta = 9 / (16 (K - 1)) times the share that is kept, where more than two numbers are; else that share. In
        practice most of what top-k keeps. Where a row keeps one or two numbers they are exact.
    Differs from the paper:
        one or two numbers, whose deviation says nothing, have an entry each: by the formula 1 and -1 would become 0, however
        often. What is averaged are the ranks, not those that have sent an index; no clipping to the median norm. The local
        steps are not part of the method: exchange a difference of parameters. The memory decays by the paper's beta.
    Example:
        >>> method("chunktopk:k=32")
        ErrorFeedback(method=Allgather(compressor=ChunkTopK(chunk=4096, k=32)), beta=0.95, gamma=1.0)

    Reference:
        Sarfi, Thérien, Lidin and Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo", 2025, arXiv
        2508.15706, algorithm 1.
    """

    chunk: Annotated[int, Range(2, 1 << 16)] = 4096
    k: Count = 64

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.k > self.chunk:
            raise out_of_range("chunktopk", "k", self.k, f"1, 2, ..., {self.chunk}, the numbers of a chunk")

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        index = self._select(rows)
        codes, table = _quantize(rows.gather(1, index))
        wire = wires.join(table, pack(codes, BITS), pack(index % self.chunk, index_bits(self.chunk)))
        if keep_rest:
            add_at_(rows, 1, index, -table.gather(1, codes))
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        kept, bits = self._count(out.shape[1]), index_bits(self.chunk)
        codes, places = packed_bytes(kept, BITS), packed_bytes(kept, bits)
        fields = [("table", torch.float32, ENTRIES), ("codes", torch.uint8, codes), ("places", torch.uint8, places)]
        table, packed, listed = wires.split(wire, fields)
        refuse_unless(table.isfinite().all(), lambda: PayloadError("field 'table' must be finite"))
        index = self._place(unpack(listed, bits, kept).long(), out.shape[1])
        add_at_(out, 1, index, table.gather(1, unpack(packed, BITS, kept).long()) * scale)

    def facts(self, n: int) -> Facts:
        kept, most = self._count(n), min(n, self.chunk)
        payload = 4 * ENTRIES + packed_bytes(kept, BITS) + packed_bytes(kept, index_bits(self.chunk))
        # Some number is further from the mean than 3/4 of the deviation: else K <= 9/16 K + 1. Codes separate it.
        share = min(self.k, most) / most
        return Facts(contraction=share * (1.0 if kept <= 2 else 9 / (16 * (kept - 1))), payload=payload)

    def _count(self, n: int) -> int:
        """K of n numbers."""
        return n // self.chunk * self.k + min(self.k, n % self.chunk)

    def _select(self, rows: Tensor) -> Tensor:
        """``[b, n]`` -> ``[b, K]`` int64, ascending: what is kept."""
        b, n = rows.shape
        whole, out = n - n % self.chunk, []
        if whole:
            index = select_topk(rows[:, :whole].reshape(-1, self.chunk), self.k).view(b, -1, self.k)
            out.append((index + self._begins(n, rows.device)).view(b, -1))
        if whole < n:
            out.append(select_topk(rows[:, whole:].contiguous(), min(self.k, n - whole)) + whole)
        return torch.cat(out, dim=1)

    def _place(self, places: Tensor, n: int) -> Tensor:
        """``[b, K]`` int64: places within chunks, of which none occurs twice -> within rows of n numbers.

        Raises:
            PayloadError: places that do not ascend, or are not there.
        """
        b, at = len(places), n // self.chunk * self.k
        index = check_list(places[:, :at].reshape(-1, self.k), self.chunk).view(b, -1, self.k)
        last = check_list(places[:, at:], max(1, n % self.chunk)) + n // self.chunk * self.chunk
        return torch.cat([(index + self._begins(n, places.device)).view(b, -1), last], dim=1)

    def _begins(self, n: int, device: torch.device) -> Tensor:
        """``[c, 1]``: where the c whole chunks of n numbers begin."""
        return torch.arange(n // self.chunk, dtype=torch.int64, device=device)[:, None] * self.chunk


def _quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """Kept numbers ``[b, K]`` -> (codes ``[b, K]`` int64, the mean of each ``[b, 4]`` float32)."""
    b, kept = values.shape
    if kept <= 2:
        codes = torch.arange(kept, dtype=torch.int64, device=values.device).expand(b, kept)
        return codes, torch.nn.functional.pad(values, (0, ENTRIES - kept))
    v = values.double()
    count = torch.full_like(v[:, :1], kept)
    off = v - block_sum(v, kept) / count
    unit = 1.5 * square_root(block_sum(off.square(), kept) / (count - 1))
    steps = torch.where(unit > 0, off / unit, 0.0)
    codes = (steps + 2).round_().clamp_(0, ENTRIES - 1).long()
    means = []
    for code in range(ENTRIES):
        taken = codes == code
        means.append(block_sum(torch.where(taken, v, 0.0), kept) / taken.sum(1, keepdim=True).clamp_min_(1))
    return codes, torch.cat(means, dim=1).float()
