"""Triton's rotations in Triton's interpreter, against the specification, to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.compute import backends
from grace.contract.compressor import Compressor, Fused
from grace.errors import PayloadError
from grace.kernels import TensorList, hadamard, rotate_blocks, rotate_blocks_back
from grace.kernels.tensor_list.triton import blocks_at, shared_key_of
from grace.methods.drive import DRIVE
from grace.methods.eden import EDEN
from grace.methods.rht import RHT
from grace.random import Stream
from tests.unit.kernels import block_codecs as check
from tests.unit.kernels.test_rotation import CODECS
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter, night
from tests.unit.kernels.triton_mutants import memory_left_out, never

__all__ = ["interpreter"]

RNG = Stream(5, "R", "x", None, 2**31 + 7)


def rotations(n: int, block: int, rows: int = 2) -> None:
    x = check.numbers(rows, n)
    x[0, n // 2] = torch.finfo(torch.float32).max

    def draw() -> list[Tensor]:
        return [hadamard(x, block), rotate_blocks(x, block, RNG), rotate_blocks_back(x, block, RNG)]

    agree(draw, (n, block))


def codes(codec: Fused, n: int, rows: int = 1) -> None:
    x, memory = check.numbers(rows, n), check.numbers(rows, n, 1) / 4
    agree(lambda: check.results(codec, x, memory, shift=n % 4), (codec, n))


@pytest.mark.parametrize(("n", "block"), [(1, 2), (50, 8), (300, 16), (1100, 64), (8200, 8192)])
def test_rotations(n: int, block: int) -> None:
    rotations(n, block)


@pytest.mark.parametrize(("codec", "n"), [
    (EDEN(bits=3, block=16), 130), (DRIVE(scale="mse"), 1100), (DRIVE(block=16, rotation="shared"), 130),
], ids=repr)  # fmt: skip
def test_codes_of_rotated_blocks(codec: Fused, n: int) -> None:
    codes(codec, n)


SIZES = (1, 41, 70)


def bucket(codec: Compressor, dtype: torch.dtype) -> list[Tensor]:
    """Payload of a bucket, finite tensors, legal wires, residuals, and the means of two ranks."""
    streams = [Stream(5, "R", str(n), 1, 9) for n in SIZES]
    widths = [codec.facts(n).payload or 0 for n in SIZES]
    places = [3 + 100 * t for t in range(len(SIZES))]  # at odd addresses
    assert max(widths) < 100
    many, means = (TensorList(SIZES, places, streams, torch.device("cpu")) for _ in range(2))
    xs, memories = ([check.numbers(1, n, seed) for n in SIZES] for seed in (0, 1))
    rests = [torch.empty(1, n) for n in SIZES]
    many.point([x.to(dtype) for x in xs], memories, rests)
    many.lend(rests)
    message = torch.zeros(300, dtype=torch.uint8)
    finite = codec.encode_many_(message, many, streams[0])
    means.point(xs, memories)
    legal = codec.aggregate_many_(torch.stack((message, message)), means, 0.5, streams[0])
    return [message, finite, legal, *rests, *means.xs]


BUCKETS = [
    (EDEN(bits=3, block=16, scale="mse"), torch.float32), (DRIVE(block=8192, rotation="shared"), torch.float16),
    (RHT(block=8, rounds=2), torch.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "dtype"), BUCKETS, ids=repr)
def test_tensors_of_a_bucket(codec: Compressor, dtype: torch.dtype) -> None:
    agree(lambda: bucket(codec, dtype), (codec, dtype))


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_what_is_not_finite_is_noticed(bad: float) -> None:
    x, memory = torch.ones(1, 300), torch.zeros(1, 300)
    memory[0, 299] = bad
    with backends.using("triton"):
        assert EDEN(block=64).encode_(x.clone(), check.RNG, memory, torch.empty_like(x))[1] is False


def test_corrupted_wires_are_refused() -> None:
    wire = EDEN(block=64).encode_(torch.ones(1, 100), check.RNG)[0]
    wire[0, 8 + 3] = 0xFF
    with (
        backends.using("triton"),
        pytest.raises(PayloadError, match="'scales' must be finite and not negative, and small"),
    ):
        EDEN(block=64).aggregate_([wire], torch.empty(1, 100), 1.0, check.RNG)


# ---- more of them, at night -----------------------------------------------------------------------------------------
@night
@pytest.mark.parametrize("block", [2, 8, 16, 128, 1024])
def test_rotations_of_every_size(block: int) -> None:
    for n in (*range(1, 301), 1023, 1025, 4097):
        rotations(n, block)


@night
@pytest.mark.parametrize(("n", "block"), [(4095, 4096), (20_000, 8192), (30_000, 32768), (70_000, 65536)])
def test_rotations_of_long_blocks(n: int, block: int) -> None:
    rotations(n, block, 1)


@night
def test_codes_of_long_blocks() -> None:
    codes(DRIVE(block=8192), 8300)
    codes(DRIVE(block=8192, rotation="shared"), 8300)


@night
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_codes_of_many_sizes(codec: Fused) -> None:
    for n in (*range(1, 301, 7), 1023, 1025, 4097):
        codes(replace(codec, block=(16, 64, 1024)[n % 3]), n)  # type: ignore[type-var]


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _all_plus(key0, key1, step, first, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.zeros((TILE,), tl.uint32)


@triton.jit
def _one_long_piece(r, left, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.full(r.shape, 1 << LOG, tl.int32)


@triton.jit
def _other_way_round(y, size, near, S: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    p, q = tl.split(tl.permute(tl.reshape(y, (TILE // (2 * S), 2, S)), (0, 2, 1)))
    turned = tl.reshape(tl.permute(tl.join(p + q, q - p), (0, 2, 1)), (TILE,))
    return tl.where(size >= 2 * near, turned, y)


@triton.jit
def _as_they_were(ys, LOG: tl.constexpr):  # type: ignore[no-untyped-def]
    return ys


@triton.jit
def _unsigned(y, words, bit):  # type: ignore[no-untyped-def]
    return y


@triton.jit
def _squared(lanes, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.sum(lanes, 1) * tl.sum(lanes, 1)


@triton.jit
def _key_of_the_first(keys, task):  # type: ignore[no-untyped-def]
    return shared_key_of(keys, 0)


@triton.jit
def _first_block(table, programs, heads, x, n, block, MANY: tl.constexpr, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    tile, x, n, nb, head = blocks_at(table, programs, heads, x, n, block, MANY, EVEN)
    return tile, x, n, nb, head - head


@triton.jit
def _code_zero(at, i, inside, width, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.zeros(i.shape, tl.int32), i >= 0


@triton.jit
def _one_key(at):  # type: ignore[no-untyped-def]
    return tl.load(at).to(tl.int32) & 0


@triton.jit
def _no_key(at, word, inside):  # type: ignore[no-untyped-def]
    tl.store(at, word.to(tl.uint8), inside)


@triton.jit
def _not_turned(y, size, key0, key1, step, first, LOG: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    return y


@triton.jit
def _no_scale(at, x, inside):  # type: ignore[no-untyped-def]
    tl.store(at, x.to(tl.uint8), inside)


# what is replaced, by what, and a test above that fails then
MUTANTS: list[tuple[str, Any, Any]] = [
    ("triton.transforms.load_sum", memory_left_out, lambda: codes(DRIVE(block=16), 30)),
    ("triton.transforms.mark_if", never, lambda: test_what_is_not_finite_is_noticed(torch.nan)),
    ("triton.mark_if", never, test_corrupted_wires_are_refused),
    ("triton.transforms.signs_of_tile", _all_plus, lambda: rotations(50, 8)),
    ("triton.transforms.pieces_at", _one_long_piece, lambda: rotations(50, 16)),
    ("triton.transforms.turn_pairs", _other_way_round, lambda: rotations(50, 8)),
    ("triton.transforms._turn_columns", _as_they_were, lambda: rotations(1100, 64)),
    ("triton.transforms._signed", _unsigned, lambda: rotations(1100, 64)),
    ("triton.halves", _squared, lambda: codes(DRIVE(block=16, scale="mse"), 30)),
    ("triton.transforms.shared_key_of", _key_of_the_first, lambda: test_tensors_of_a_bucket(*BUCKETS[2])),
    ("triton.blocks_at", _first_block, lambda: test_tensors_of_a_bucket(*BUCKETS[0])),
    ("triton.store_float", _no_scale, lambda: codes(DRIVE(block=16), 30)),
    ("triton.count_at", _one_key, lambda: codes(DRIVE(block=16), 30)),
    ("triton.store_word", _no_key, lambda: codes(DRIVE(block=16), 30)),
    ("triton.turn_back", _not_turned, lambda: codes(DRIVE(block=16), 30)),
    ("triton.load_code", _code_zero, lambda: codes(DRIVE(block=16), 30)),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.rotation.{name}", mutant)
    with pytest.raises(CAUGHT):
        test()
