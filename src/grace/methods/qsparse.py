"""Qsparse-local-SGD: quantization after sparsification (Basu et al., NeurIPS 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import Share, check_knobs
from grace.errors import out_of_range
from grace.kernels import (
    TensorList,
    block_abs_mean,
    encode_positive_many,
    pack,
    packed_bytes,
    select_topk,
    sum_topk_many,
    unpack,
)
from grace.kernels.index_codes.codes import IndexCode, size, varies
from grace.kernels.index_codes.variable import GapPairs, choose_listed_many
from grace.kernels.places import add_at_
from grace.kernels.sparse import Pairs, ScaledCodes, payloads
from grace.kernels.stochastic_levels.codes import code_bits
from grace.kernels.variable_sparse import Chosen
from grace.methods.common.counts import count_kept
from grace.methods.common.selected import encode_selected, take_encoded
from grace.methods.qsgd import QSGD
from grace.random import Stream
from grace.registry import register

_TINY = torch.finfo(torch.float32).tiny


@register(
    "qsparse", communicator="allgather", memory="residual", family="hybrid", cases=["ratio=0.2", "ratio=0.2,quant=3"]
)
@dataclass(frozen=True, slots=True)
class Qsparse(Compressor):
    """Qsparse: only the signs, or a few bits, of the k largest numbers.

    ``SignTop_k(x) = (|v|_1 / k) sgn(v)`` on the support of ``v = Top_k(x)``; ``QTop_k(x) = QSGD_s(v)``, relative to |v|_2

    Args:
        ratio: share of the elements that is kept, in (0, 1]; k = max(1, ceil(ratio n)).
        quant: "sign", or the s of QSGD: levels on each side of zero, 1 to 32767.
        scaled: whether QTop_k is divided by 1 + beta, with beta = min(k/s^2, sqrt(k)/s); a memory sets it.
        index: how indices travel: raw, bitmap, elias-fano, delta, rice, or auto: the smallest of the first three.
    Wire:
        one scale (float32), k signs or codes of ceil(log2(2s+1)) bits (s = 1: 1.6), then k ascending indices: k (1 +
        ceil(log2 n)) + 32 bits with signs and ``index="raw"``. Fixed but for delta and rice. One round.
    Bias:
        biased. Sign: delta = |v|_1^2 / (k |x|_2^2), at least 1/n. QTop_k: its mean over the rounding is Top_k(x); delta
        = (1 - beta) k/n if beta < 1, else none; scaled: delta = k / (n (1 + beta)).
    Differs from the paper:
        the local steps are not part of the operator; exchange a difference of parameters to have them. Selection by
        magnitude only, not at random.
    Example:
        >>> method("qsparse:ratio=0.001,quant=4")
        ErrorFeedback(method=Allgather(compressor=Qsparse(ratio=0.001, quant=4, scaled=True, index='auto')),
                      beta=1.0, gamma=1.0)

    Reference:
        Basu, Data, Karakus and Diggavi, "Qsparse-local-SGD: Distributed SGD with Quantization, Sparsification and Local
        Computations", NeurIPS 2019, arXiv 1906.02367, lemmas 1 to 3.
    """

    handles_many: ClassVar[bool] = True
    ratio: Share = 0.01
    quant: Literal["sign"] | int = "sign"
    scaled: bool = False
    index: IndexCode = "auto"

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.quant != "sign" and not (type(self.quant) is int and 1 <= self.quant < 1 << 15):
            raise out_of_range("qsparse", "quant", self.quant, "'sign', 1, 2, ..., 32767")

    @property
    def varies(self) -> bool:  # type: ignore[override]  # here it depends on a knob
        return varies(self.index)

    def with_memory(self) -> Compressor:
        return self if self.quant == "sign" else replace(self, scaled=True)

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        n = rows.shape[1]
        k = count_kept(self.ratio, n)
        index = select_topk(rows, k)  # [b, k]
        values = rows.gather(1, index)
        if self.quant == "sign":
            mean = block_abs_mean(values, k)  # [b, 1]
            inner = wires.join(torch.where(mean < _TINY, 0.0, mean), pack(values > 0, 1))
        else:
            inner = self._quantizer(k).compress_(values.clone(), rng, False)
        wire = payloads.join([inner], index, n, self.index)
        if keep_rest:
            self.decompress_add_(wire, rows, -1.0, rng)
        return wire

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        n, k = out.shape[1], count_kept(self.ratio, out.shape[1])
        fields = [("codes", torch.uint8, self._codes_bytes(k))]
        inner, index = payloads.split(wire, fields, n, k, self.index, slack=self.varies)
        values = out.new_zeros(out.shape[0], k)
        if self.quant == "sign":
            mean, signs = wires.split(inner, [("scale", torch.float32, 1), ("signs", torch.uint8, packed_bytes(k, 1))])
            values += unpack(signs, 1, k).to(torch.float32).mul_(2).sub_(1) * wires.check_scale("scale", mean)
        else:
            self._quantizer(k).decompress_add_(inner, values, 1.0, rng)
        add_at_(out, 1, index, values * scale)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_selected(message, many, self._pairs(many), partial(self._encode_values, message, rng))

    def _encode_values(self, message: Tensor, rng: Stream, values: TensorList) -> None:
        if self.quant == "sign":
            encode_positive_many(message, values)
        else:
            self._quantizer(max(values.sizes)).encode_many_(message, values, rng)

    @property
    def counted(self) -> GapPairs | None:
        kept = partial(count_kept, self.ratio)
        return GapPairs(self.index, kept, False, self._grid) if self.varies else None

    def choose_many_(self, many: TensorList, rng: Stream, code: GapPairs) -> Chosen:
        lists = code.lists(many.sizes)
        fields = torch.empty(sum(lists.before), dtype=torch.uint8, device=many.device)
        finite, index = take_encoded(many, lists.kept, lists.begins, partial(self._encode_values, fields, rng))
        return choose_listed_many(index, fields, finite, many, lists)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_topk_many(rows, many, self._pairs(many), scale)

    def _pairs(self, many: TensorList) -> Pairs:
        """The pairs in the wires of a bucket's tensors."""

        def make() -> Pairs:
            pairs = payloads.pairs_of(many.sizes, partial(count_kept, self.ratio), self.index, "float32")
            return replace(pairs, grid=self._grid)

        return many.once(self, make)

    @property
    def _grid(self) -> ScaledCodes:
        """The codes of the numbers that are sent."""
        s = self.quant
        if s == "sign":
            return ScaledCodes(bits=1, count=2, step=2, unit=1)
        return ScaledCodes(bits=0 if s == 1 else code_bits(s), count=2 * s + 1, step=1, unit=s)

    def _quantizer(self, k: int) -> QSGD:
        """QSGD with one bucket for all k values."""
        assert self.quant != "sign"
        return QSGD(levels=self.quant, bucket=k, norm="l2", shrink=self.scaled)

    def _codes_bytes(self, k: int) -> int:
        return 4 + packed_bytes(k, 1) if self.quant == "sign" else self._quantizer(k).facts(k).payload or 0

    def facts(self, n: int) -> Facts:
        k = count_kept(self.ratio, n)
        indices = size(n, k, self.index)
        payload = None if indices is None else self._codes_bytes(k) + indices
        if self.quant == "sign":
            return Facts(contraction=1 / n, payload=payload)
        inner = self._quantizer(k).facts(k)
        delta = 1 - inner.variance if inner.variance is not None else inner.contraction or 0.0
        return Facts(contraction=delta * k / n if delta > 0 else None, deterministic=k == 1, payload=payload)
