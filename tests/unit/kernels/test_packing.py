"""Packed fields: native code against the specification."""

from __future__ import annotations

import pytest
import torch

from grace.compute import backends
from grace.kernels import packing
from grace.kernels.packing import reference
from tests.unit.kernels.native_checks import TARGETS, needs_native, with_threads


@needs_native
@pytest.mark.parametrize("bits", range(1, 33))
def test_every_width_and_size(bits: int):
    generator = torch.Generator().manual_seed(bits)
    for n in (*range(71), 1003):
        values = torch.randint(0, 1 << bits, (2, n), generator=generator)
        dtypes = [torch.int64, *([torch.uint8] if bits <= 8 else []), *([torch.int32] if bits < 32 else [])]
        want = reference.pack(values, bits)
        wide = torch.cat([want, want], dim=1)[:, want.shape[1] :]  # rows that do not follow each other
        kind = reference.unpack(want, bits, n).dtype
        for choice in TARGETS:
            with backends.using(choice):
                for dtype in (*dtypes, *([torch.bool] if bits == 1 else [])):
                    assert torch.equal(packing.pack(values.to(dtype), bits), want), (choice, n, dtype)
                again = packing.unpack(wide, bits, n)
            assert again.dtype == kind
            assert torch.equal(again.long(), values), (choice, n)


@needs_native
def test_threads_and_numbers_that_are_not_contiguous():
    values = torch.randint(0, 1 << 11, (3, 400_001)).T.contiguous().T
    with with_threads(3):
        packed = packing.pack(values, 11)
        assert torch.equal(packed, reference.pack(values, 11))
        assert torch.equal(packing.unpack(packed, 11, 400_001), values)
