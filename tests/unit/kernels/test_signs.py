"""Codes of one bit for each number: the native kernels against the torch functions that specify them, to the bit."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from grace.compute import backends
from grace.errors import InputError, PayloadError
from grace.kernels import (
    encode_signs,
    encode_two_means,
    encode_votes,
    statistics,
    sum_signs,
    sum_two_means,
    sum_votes,
    take_majority,
    votes_bytes,
)

ISAS = backends.available()[1:]
pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels were not built")
Encode = Callable[[Tensor, int, Tensor | None, Tensor | None], tuple[Tensor, bool]]
Decode = Callable[[list[Tensor], Tensor, int, float, bool], None]

CODECS: dict[str, tuple[Encode, Decode]] = {
    "signs": (
        lambda x, block, memory, rest: encode_signs(x, block, block, memory, rest),
        lambda wires, out, block, weight, add: sum_signs(wires, out, block, weight, add=add),
    ),
    "two means": (
        lambda x, block, memory, rest: encode_two_means(x, 0.125, block, memory, rest),
        lambda wires, out, block, weight, add: sum_two_means(wires, out, block, weight, add=add),
    ),
    **{
        zero: (
            lambda x, block, memory, rest, zero=zero: encode_votes(x, zero, block, memory, rest),  # type: ignore[misc]
            lambda wires, out, block, weight, add, zero=zero: sum_votes(wires, out, zero, weight, add=add),  # type: ignore[misc]
        )
        for zero in ("parity", "plus", "abstain")
    },
}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def numbers(b: int, n: int, offset: int, seed: int) -> Tensor:
    """``[b, n]``, with zeros of both signs, at any alignment."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(b * n + offset, generator=source).mul_(2).exp_() * torch.randn(b * n + offset, generator=source)
    x[torch.rand(b * n + offset, generator=source) < 0.1] = 0.0
    x[torch.rand(b * n + offset, generator=source) < 0.05] = -0.0
    return x[offset:].view(b, n)


def everything(codec: str, x: Tensor, memory: Tensor, block: int, most_wires: int = 18) -> list[Tensor]:
    """Wires, rests and sums of all forms of a codec."""
    encode, decode = CODECS[codec]
    out, wires = [], []
    for with_memory, place in ((False, None), (False, "x"), (True, "new"), (True, None)):
        rows = x.clone()
        rest = None if place is None else rows if place == "x" else torch.empty_like(x)
        wire, finite = encode(rows, block, memory if with_memory else None, rest)
        assert finite
        wires.append(wire)
        out += [wire] if rest is None else [wire, rest]
    wires = (wires * 5)[:most_wires]
    for count in {1, 2, 3, 8, 18} & set(range(most_wires + 1)):
        for add in (False, True):
            total = x.clone() if add else torch.full_like(x, math.nan)
            decode(wires[:count], total, block, 1 / 3, add)
            out.append(total)
        if codec in ("parity", "plus", "abstain"):
            total = torch.full_like(x, math.nan)
            take_majority(wires[:count], total, codec, 1.0)  # type: ignore[arg-type]
            out.append(total)
    return out


def assert_same_bits(got: list[Tensor], want: list[Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("codec", CODECS)
def test_every_size_block_alignment_and_instruction_set(codec: str) -> None:
    for n in [*range(1, 71), 255, 1000]:
        block = (1, 3, 8, 16, 48, 4096, 10**12)[n % 7]
        x, memory = numbers(2, n, n % 5, n), numbers(2, n, (n + 1) % 5, n + 1)
        with backends.using("reference"):
            want = everything(codec, x, memory, block, 18 if n % 10 == 0 else 3)
        for isa in ISAS:
            with backends.using(isa):
                assert_same_bits(everything(codec, x, memory, block, 18 if n % 10 == 0 else 3), want)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("b", "n", "block"),
    [(1, 20_011, 4096), (2, 9_000, 1000), (1, 30_000, 5001), (1, 150_003, 70_001), (2, 66_000, 65_600)],
)
def test_large_rows_and_blocks(codec: str, b: int, n: int, block: int) -> None:
    x, memory = numbers(b, n, 1, 1), numbers(b, n, 0, 2)
    with backends.using("reference"):
        want = everything(codec, x, memory, block, 3)
    for isa in ISAS:
        with backends.using(isa):
            assert_same_bits(everything(codec, x, memory, block, 3), want)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("block", [4096, 10**12])
def test_the_number_of_threads_does_not_show(codec: str, block: int) -> None:
    n = (2 << 20) + 77  # also beyond what goes past the caches
    x, memory = numbers(1, n, 0, 3), numbers(1, n, 0, 4)
    results = []
    for threads in (1, 2, 3, 4):
        torch.set_num_threads(threads)
        results.append(everything(codec, x, memory, block, 2))
    for other in results[1:]:
        assert_same_bits(other, results[0])


@pytest.mark.parametrize("isa", ["reference", *ISAS])
def test_values_by_hand(isa: str) -> None:
    x = torch.tensor([[1.0, -3.0, 0.0, -0.0, 4.0]])
    with backends.using(isa):
        rest = torch.empty_like(x)
        wire, _ = encode_signs(x.clone(), 4, 0, None, rest)
        assert wire[0, :8].view(torch.float32).tolist() == [1, 4]
        assert wire[0, 8:].tolist() == [0b11001]  # the zero at position 3 is positive
        assert rest.tolist() == [[0, -2, 1, -1, 0]]
        assert encode_signs(x, 4, 1)[0][0, 8:].tolist() == [0b10101]
        assert encode_two_means(x, 0.0, 5)[0][0, :8].view(torch.float32).tolist() == [-3, 1.25]
        assert encode_votes(x, "plus", 0)[0].tolist() == [[0b11101]]
        assert encode_votes(x, "abstain", 0)[0].tolist() == [[2 + 0 + 9 + 27 + 2 * 81]]
        out = torch.empty_like(x)
        wires = [encode_votes(v, "plus", 0)[0] for v in (x, -x, torch.full_like(x, -1.0))]
        take_majority(wires, out, "plus", 1.0)
        assert out.tolist() == [[-1, -1, 1, 1, -1]]
        take_majority(wires[:2], out, "plus", 1.0)
        assert out.tolist() == [[0, 0, 1, 1, 0]]
        take_majority(wires, out, "plus", -2.0)
        assert out.tolist() == [[1, 1, -1, -1, 1]]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_noticed(codec: str, bad: float) -> None:
    for isa in ("reference", *ISAS):
        with backends.using(isa):
            for n, block, at in ((5, 8, 4), (70, 16, 0), (5000, 4096, 4999), (70_000, 69_000, 100)):
                for with_memory in (False, True):
                    x, memory = torch.ones(1, n), torch.ones(1, n)
                    (memory if with_memory else x)[0, at] = bad
                    rest = torch.empty_like(x)
                    assert not CODECS[codec][0](x, block, memory if with_memory else None, rest)[1]
    x = torch.full((1, 5000), 3e38)
    assert CODECS[codec][0](x, 4096, None, None)[1], "large is finite"


@pytest.mark.parametrize("isa", ["reference", *ISAS])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_corrupted_wires_are_refused_by_name(isa: str, bad: float) -> None:
    x, out = torch.ones(1, 300), torch.empty(1, 300)
    with backends.using(isa):
        for place, name in ((2, "lo"), (5, "hi")):
            good, wire = encode_two_means(x, 0.0, 100)[0], encode_two_means(x, 0.0, 100)[0]
            wire[0, :24].view(torch.float32)[place] = bad
            with pytest.raises(PayloadError, match=f"'{name}'"):
                sum_two_means([good, wire], out, 100, 1.0)
        wire = encode_signs(x, 100, 0)[0]
        for scale in (bad, -1.0):
            wire[0, :12].view(torch.float32)[1] = scale
            with pytest.raises(PayloadError, match="'scales'"):
                sum_signs([wire], out, 100, 1.0)
        wire = encode_votes(x, "abstain", 0)[0]
        wire[0, 59] = 243
        with pytest.raises(PayloadError, match="'votes'"):
            sum_votes([wire], out, "abstain", 1.0)
        with pytest.raises(PayloadError, match="'votes'"):
            take_majority([wire], out, "abstain", 1.0)
        for width in (votes_bytes(300, "parity") - 1, votes_bytes(300, "parity") + 1):
            with pytest.raises(PayloadError, match="payload"):
                take_majority([torch.zeros(1, width, dtype=torch.uint8)], out, "parity", 1.0)


@pytest.mark.parametrize("isa", ISAS)
def test_other_tensors_are_refused_before_native_code_runs(isa: str) -> None:
    x = torch.ones(2, 64)
    with backends.using(isa):
        for rows in (x.double(), x[:, ::2]):
            with pytest.raises(InputError, match="rows"):
                encode_signs(rows, 8, 0)
        with pytest.raises(InputError, match="memory"):
            encode_two_means(x, 0.0, 8, x[:1], x.clone())
        with pytest.raises(InputError, match="rest"):
            encode_votes(x, "abstain", 0, None, x[:1])
        with pytest.raises(InputError, match="out"):
            take_majority([encode_votes(x, "plus", 0)[0]], x.double(), "plus", 1.0)


@pytest.mark.parametrize("name", ["block_abs_max", "block_abs_mean", "block_norm", "block_sum"])
def test_statistics_of_blocks(name: str) -> None:
    public = getattr(statistics, name)
    specified = getattr(importlib.import_module("grace.kernels.statistics.reference"), name)
    cases = [(2, n, (1, 3, 16, 4096, 10**12)[n % 5]) for n in range(1, 71)]
    for b, n, block in [*cases, (1, 20_011, 4096), (2, 9_000, 5001), (1, 150_003, 70_001), (1, 600_000, 1000)]:
        x = numbers(b, n, n % 3, n).contiguous()
        want = specified(x, block)
        for isa in ISAS:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                with backends.using(isa):
                    assert_same_bits([public(x, block)], [want])
    for odd in (math.nan, math.inf):
        x = torch.tensor([[1.0, odd, -2.0]])
        assert torch.equal(public(x, 2).isnan(), specified(x, 2).isnan())
        assert torch.equal(public(x, 2).isinf(), specified(x, 2).isinf())


def test_statistics_take_any_type_and_layout() -> None:
    x = torch.arange(12.0).view(2, 6)
    assert torch.equal(statistics.block_sum(x.T, 2), x.T.double().sum(1, keepdim=True))
    assert statistics.block_sum(x > 2, 4).tolist() == [[1, 2], [4, 2]]
    assert statistics.block_abs_max(x.double(), 3).tolist() == [[2, 5], [8, 11]]
