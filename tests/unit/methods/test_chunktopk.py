from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import ConfigurationError, PayloadError
from grace.methods import ChunkTopK, chunktopk
from tests.unit.methods import sparse_checks as checks


def test_vector_of_the_specification() -> None:
    """a = 1/2 and s = 6.98 of (5, -3, 4, -4): codes 3, 1, 3, 1."""
    compressor = ChunkTopK(chunk=8, k=4)
    x = torch.tensor([5, -3, 0.2, 4, -0.1, -4, 0.3, 1])
    wire = compressor.compress_(x.clone()[None], checks.stream(), False)
    assert wire.shape[1] == compressor.facts(8).payload == 19
    assert wire[0, :16].view(torch.float32).tolist() == [0, -3.5, 0, 4.5]
    assert int(wire[0, 16]) == 3 | 1 << 2 | 3 << 4 | 1 << 6
    assert wire[0, 17:].tolist() == [0 | 1 << 3 | (3 << 6) % 256, 3 >> 2 | 5 << 1]
    assert checks.decoded(compressor, x, checks.stream()).tolist() == [4.5, -3.5, 0, 4.5, 0, -3.5, 0, 0]


def test_the_recipe_is_the_papers() -> None:
    method = grace.method("chunktopk")
    assert method == grace.ErrorFeedback(grace.communicators.Allgather(ChunkTopK(4096, 64)), beta=0.95)
    assert ChunkTopK().facts(1 << 20).payload == 16 + (1 << 14) * 14 // 8  # of 4 MiB
    assert grace.spell(method) == "chunktopk"
    for spec in ("chunktopk:beta=1", "chunktopk:k=8,memory=none", "chunktopk:beta=0.5", "chunktopk:memory=distef"):
        assert grace.spell(grace.method(spec)) == spec


def test_each_chunk_keeps_its_own_k_and_the_last_what_it_has() -> None:
    compressor = ChunkTopK(chunk=10, k=3)
    x = torch.arange(1.0, 33.0)  # 3 chunks of 10, and 2 numbers
    kept = checks.decoded(compressor, x, checks.stream()).nonzero().view(-1)
    assert kept.tolist() == [7, 8, 9, 17, 18, 19, 27, 28, 29, 30, 31]
    for n in (1, 2, 9, 10, 11, 12, 13, 31):
        wire = compressor.compress_(torch.randn(3, n, generator=checks.generator()), checks.stream(), False)
        assert wire.shape == (3, compressor.facts(n).payload)


def test_several_rows_are_each_as_one() -> None:
    compressor, x = ChunkTopK(chunk=16, k=5), torch.randn(4, 45, generator=checks.generator())
    whole = compressor.compress_(x.clone(), checks.stream(), False)
    for row, wire in zip(x, whole, strict=True):
        assert torch.equal(compressor.compress_(row.clone()[None], checks.stream(), False)[0], wire)


@pytest.mark.parametrize("x", [[3.0, -3.0], [-7.0], [0.5, 0.25]])
def test_one_or_two_numbers_are_exact(x: list[float]) -> None:
    """By the paper's formula 3 and -3 have one code, whose mean is 0: nothing would be sent, and owed more each step."""
    assert checks.decoded(ChunkTopK(4, 2), torch.tensor(x), checks.stream()).tolist() == x
    assert ChunkTopK(4, 2).facts(len(x)).contraction == 1


@pytest.mark.parametrize("compressor", [ChunkTopK(16, 4), ChunkTopK(1000, 3), ChunkTopK(7, 7), ChunkTopK(1000, 1)])
def test_contraction(compressor: ChunkTopK) -> None:
    checks.check_contraction(compressor)
    checks.check_edges(compressor)
    checks.check_corruption(compressor)


def test_contraction_of_the_worst_three() -> None:
    """The outer two of v, 0 and -v have codes of their own; the mean says nearly all of three that are almost equal."""
    for x in ([1.0, 0.0, -1.0], [1.0, 1.0, 1.0], [1.0, 1.0, -2.0], [1.0, -0.9, 0.1]):
        numbers = torch.tensor(x)
        error = (numbers - checks.decoded(ChunkTopK(3, 3), numbers, checks.stream())).square().sum()
        delta = ChunkTopK(3, 3).facts(3).contraction
        assert delta == 9 / 32
        assert float(error) <= (1 - delta) * float(numbers.square().sum())


def test_most_of_what_topk_keeps_is_kept() -> None:
    x = torch.randn(1 << 14, generator=checks.generator())
    lost = {}
    for spec in ("chunktopk:chunk=1024,k=64,memory=none", "topk:ratio=0.0625,memory=none"):
        lost[spec[:4]] = float((x - checks.decoded(grace.method(spec).compressor, x, checks.stream())).square().sum())
    kept = {name: 1 - error / float(x.square().sum()) for name, error in lost.items()}
    assert 0.9 * kept["topk"] < kept["chun"] < kept["topk"]


@pytest.mark.parametrize("communicator", ["allgather", "scatterreduce"])
def test_exchange(communicator: str) -> None:
    checks.check_exchange(grace.method("chunktopk:chunk=64,k=8,memory=none", communicator=communicator))
    checks.check_nothing_lost(grace.method("chunktopk:chunk=64,k=8,beta=1", communicator=communicator))


def test_refuses_what_no_sender_writes() -> None:
    compressor = ChunkTopK(8, 4)
    good = compressor.compress_(torch.arange(1.0, 9.0)[None], checks.stream(), False)
    for at, value, field in ((0, None, "table"), (17, 0xFF, "indices")):
        bad = good.clone()
        if value is None:
            bad[0, :4] = torch.tensor([float("nan")]).view(torch.uint8)
        else:
            bad[0, at] = value  # places 7, 7, ...
        with pytest.raises(PayloadError, match=field):
            compressor.decompress_add_(bad, torch.zeros(1, 8), 1.0, checks.stream())


def test_knobs() -> None:
    for knobs in ({"chunk": 1}, {"chunk": 65537}, {"k": 0}, {"chunk": 32, "k": 33}, {"k": 0.5}):
        with pytest.raises(ConfigurationError, match="chunktopk"):
            ChunkTopK(**knobs)


# ---- mutants --------------------------------------------------------------------------------------------------------
def _of_the_whole(self: ChunkTopK, rows: Tensor) -> Tensor:
    """The largest of a row, wherever they are."""
    return rows.abs().topk(self._count(rows.shape[1]), dim=1).indices.sort(1).values


def _the_first(self: ChunkTopK, rows: Tensor) -> Tensor:
    """The first k of each chunk."""
    return _select(self, torch.arange(rows.shape[1], 0.0, -1.0).expand_as(rows).contiguous())


def _one_mean(values: Tensor) -> tuple[Tensor, Tensor]:
    """All kept numbers become their mean."""
    return torch.zeros_like(values, dtype=torch.int64), values.mean(1, keepdim=True).expand(-1, 4).contiguous()


def _signs(values: Tensor) -> tuple[Tensor, Tensor]:
    """Codes by sign, with the largest magnitude: longer than what is kept."""
    most = values.abs().amax(1, keepdim=True)
    return (values > 0).long(), torch.cat([-most, most, most, most], dim=1)


def _says_more(self: ChunkTopK, rows: Tensor, rng: Any, keep_rest: bool) -> Tensor:
    """The rest is what was not kept, as if values had travelled exactly."""
    wire = _compress(self, rows.clone(), rng, False)
    rows.scatter_(1, _select(self, rows), 0.0)
    return wire


_select, _compress = ChunkTopK._select, ChunkTopK.compress_


def _stays_in_its_chunks() -> None:
    test_each_chunk_keeps_its_own_k_and_the_last_what_it_has()


def _contracts() -> None:
    checks.check_contraction(ChunkTopK(16, 4))


def _loses_nothing() -> None:
    checks.check_nothing_lost(grace.method("chunktopk:chunk=64,k=8,beta=1"))


@pytest.mark.parametrize(
    ("where", "name", "mutant", "law", "message"),
    [
        (ChunkTopK, "_select", _of_the_whole, _stays_in_its_chunks, "not close"),
        (ChunkTopK, "_select", _the_first, _contracts, "one-hot|log-normal|gaussian"),
        (chunktopk, "_quantize", _one_mean, _contracts, "gaussian"),
        (chunktopk, "_quantize", _signs, _contracts, "log-normal|gaussian"),
        (ChunkTopK, "compress_", _says_more, _loses_nothing, "not close"),
    ],
)
def test_mutants_are_caught(
    where: Any, name: str, mutant: Any, law: Callable[[], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    law()
    monkeypatch.setattr(where, name, mutant)
    with pytest.raises(AssertionError, match=message):
        law()
