"""Lossless stages: zlib (RFC 1950) and zstd (RFC 8878) after any compressor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grace import wire as wires
from grace.contract.compressor import Compressor
from grace.contract.facts import Facts
from grace.contract.knobs import as_call, check_knobs
from grace.contract.needs import Needs
from grace.errors import CompositionError, PayloadError
from grace.kernels.index_codes.codes import pad
from grace.methods.common import streams
from grace.random import Stream
from grace.registry import register_wrapper

_HEAD = [("raw", torch.int32, 1), ("coded", torch.int32, 1)]


@register_wrapper("lossless")
@dataclass(frozen=True, slots=True)
class Lossless(Compressor):
    """Any compressor, followed by a lossless stage: it decodes to the same numbers, from a shorter wire.

    ``wire = stage(wire of the compressor)``, or that wire itself where the stage does not make it shorter

    Args:
        compressor: the compressor to wrap.
        stage: "zlib", or "zstd", for which the package zstandard must be installed.
        level: how hard it tries, 1 (fast) to 9 for zlib and 19 for zstd.
    Wire:
        two int32: w, the bytes of the compressor's wire, and the bytes of the stream; then the stream: one byte for the
        stage, 0 for none, and at most w more. Data-dependent. One round, and a small one for the sizes.
    Bias:
        the compressor's.
    Differs from the paper:
        there is none. Stages run on the CPU. They pay on a slow network, after a compressor whose symbols repeat, such as
        2-bit or ternary codes that are mostly zeros.
    Example:
        >>> method("qsgd:levels=1,lossless=zlib")
        Allgather(compressor=Lossless(compressor=QSGD(bits=2, levels=None, bucket=256, norm='linf', shrink=False),
                                      stage='zlib', level=1))
        >>> ErrorFeedback(Allgather(Lossless(QSGD(levels=1, shrink=True)))).facts(torch.empty(1000)).payload is None
        True

    Reference:
        Deutsch, RFC 1950 (zlib); Collet and Kucherawy, RFC 8878 (zstd).
    """

    varies: ClassVar[bool] = True
    compressor: Compressor
    stage: streams.Stage = "zlib"
    level: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.compressor, Compressor):
            raise CompositionError(f"Lossless wraps a Compressor, got {as_call(self.compressor)}")
        check_knobs(self)
        streams.check_stage("Lossless", self.stage, self.level)

    @property
    def randomness(self) -> Literal["shared", "private"]:  # type: ignore[override]  # the compressor's
        return self.compressor.randomness

    @property
    def aggregation(self) -> Literal["mean", "majority"]:  # type: ignore[override]  # the compressor's
        return self.compressor.aggregation

    @property
    def needs(self) -> Needs:
        return self.compressor.needs

    @property
    def id(self) -> str:
        return self.compressor.id

    def with_memory(self) -> Compressor:
        return replace(self, compressor=self.compressor.with_memory())

    def for_second_hop(self) -> Compressor:
        return replace(self, compressor=self.compressor.for_second_hop())

    def compress_(self, rows: Tensor, rng: Stream, keep_rest: bool) -> Tensor:
        wire = self.compressor.compress_(rows, rng, keep_rest)
        out = []
        for row in wires.join(wire).cpu():
            stream = streams.shrink(row.numpy().tobytes(), self.stage, self.level)
            head = torch.tensor([[row.numel(), len(stream)]], dtype=torch.int32, device="cpu")
            out.append(wires.join(head, _tensor(stream)[None])[0])
        return pad(out).to(rows.device)

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        expected = self.compressor.facts(out.shape[1]).payload
        most = 64 * out.shape[1] + 4096 if expected is None else expected
        dtype = self.compressor.compress_(out.new_zeros(1, 1), rng, False).dtype  # the same whatever the numbers are
        for payload, row in zip(wire[:, None], out[:, None], strict=True):  # [1, w], [1, n]
            raw, coded = (int(field) for field in wires.split(payload, _HEAD, slack=True))
            if not 0 <= raw <= most or raw % dtype.itemsize or not 1 <= coded <= raw + 1:
                raise PayloadError(f"fields 'raw' and 'coded' must be of at most {most} bytes, got {raw} and {coded}")
            *_, stream = wires.split(payload, [*_HEAD, ("stream", torch.uint8, coded)], slack=True)
            inner = _tensor(streams.expand(stream[0].cpu().numpy().tobytes(), raw)).to(out.device)
            self.compressor.decompress_add_(inner.view(dtype)[None], row, scale, rng)

    def facts(self, n: int) -> Facts:
        return replace(self.compressor.facts(n), payload=None)


def _tensor(data: bytes) -> Tensor:
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8, device="cpu")
    )
