"""Sparse wires and index codes: native code against the specification, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grace.compute import backends
from grace.errors import InputError, PayloadError
from grace.kernels.index_codes.codes import CODES
from grace.kernels.index_codes.fixed import FIXED, decode_indices, encode_indices, layout
from grace.kernels.sparse import DENSE, TopKPairs, WirePart, payloads, sum_sparse
from tests.unit.kernels.native_checks import TARGETS, needs_native, offset, same_bits, with_threads


def numbers(n: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, n, generator=g) * torch.exp(torch.randn(2, n, generator=g))


@needs_native
@pytest.mark.parametrize("choice", TARGETS)
@pytest.mark.parametrize("code", FIXED)
def test_codes_of_every_size(choice: str, code: str):
    generator = torch.Generator().manual_seed(1)
    for n in (*range(1, 71), 3001, 1 << 31):
        if code == "bitmap" and n > 3001:
            continue
        for k in sorted({1, min(n, 70) // 3 or 1, min(n, 500)}):
            drawn = torch.randint(0, n, (2, 4 * k + 9), generator=generator) if n > 3001 else None
            lists = [
                torch.randperm(n, generator=generator)[:k] if drawn is None else drawn[j].unique()[:k] for j in (0, 1)
            ]
            index = torch.stack([row.sort().values for row in lists])
            with backends.using("reference"):
                want = encode_indices(index, n, code)
            with backends.using(choice):
                packed = encode_indices(index, n, code)
                assert torch.equal(packed, want), (n, k)
                assert packed.shape[1] == layout(n, k, code).size
                assert torch.equal(decode_indices(offset(packed, n % 3), n, k, code), index), (n, k)


@needs_native
@pytest.mark.parametrize("choice", TARGETS)
@pytest.mark.parametrize("code", FIXED)
def test_any_bytes_are_refused_or_a_legal_list(choice: str, code: str):
    """The decoders of native code and of the specification agree on every one of them."""
    generator = torch.Generator().manual_seed(2)
    for trial in range(300):
        n = int(torch.randint(1, 300, (), generator=generator))
        k = int(torch.randint(1, n + 1, (), generator=generator))
        good = encode_indices(torch.randperm(n, generator=generator)[:k].sort().values[None], n, code)
        noise = torch.randint(0, 256, good.shape, generator=generator, dtype=torch.uint8)
        if trial % 2:
            noise = good.clone()
            at = int(torch.randint(0, good.numel(), (), generator=generator))
            noise[0, at] ^= 1 << int(torch.randint(0, 8, (), generator=generator))
        answers = []
        for which in (choice, "reference"):
            with backends.using(which):
                try:
                    answers.append(decode_indices(noise, n, k, code).tolist())
                except PayloadError as error:
                    answers.append(str(error))
        assert answers[0] == answers[1]


@needs_native
@pytest.mark.parametrize("choice", TARGETS)
@pytest.mark.parametrize("values", ["float32", "bfloat16"])
@pytest.mark.parametrize("code", CODES)
def test_wires_and_sums_agree(choice: str, values: str, code: str):
    for n in (1, 2, 7, 64, 65, 70, 1000, 9001):
        x, memory = numbers(n), numbers(n, 1)
        pairs = TopKPairs(max(1, n // 20), code, values == "bfloat16")

        def once(
            which: str, n: int = n, x: Tensor = x, memory: Tensor = memory, pairs: TopKPairs = pairs
        ) -> list[Tensor]:
            out, left = [], [torch.empty_like(x) for _ in range(2)]
            with backends.using(which):
                wire, finite = payloads.write_topk_(x.clone(), pairs, memory, left[0])
                bounds = [0.0 if n == 7 else 2.0, 1e9]
                many, fine = payloads.write_at_least_(x.clone(), bounds, code, values, memory, left[1])
                assert finite
                assert fine
                for add in (False, True):
                    total = offset(torch.ones(2, n), n % 3)
                    payloads.sum_pairs([wire] * 3, total, pairs, 0.3, add=add)
                    out.append(total)
                    total = offset(torch.ones(2, n), n % 3)
                    payloads.sum_counted([many, many], total, -0.7, code, values, add=add)
                    out.append(total)
            return [wire, many, *left, *out]

        for a, b in zip(once(choice), once("reference"), strict=True):
            assert same_bits(a, b), n


@needs_native
@pytest.mark.parametrize("threads", [1, 4])
def test_large_sums(threads: int):
    n, k = 1_200_007, 12_000
    received = []
    with with_threads(threads):
        for seed in range(3):
            row = numbers(n, seed)[:1]
            received.append(payloads.write_topk_(row, TopKPairs(k, "auto"), None, None)[0])
        totals = []
        for which in (TARGETS[-1], "reference"):
            out = torch.full((1, n), 9.0)
            with backends.using(which):
                payloads.sum_pairs(received, out, TopKPairs(k, "auto"), 1 / 3, add=False)
            totals.append(out)
    assert same_bits(*totals)


def test_more_wires_than_are_added_at_once():
    x = numbers(300)[:1]
    wire, _ = payloads.write_topk_(x, TopKPairs(9, "auto"), None, None)
    out = torch.zeros(1, 300)
    payloads.sum_pairs([wire] * 130, out, TopKPairs(9, "auto"), 0.5, add=False)
    summed = torch.zeros(1, 300)
    for _ in range(130):
        payloads.sum_pairs([wire], summed, TopKPairs(9, "auto"), 0.5, add=True)
    assert same_bits(out, summed)


@needs_native
@pytest.mark.parametrize("choice", [*TARGETS, "reference"])
def test_bad_parts(choice: str):
    wire = torch.arange(40, dtype=torch.uint8)
    with backends.using(choice):
        with pytest.raises(PayloadError, match="truncated payload: field 'values'"):
            sum_sparse([WirePart(wire, 0, 0, 0, DENSE)], torch.zeros(11), 1.0, narrow=False)
        with pytest.raises(PayloadError, match="truncated payload: field 'indices'"):
            sum_sparse([WirePart(wire, 0, 39, 9, "raw")], torch.zeros(64), 1.0, narrow=False)
        with pytest.raises(InputError, match="side by side"):
            sum_sparse([WirePart(wire[::2], 0, 0, 1, "raw")], torch.zeros(64), 1.0, narrow=False)
        for narrow, number in ((False, [0, 0, 128, 127]), (True, [128, 255])):
            for k in range(1, 40):
                bad = torch.zeros(200, dtype=torch.uint8)
                bad[:160] = 1
                width = len(number)
                bad[width * (k - 1) : width * k] = torch.tensor(number, dtype=torch.uint8)
                places = torch.arange(k)
                with pytest.raises(PayloadError, match="'values' must be finite"):
                    sum_sparse([WirePart(bad, 0, 0, k, "list", places)], torch.zeros(64), 1.0, narrow=narrow)
        for wrong in ([3, 3], [5, 4], [3, 64], [-1, 2]):
            with pytest.raises(PayloadError, match="'indices'"):
                sum_sparse([WirePart(wire, 0, 0, 2, "list", torch.tensor(wrong))], torch.zeros(64), 1.0, narrow=False)
