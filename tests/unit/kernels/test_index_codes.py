"""Index codecs: the format, the cost, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import ConfigurationError, PayloadError
from grace.kernels.index_codes.codes import (
    CODES,
    choose,
    decode,
    encode,
    index_bits,
    most,
    size,
    take,
    varies,
)
from grace.kernels.index_codes.fixed import elias_fano_split

FIXED = [code for code in CODES if not varies(code)]
SHAPES = [(n, k) for n in (1, 2, 7, 128, 129, 300, 1000, 20001) for k in sorted({0, 1, n // 100, n // 3, n - 1, n})]


def a_list(n: int, k: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(n, generator=generator)[:k].sort().values


def bits(packed: Tensor) -> str:
    """The bit stream, first bit first."""
    return "".join(str(byte >> j & 1) for byte in packed.flatten().tolist() for j in range(8))


# ---- vectors of the specification, by hand ----------------------------------------------------------------------------
def test_raw_packs_each_index_in_ceil_log2_n_bits() -> None:
    assert bits(encode(torch.tensor([[1, 4]]), 8, "raw")) == "100" + "001" + "00"
    assert [index_bits(n) for n in (1, 2, 3, 8, 9, 1 << 20)] == [1, 1, 2, 3, 4, 20]


def test_bitmap_of_1_and_4_in_8_is_0x12() -> None:
    assert encode(torch.tensor([[1, 4]]), 8, "bitmap").tolist() == [[0x12]]


def test_delta_of_3_7_20_is_width_4_and_nibbles_3_3_c() -> None:
    assert encode(torch.tensor([[3, 7, 20]]), 32, "delta").tolist() == [[4, 0x33, 0x0C]]


def test_delta_gives_every_block_of_128_gaps_its_own_width() -> None:
    index = torch.cat([torch.arange(128), 128 + 16 * torch.arange(1, 3)])  # 128 gaps of 0; then gaps of 16 and 15
    packed = encode(index[None], 1000, "delta")
    assert bits(packed) == "00000" + "10100" + "000000" + "00001" + "11110" + "000000"  # widths 0 and 5; 16, 15


def test_rice_of_gap_9_with_parameter_2_is_110_01() -> None:
    r, remainders, unary = encode(torch.tensor([[9, 10]]), 12, "rice")[0].tolist()  # gaps 9 and 0
    assert r == 2
    assert bits(torch.tensor([remainders])) == "10" + "00" + "0000"  # 01 and 00, each low bit first
    assert bits(torch.tensor([unary])) == "110" + "0" + "0000"


def test_the_unary_part_of_elias_fano_has_at_most_three_bits_for_an_index() -> None:
    """So many programs read it, where only its size is known."""
    for n in (1, 2, 7, 300, 4097, 1 << 20, 1 << 31):
        for k in {1, 2, 3, 5, n // 1000, n // 100, n // 7, n // 3, n // 2, n - 1, n}:
            if 1 <= k <= n:
                assert elias_fano_split(n, k)[1] <= 3 * k


def test_elias_fano_splits_low_bits_and_unary_high_bits() -> None:
    # n=32, k=3: l=3 low bits and 3 + (31 >> 3) = 6 others make 15 in all; l=2 or 4 would make 16
    packed = encode(torch.tensor([[3, 7, 20]]), 32, "elias-fano")
    assert bits(packed) == "110" + "111" + "001" + "0000000" + "110010" + "00"  # 3, 7, 4; places 0+0, 0+1, 2+2


# ---- there and back ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_round_trip(code: str, n: int, k: int) -> None:
    lists = torch.stack([a_list(n, k, seed) for seed in range(2)])
    packed = encode(lists, n, code)
    assert packed.dtype == torch.uint8
    assert packed.shape[1] <= most(n, k, code)
    assert torch.equal(decode(packed, n, k, code, slack=True), lists)
    if not varies(code):
        assert packed.shape[1] == size(n, k, code)
        assert torch.equal(decode(packed, n, k, code), lists)
    single = encode(lists[:1], n, code)
    assert torch.equal(decode(single, n, k, code), lists[:1])
    index, used = take(torch.cat([single, torch.full((1, 9), 255, dtype=torch.uint8)], 1), n, k, code)
    assert torch.equal(index, lists[:1])
    assert used == single.shape[1]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("edge", ["first", "last", "both ends", "a run", "far apart"])
def test_extreme_lists(code: str, edge: str) -> None:
    n = 1 << 20 if code == "bitmap" else 1 << 31  # the largest n
    index = {
        "first": torch.arange(200),
        "last": torch.arange(n - 200, n),
        "both ends": torch.cat([torch.arange(100), torch.arange(n - 100, n)]),
        "a run": torch.arange(n // 3, n // 3 + 200),
        "far apart": torch.arange(0, n, n // 200)[:200],
    }[edge]
    packed = encode(index[None], n, code)
    assert torch.equal(decode(packed, n, 200, code)[0], index)
    assert packed.shape[1] <= most(n, 200, code)


@pytest.mark.parametrize("code", CODES)
def test_an_empty_list_and_no_lists_take_no_byte(code: str) -> None:
    assert encode(torch.zeros(2, 0, dtype=torch.int64), 100, code).shape == (2, 0)
    assert decode(torch.zeros(2, 0, dtype=torch.uint8), 100, 0, code).shape == (2, 0)
    assert encode(torch.zeros(0, 3, dtype=torch.int64), 100, code).shape[0] == 0


# ---- cost: table J of the specification --------------------------------------------------------------------------------
COST = {
    0.5: (2.00, 2, 2.00),
    0.25: (3.25, 4, 3.29),
    0.1: (4.69, 10, 4.76),
    0.05: (5.73, 20, 5.79),
    0.01: (8.08, 100, 8.11),
    0.001: (11.41, 1000, 11.49),
}


@pytest.mark.parametrize("p", COST)
def test_cost_table(p: float) -> None:
    n = 200_000
    k = int(p * n)
    bound, bitmap, rice = COST[p]
    entropy = -(p * math.log2(p) + (1 - p) * math.log2(1 - p)) / p
    assert entropy == pytest.approx(bound, abs=0.006)
    cost = {code: 8 * encode(a_list(n, k)[None], n, code).shape[1] / k for code in CODES}
    assert cost["raw"] == pytest.approx(18, abs=0.01)
    assert cost["bitmap"] == pytest.approx(bitmap, abs=0.01)
    assert cost["rice"] == pytest.approx(rice, abs=0.1)
    assert cost["delta"] < bound + 2
    assert cost["elias-fano"] <= 2.01 + math.log2(1 / p)
    assert cost["auto"] == min(cost[code] for code in FIXED)
    assert min(cost.values()) > bound - 0.06


def test_elias_fano_at_one_percent_takes_at_most_8_7_bits() -> None:
    for n in (10_000, 123_457, 25_000_000):
        k = math.ceil(n / 100)
        taken = size(n, k, "elias-fano")
        assert taken is not None
        assert 8 * taken / k <= 8.7


def test_auto_is_the_smallest_of_fixed_size() -> None:
    assert [choose(1 << 20, k) for k in (1, 1000, 300_000, 1 << 20)] == ["raw", "elias-fano", "bitmap", "bitmap"]


# ---- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("wrong", [[3, 3], [4, 3], [-1, 3], [3, 10]])
def test_lists_that_do_not_increase_in_range_are_refused(code: str, wrong: list[int]) -> None:
    with pytest.raises(PayloadError, match="indices"):
        encode(torch.tensor([wrong]), 10, code)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("n", "k"), [(1000, 200), (1000, 3), (5, 5), (20001, 700)])
def test_truncated_and_overlong_payloads_are_refused(code: str, n: int, k: int) -> None:
    packed = encode(a_list(n, k)[None], n, code)
    for cut in {1, packed.shape[1] // 2, packed.shape[1]}:
        with pytest.raises(PayloadError, match="indices"):
            decode(packed[:, :-cut], n, k, code, slack=True)
    with pytest.raises(PayloadError, match="indices"):
        decode(torch.nn.functional.pad(packed, (0, 1)), n, k, code)


@pytest.mark.parametrize("code", CODES)
def test_flipped_bytes_are_refused_or_decode_to_another_legal_list(code: str) -> None:
    n, k = 997, 101
    good = encode(a_list(n, k)[None], n, code)
    generator = torch.Generator().manual_seed(1)
    refused = 0
    for trial in range(200):
        bad = good.clone()
        at = trial % good.shape[1]
        bad[0, at] ^= int(torch.randint(1, 256, (), generator=generator))
        try:
            index = decode(bad, n, k, code, slack=True)[0]
        except PayloadError:
            refused += 1
        else:
            assert index.shape == (k,)
            assert bool((index.diff() > 0).all())
            assert int(index[0]) >= 0
            assert int(index[-1]) < n
    assert refused > 20


@pytest.mark.parametrize("code", CODES)
def test_random_bytes_do_no_harm(code: str) -> None:
    generator = torch.Generator().manual_seed(2)
    for width in range(60):
        noise = torch.randint(0, 256, (1, width), generator=generator, dtype=torch.uint8)
        with pytest.raises(PayloadError):
            decode(noise, 500, 37, code)


def test_raw_refuses_an_index_of_n_and_more() -> None:
    packed = encode(torch.tensor([[1, 7]]), 8, "raw")
    with pytest.raises(PayloadError, match=r"\[0, 6\)"):
        decode(packed, 6, 2, "raw")


def test_knobs_and_sizes_out_of_range() -> None:
    with pytest.raises(ConfigurationError, match="elias-fano"):
        grace.TopK(index="elias")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        size(10, 11, "raw")
    with pytest.raises(ConfigurationError):
        size((1 << 31) + 1, 1, "raw")
