from __future__ import annotations

import pytest
import torch

from grace.compute import backends
from grace.errors import InputError
from grace.kernels import Codebook, encode_codebook, nearest
from grace.methods.u8bit import U8bit, table
from tests.unit.kernels import block_codecs as check


@check.needs_native
@pytest.mark.parametrize("kind", ["tree", "bnb"])
def test_native_agrees_for_every_small_size(kind: str) -> None:
    check.assert_agrees(U8bit(map=kind), range(71), rows=5, shifts=(1,))  # type: ignore[arg-type]
    check.assert_agrees(U8bit(map=kind, block=7), range(0, 71, 3), rows=5)  # type: ignore[arg-type]


@check.needs_native
@pytest.mark.parametrize("block", [1, 3, 16, 64, 333, 1024, 4096, 5001, 20_000])
def test_native_agrees_for_every_block(block: int) -> None:
    check.assert_agrees(U8bit(block=block), (4095, 9001), rows=5, shifts=(3,))


@check.needs_native
@pytest.mark.parametrize("count", [2, 4])
def test_the_number_of_threads_changes_nothing(count: int) -> None:
    check.assert_agrees(U8bit(), (600_011,), rows=1, count=count)


@pytest.mark.parametrize("target", backends.available())
def test_the_search_is_exact_around_every_middle(target: str) -> None:
    for kind in ("tree", "bnb"):
        entries = table(kind)  # type: ignore[arg-type]
        book = Codebook.of(entries)
        middle = book.middle[:-1].view(torch.int32)
        near = torch.cat([(middle + d).view(torch.float32) for d in (-1, 0, 1)])
        x = torch.cat((near, entries, torch.tensor([1.0])))[None]
        with backends.using(target):
            wire, _ = encode_codebook(x, book, x.shape[1])
        assert torch.equal(wire[0, 4:].long(), nearest(x, entries)[0])


def test_books_that_cannot_be_searched_are_refused() -> None:
    good = table("tree")
    for bad in (good.double(), good[1:], good.flip(0), good * 2, torch.arange(128) / 1e4 + 0.9):
        with pytest.raises(InputError, match="codebook"):
            Codebook.of(bad)
    close = good.clone()
    close[100:] = 0.9 + torch.arange(28) * 1e-5
    with pytest.raises(InputError, match="upper 16 bits"):
        Codebook.of(close)


def test_nonfinite_numbers_are_found() -> None:
    check.assert_flags_nonfinite(U8bit(block=100))


def test_corrupted_wires_are_refused() -> None:
    check.assert_refuses(U8bit(block=100), 250, [(12, 128), (261, 128)], "'codes' must not be 128")
    check.assert_refuses(U8bit(block=100), 250, [(3, 0xFF), (11, 0xC0)], "'scales'")
    check.assert_refuses_other_lengths(U8bit())
