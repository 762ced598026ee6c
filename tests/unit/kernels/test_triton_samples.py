"""Triton kernels that select the largest: whatever a sample says, what is selected is right, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")
tl = pytest.importorskip("triton.language")

from grace.kernels.selection.triton import candidates
from grace.kernels.selection.triton.candidates import Look, Notes, noted, tiles_at
from grace.kernels.triton import magnitude
from tests.unit.kernels.test_selection import agree, inputs
from tests.unit.kernels.test_triton_pairs import exchange
from tests.unit.kernels.triton_checks import CAUGHT, interpreter, night

__all__ = ["interpreter"]

SAMPLE = 64  # numbers of the samples here, so that few numbers are more than a sample
CONSTANTS = {"_GROUP": candidates._GROUP, "_CHUNK": candidates._CHUNK}  # what programs on a GPU have


@pytest.fixture(autouse=True)
def small_samples(interpreter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_SAMPLE", SAMPLE)


def misleading(n: int) -> dict[str, Tensor]:
    """Numbers of which a sample is not like the rest."""
    step, place, g = -(-n // SAMPLE), torch.arange(n), torch.Generator().manual_seed(n)
    sampled = place == place // step * step + ((place // step * 5063 & 8191) * step >> 13)
    sign, some = (place % 3 - 1).sign() + (place % 3 == 1), torch.rand(n, generator=g)
    huge = torch.ones(n)
    huge[n // 2] = 3e38
    given = {
        "what is sampled is large": torch.where(sampled, 9.0, 1.0 + some),
        "what is sampled is small": torch.where(sampled, 1e-3, 1.0 + some),
        "what is sampled is zero": torch.where(sampled, 0.0, some),
        "one is huge": huge,
        "the last are large": place / n,
    }
    return {name: x * sign for name, x in given.items()}


@pytest.mark.parametrize("n", [65, 300, 4097])
def test_samples_that_mislead(n: int) -> None:
    for i, (name, x) in enumerate(misleading(n).items()):
        mode = ("plain", "in place", "copied", "memory")[(i + n) % 4]
        for k in {1, n // 20, n - 1} if n < 4097 else {40 + i}:
            assert agree(x, k, mode, bool(k % 2), "triton", i), (name, k, mode)


def test_programs_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs go on: of 9 tiles, one has noted a few numbers, one some more, and one is read whole."""
    for name, number in CONSTANTS.items():
        monkeypatch.setattr(candidates, name, number)
    x = torch.rand(9 * 4096 - 9, generator=torch.manual_seed(0))
    x[4096:4296] += 2
    x[8192:8992] += 3
    x[-5:] += 1.5
    assert agree(x, 1000, "in place", False, "triton")


def test_buckets_whose_samples_mislead() -> None:
    exchange((300, 65, 4097, 64, 2, 129), 0.07, "memory")


@pytest.mark.parametrize("n", [300, 40_001])
def test_a_sample_finds_not_many_more(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample finds not many more, which no bit of a wire says. The numbers of a short row are its sample."""
    monkeypatch.setattr(candidates, "_SAMPLE", 8192)
    g, k = torch.Generator().manual_seed(n), n // 100
    x, memory = torch.randn(1, n, generator=g), 3 * torch.randn(1, n, generator=g)
    look = Look.at(x)
    notes = Notes.of_largest(look, x, memory, True, None, k)
    candidates.add_memory(x, memory, torch.empty_like(x), notes)
    noted = int(notes.counts.sum())
    assert noted in (range(k, 2 * k) if n > 8192 else (k, k + 1))
    assert notes.state is not None
    assert notes.state[0, :4].tolist() == [int(notes.state[0, 0]), k - noted, 0, k]


@night
@pytest.mark.parametrize("n", [*range(1, 8), *range(60, 70), 127, 128, 129, 191, 193, 300, 4095, 4096, 4097, 8193])
def test_every_input(n: int) -> None:
    for i, (name, x) in enumerate({**misleading(n), **inputs(n)}.items()):
        for k in {1, n // 20 or 1, max(1, n - 1), n}:
            mode = ("plain", "in place", "copied", "memory")[(i + k) % 4]
            assert agree(x, k, mode, bool(k % 2), "triton", i), (name, k, mode)


# ---- mutants --------------------------------------------------------------------------------------------------------
@triton.jit
def _never_whole(  # type: ignore[no-untyped-def]
    table, programs, x, n, tiles, spans, counts, entire, HELD, MANY, EVEN, GROUP, CHUNK, ROOM, TILE
):
    none = entire & (entire == 0)
    return tiles_at(table, programs, x, n, tiles, spans, counts, none, HELD, MANY, EVEN, GROUP, CHUNK, ROOM, TILE)


@triton.jit
def _sign_counts(p, CLAMP: tl.constexpr):  # type: ignore[no-untyped-def]
    return magnitude(tl.maximum(p, 0.0))


@triton.jit
def _first_turn(turn, tile, this, there, count, x, n, slabs, CHUNK, ROOM, TILE):  # type: ignore[no-untyped-def]
    return noted(0 * turn, tile, this, there, count, x, n, slabs, CHUNK, ROOM, TILE)


@triton.jit
def _first_row(programs, MANY):  # type: ignore[no-untyped-def]
    return tl.program_id(0).to(tl.int64) * 0


# what is replaced, by what, and a test above that fails then
MUTANTS: list[tuple[str, Any, Any]] = [
    ("triton.tiles_at", _never_whole, lambda: test_samples_that_mislead(300)),
    ("triton.key_of_number", _sign_counts, lambda: test_samples_that_mislead(300)),
    ("triton.candidates.key_of_number", _sign_counts, None),
    ("triton.noted", _first_turn, lambda: test_samples_that_mislead(4097)),
    ("triton.row_of", _first_row, test_buckets_whose_samples_mislead),
]


@pytest.mark.parametrize(("name", "mutant", "test"), MUTANTS)
def test_mutants_are_caught(name: str, mutant: Any, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"grace.kernels.selection.{name}", mutant)
    with pytest.raises(CAUGHT):
        test() if test else test_a_sample_finds_not_many_more(40_001, monkeypatch)
