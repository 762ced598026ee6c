"""The shared wires of sparse methods."""

from __future__ import annotations

import pytest
import torch

import grace
from grace.errors import ConfigurationError, PayloadError
from grace.kernels import round_to_bfloat16
from grace.kernels.index_codes.codes import CODES, varies
from grace.kernels.sparse import TopKPairs, payloads

N = 1003


def rows(b: int = 3) -> torch.Tensor:
    return torch.randn(b, N, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("values", ["float32", "bfloat16"])
def test_pairs_say_the_selected_numbers_and_leave_the_rest(code: str, values: str) -> None:
    x = rows()
    index = torch.stack([torch.arange(j, N, 97)[:10] for j in range(3)])
    x.scatter_(1, index, x.gather(1, index).mul_(9).add_(50))
    rest = x.clone()
    pairs = TopKPairs(10, code, values == "bfloat16")
    wire, finite = payloads.write_topk_(rest, pairs, None, rest)
    assert finite
    if not varies(code):
        assert wire.shape[1] == payloads.pairs_bytes(N, pairs)
    out = torch.zeros_like(x)
    payloads.sum_pairs([wire], out, pairs, 1.0, add=True)
    assert torch.equal(out + rest, x)
    assert torch.equal(
        out.gather(1, index),
        round_to_bfloat16(x.gather(1, index)).float() if values == "bfloat16" else x.gather(1, index),
    )
    assert int((out != 0).sum()) == 30


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("values", ["float32", "bfloat16"])
def test_counted_takes_any_number_and_goes_dense_where_that_is_smaller(code: str, values: str) -> None:
    x = rows(4)
    selected = [torch.arange(0, N, step) for step in (50, 1, 7, N)]
    selected[3] = selected[3][:0]
    rest, pairs = x.clone(), [(index, row[index]) for index, row in zip(selected, x, strict=True)]
    wire = payloads.write_counted_(rest, pairs, code, values, keep_rest=True)
    counts = wire[:, :4].contiguous().view(torch.int32)[:, 0].tolist()
    assert counts == [21, -1, 144, 0]
    out = torch.zeros_like(x)
    payloads.sum_counted([wire], out, 1.0, code, values, add=True)
    assert torch.equal(out + rest, x)
    alone = payloads.write_counted_(x[3:].clone(), pairs[3:], code, values, keep_rest=False)
    assert alone.shape == (1, 4)


def test_bfloat16_never_rounds_up_to_infinity() -> None:
    huge = torch.tensor([torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max, 1e-45])
    assert bool(round_to_bfloat16(huge).isfinite().all())


def test_numbers_that_are_not_finite_and_counts_out_of_range_are_refused() -> None:
    good = payloads.write_counted_(rows(1), [(torch.arange(5), rows(1)[0, :5])], "raw", "float32", keep_rest=False)
    for at, number, field in ((4, float("nan"), "values"), (8, float("inf"), "values")):
        bad = good.clone()
        bad[0, at : at + 4] = torch.tensor([number]).view(torch.uint8)
        with pytest.raises(PayloadError, match=field):
            payloads.sum_counted([bad], torch.zeros(1, N), 1.0, "raw", "float32", add=True)
    for count in (-2, N + 1, 1 << 30):
        bad = good.clone()
        bad[0, :4] = torch.tensor([count], dtype=torch.int32).view(torch.uint8)
        with pytest.raises(PayloadError, match="count"):
            payloads.sum_counted([bad], torch.zeros(1, N), 1.0, "raw", "float32", add=True)


def test_knobs() -> None:
    with pytest.raises(ConfigurationError, match="values='float16'"):
        grace.TopK(index="raw", values="float16")  # type: ignore[arg-type]
