"""Flags of all ranks for the tensors of a bucket, by a Triton kernel in its interpreter, against the specification."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace import wire as wires
from grace.flags.capturing import CapturedStep, pretend_capturing
from grace.kernels.tensor_list import TensorList, agree_many, poison_many, settle_many
from tests.unit.kernels.native_checks import offset
from tests.unit.kernels.triton_checks import CAUGHT, agree, interpreter

__all__ = ["interpreter"]

SIZES = (1, 5, 300, 1025, 7, 2)
MORE = (*range(1, 34), 300, 1023, 1024, 1025, 2049)
CPU = torch.device("cpu")


def told(
    world: int, dtype: torch.dtype, rows: int = 1, clear: bool = False, keeps: bool = False, step: int = (1 << 24) - 1
) -> list[Tensor]:
    """Flags of six tensors: one is not finite on the last rank, one has illegal wires, one is both, one has a header
    that no sender writes, and one is not kept.
    """
    many = TensorList(SIZES, (), (), CPU, rows)
    xs = [torch.arange(rows * n).to(dtype).view(rows, n) for n in SIZES]
    assert many.point(xs)
    words, good = torch.tensor([3, 0, 9, 4, 7, 1]), wires.header_of(True, step)
    messages = torch.full((world, 10), 77, dtype=torch.int32)
    messages[:, words] = good
    messages[-1, words[1]] = messages[0, words[3]] = good + 1
    messages[world // 2, words[4]] = good + 2
    legal = torch.tensor([True, True, False, False, True, True])
    kept = torch.arange(len(SIZES)) < len(SIZES) - 1
    flags, headers = agree_many(
        messages.view(torch.uint8), words, good, legal, many, kept=kept if keeps else None, clear=clear
    )
    return [flags, headers, *xs]


WAYS: list[tuple[Any, ...]] = [
    (1, torch.float32),
    (3, torch.bfloat16, 1, False, True),
    (2, torch.float16),
    (5, torch.float32, 2, True),
    (130, torch.float32, 2),
    (2, torch.float32, 1, False, False, CapturedStep.at(3, torch.tensor([-5], dtype=torch.int32))),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_all_ranks_say(way: tuple[Any, ...]) -> None:
    agree(lambda: told(*way), way)


def test_what_becomes_of_tensors() -> None:
    (fine, known, right), _, *xs = told(2, torch.float32)
    assert fine.tolist() == [True, False, False, False, False, True]
    assert known.tolist() == [True, True, True, True, False, True]
    assert right.tolist() == [True, True, False, True, True, True]
    assert [bool(x.isnan().all()) for x in xs] == [not flag for flag in fine.tolist()]
    cleared = told(2, torch.float32, 1, True)[2:]
    assert [float(x.abs().sum()) for x in cleared[1:5]] == [0.0] * 4
    assert not math.isnan(float(cleared[3].sum()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tensors_that_are_poisoned(dtype: torch.dtype) -> None:
    def draw() -> list[Tensor]:
        many = TensorList(MORE, (), (), CPU)
        assert many.point([offset(torch.arange(n).to(dtype)[None], t % 4) for t, n in enumerate(MORE)])
        poison_many(torch.arange(len(MORE)) % 3 > 0, many)
        return list(many.xs)

    agree(draw, dtype)
    assert [bool(x.isnan().all()) for x in draw()] == [t % 3 == 0 for t in range(len(MORE))]


@pytest.mark.parametrize("drops", [False, True])
def test_memories_that_stay(drops: bool) -> None:
    """Memories stay where a rest is not to be the memory, and with ``drops`` without what is too large for one."""
    most = torch.tensor(torch.finfo(torch.float32).max / 64)
    large = torch.stack((most, most.nextafter(torch.tensor(torch.inf)), -most * 2, *torch.tensor([-0.0, torch.nan])))

    def draw() -> list[Tensor]:
        parts = [[offset(torch.full((1, n), float(k)), (t + k) % 4) for t, n in enumerate(MORE)] for k in range(3)]
        for memory in parts[1]:
            memory[0, -5:] = large[-memory.shape[1] :]
        many = TensorList(MORE, (), (), CPU)
        assert many.point(*parts)
        settle_many(torch.arange(len(MORE)) % 3 > 0, many, drops=drops)
        return parts[2]

    agree(draw, drops)


def test_marks_are_handed_out_once() -> None:
    many, seen = TensorList(SIZES, (), (), CPU), set[int]()
    given = [many.marks(each).clean for each in (1, 2) * 100]
    for marks, each in zip(given, (1, 2) * 100, strict=True):
        assert marks.tolist() == [True] * each * len(SIZES), "nobody has marked these"
        assert marks.data_ptr() % 16 == given[0].data_ptr() % 16
        places = set(range(marks.data_ptr(), marks.data_ptr() + len(marks)))
        assert not places & seen
        seen |= places
        marks.fill_(False)


def test_marks_of_a_captured_step_are_set_in_it() -> None:
    many = TensorList(SIZES, (), (), CPU)
    before = many.marks().clean
    with pretend_capturing():
        marks = many.marks().clean
    assert marks.untyped_storage().data_ptr() != before.untyped_storage().data_ptr()
    assert many.marks().clean.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _left_as_it_is(table, row, tile, like, CLEAR, EVEN, TILE):  # type: ignore[no-untyped-def]
    pass


@triton.jit
def _first_tile(programs):  # type: ignore[no-untyped-def]
    at = programs + 2 * tl.program_id(0).to(tl.int64)
    return tl.load(at).to(tl.int64), tl.load(at + 1).to(tl.int64) * 0


@pytest.mark.parametrize(("name", "mutant"), [("_fill", _left_as_it_is), ("tile_of", _first_tile)])
def test_mutants_are_caught(name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.tensor_list.triton.{name}", mutant)
    with pytest.raises(CAUGHT):
        test_what_all_ranks_say(WAYS[3])
