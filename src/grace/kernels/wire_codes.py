"""Codes of wires of a bucket whose sizes depend on the data: one of several ways."""

from __future__ import annotations

from typing import TypeAlias

from grace.kernels.counted.parts import CountedCode
from grace.kernels.gap_lists.parts import GapPairs
from grace.kernels.minmax.parts import MinMaxCode
from grace.kernels.quartic.parts import QuarticCode
from grace.kernels.sampling.parts import DrawnCode
from grace.kernels.tagged.parts import TaggedCode

WireCode: TypeAlias = CountedCode | DrawnCode | GapPairs | MinMaxCode | QuarticCode | TaggedCode
