"""Codes of wires of a bucket whose sizes depend on the data: one of several ways."""

from __future__ import annotations

from typing import TypeAlias

from grace.kernels.index_codes.variable.parts import GapPairs
from grace.kernels.minmax_sketch.parts import MinMaxCode
from grace.kernels.sampling.parts import DrawnCode
from grace.kernels.tagged_fixed_point.parts import TaggedCode
from grace.kernels.ternary.parts import QuarticCode
from grace.kernels.variable_sparse.parts import CountedCode

WireCode: TypeAlias = CountedCode | DrawnCode | GapPairs | MinMaxCode | QuarticCode | TaggedCode
