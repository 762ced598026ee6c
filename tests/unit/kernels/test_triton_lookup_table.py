"""Triton's rounding to tables in Triton's interpreter, for the tensors of a bucket, against the specification, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.kernels import TensorList, decode_entries_many, encode_entries_many, rotate_norms_many, sum_entries_many
from grace.kernels.lookup_table import Chunks
from grace.kernels.triton import load_code
from grace.kernels.triton.bit_streams import load_bits
from grace.methods.common.integer_table import bounds_of, count_sum_bits
from grace.methods.thc import THC
from grace.random import Stream
from grace.random.triton import lanes_at
from tests.unit.kernels import block_codecs as check
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import never

__all__ = ["interpreter"]


def views(sizes: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Tensors ``[1, n]`` side by side, at odd addresses; finite in their type: which bits NaNs have, nothing promises."""
    most = torch.finfo(dtype).max
    flat = torch.cat([torch.zeros(1), *(check.numbers(1, n, seed)[0] for n in sizes)]).clamp(-most, most).to(dtype)[1:]
    return [part[None] for part in flat.split_with_sizes(sizes)]


def bucket(
    method: THC, sizes: tuple[int, ...], world: int, dtype: torch.dtype = torch.float32, keeps: bool = True
) -> list[Tensor]:
    """All that a rank sends, keeps and gets, where all ranks send the same, and which sums are legal."""
    table, block = method.table, method.block
    streams = [Stream(5, "THC", str(n), 1, 2**31 + 9) for n in sizes]
    chunks = Chunks(sizes, world, table, count_sum_bits(table[-1], world))
    many, means = (TensorList(sizes, chunks.codes[:-1], streams, torch.device("cpu")) for _ in range(2))
    rests = views(sizes, 2)
    many.point(views(sizes, 0, dtype), views(sizes, 1) if keeps else None, rests if keeps else None)
    many.lend(rests)
    norms, finite = rotate_norms_many(rests[0], many, block, 0, 7)
    bounds = bounds_of(norms, many.roots(block), method.reach)
    codes = torch.zeros(world, chunks.codes[-1], dtype=torch.uint8)
    encode_entries_many(codes, many, chunks, bounds, block, 7)
    sums = torch.zeros(world, chunks.sums[-1], dtype=torch.uint8)
    for row, chunk in zip(sums, codes, strict=True):
        sum_entries_many(chunk.repeat(world, 1), row, many, chunks)
    out = views(sizes, 3)
    means.point(out)
    legal = decode_entries_many(sums, means, chunks, bounds, block, 7)
    return [norms, finite, codes, sums, legal, *(rests if keeps else []), *out]


CASES = [
    (THC(block=16), (1, 15, 17), 2, torch.float32),
    (THC(block=64, bits=3), (63, 64, 65, 129), 3, torch.bfloat16),
    (THC(block=8, bits=2, uniform=True), (7, 1, 9), 4, torch.float16),
    (THC(block=16), (33, 2), 9, torch.float32),  # sums of nine bits
    (THC(block=1024), (2060,), 2, torch.float32),  # a full tile, and one that ends a chunk and begins the next
]


@pytest.mark.parametrize(("method", "sizes", "world", "dtype"), CASES, ids=repr)
def test_tensors_of_a_bucket(method: THC, sizes: tuple[int, ...], world: int, dtype: torch.dtype) -> None:
    agree(lambda: bucket(method, sizes, world, dtype), (method, sizes, world))


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_sums_that_no_sender_writes(backend: str) -> None:
    chunks = Chunks((5, 6), 2, THC().table, 6)
    streams = [Stream(5, "THC", str(n), None, 0) for n in range(2)]
    many = TensorList((5, 6), chunks.codes[:-1], streams, torch.device("cpu"))
    many.point([torch.empty(1, 5), torch.empty(1, 6)])
    sums = torch.zeros(2, chunks.sums[-1], dtype=torch.uint8)
    sums[1, chunks.sums[1]] = 61  # the largest is 60
    with backends.using(backend), cpu_as_accelerator():
        assert decode_entries_many(sums, many, chunks, torch.ones(2), 1024, 0).tolist() == [True, False]


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("block", [2, 16, 1024, 8192])
def test_buckets_of_many_sizes(block: int, dtype: torch.dtype) -> None:
    for world in (1, 2, 5, 20):
        for sizes in ((1, 300), (15, 16, 17, 31, 33), (1023, 1024, 1025), (8191, 8193)):
            method = THC(block=block, bits=3 + world % 2)  # type: ignore[arg-type]
            agree(lambda m=method, s=sizes, w=world: bucket(m, s, w, dtype, w != 2), (method, sizes, world))  # type: ignore[misc]


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _lanes_of_the_next(key0, key1, step, position):  # type: ignore[no-untyped-def]
    return lanes_at(key0, key1, step, position + 1)


@triton.jit
def _first_code_left_out(at, i, inside, width, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    return load_code(at, i, inside & (i > 0), width, BITS)


@triton.jit
def _sums_of_the_first(at, i, inside, width, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    return load_bits(at, i - i, inside, width, BITS)


MUTANTS: list[tuple[str, Any, Any]] = [
    ("lanes_at", _lanes_of_the_next, lambda: test_tensors_of_a_bucket(*CASES[0])),
    ("load_code", _first_code_left_out, lambda: test_tensors_of_a_bucket(*CASES[0])),
    ("load_bits", _sums_of_the_first, lambda: test_tensors_of_a_bucket(*CASES[0])),
    ("mark_if", never, lambda: test_sums_that_no_sender_writes("triton")),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.lookup_table.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
