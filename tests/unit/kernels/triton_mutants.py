"""Helpers of Triton kernels with a defect, which the tests of many families put in the place of those of
:mod:`grace.kernels.triton`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def never(marks, bad):  # type: ignore[no-untyped-def]
    """``mark_if`` that leaves no mark."""
    tl.store(marks, 1)


@triton.jit
def memory_left_out(x, e, i, inside, HAS_MEMORY: tl.constexpr, full=False):  # type: ignore[no-untyped-def]
    """``load_sum`` without the memory."""
    return tl.load(x + i, inside, 0.0)


@triton.jit
def words_as_numbers(x, i, inside, full=False):  # type: ignore[no-untyped-def]
    """``load_number`` that takes words of bfloat16 for integers."""
    return tl.load(x + i, inside, 0.0).to(tl.float32)
