"""Centroids of randomly rotated blocks: what DRIVE and EDEN share.

Letters: h the length of a block; y = R x the rotated block; c(z) the centroid that the code z stands for; W workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from grace.contract.compressor import Compressor, Fused
from grace.contract.facts import Facts
from grace.contract.knobs import Rotation
from grace.flags.finite import Flag
from grace.kernels import (
    MOST_AT_ONCE,
    CentroidCode,
    TensorList,
    encode_rotated,
    encode_rotated_many,
    sum_rotated,
    sum_rotated_many,
)
from grace.random import Stream


@dataclass(frozen=True, slots=True)
class RotatedCodes(Fused):
    """The codes of a rotated block, and one scale. Subclasses say how many bits a code has.

    With private rotations a wire begins with the key of its sender's stream, so that whoever decodes it, an owner's second
    hop included, needs to know neither who sent it nor at which hop.
    """

    takes_work: ClassVar[bool] = True
    block: Rotation = 1024
    scale: Literal["unbiased", "mse"] = "unbiased"
    rotation: Literal["private", "shared"] = "private"

    @property
    def randomness(self) -> Literal["shared", "private"]:  # type: ignore[override]  # here it is a knob
        return self.rotation

    @property
    def handles_many(self) -> bool:  # type: ignore[override]  # longer blocks are rotated back in two passes, by one key
        return not self._private or self.block <= MOST_AT_ONCE

    @property
    def code_bits(self) -> int:
        """Number of bits of a code."""
        return 1

    @property
    def _private(self) -> bool:
        return self.rotation == "private"

    @property
    def _code(self) -> CentroidCode:
        return CentroidCode(self.code_bits, self.block, self.scale == "unbiased", self._private)

    def with_memory(self) -> Compressor:
        return replace(self, scale="mse")

    def encode_(
        self, rows: Tensor, rng: Stream, memory: Tensor | None = None, rest: Tensor | None = None
    ) -> tuple[Tensor, Flag]:
        return encode_rotated(rows, self._code, rng.fork(0), memory, rest)

    def sum_(self, received: Sequence[Tensor], out: Tensor, scale: float, rng: Stream, add: bool) -> None:
        sum_rotated(received, out, self._code, scale, rng.fork(0), add=add)

    def encode_many_(self, message: Tensor, many: TensorList, rng: Stream) -> Tensor:
        return encode_rotated_many(message, many, self._code, rng.step)

    def aggregate_many_(self, rows: Tensor, many: TensorList, scale: float, rng: Stream) -> Tensor:
        return sum_rotated_many(rows, many, self._code, scale, rng.step)

    def facts(self, n: int) -> Facts:
        payload = self._code.payload(n)
        # <c, y>^2 >= sum (c_i y_i)^2 >= |c|^2 |y|^2 / h, as c_i and y_i have one sign and grow together
        delta = 1 / min(n, self.block) if self.scale == "mse" else None
        return Facts(contraction=delta, deterministic=False, randomness=self.rotation, payload=payload)
