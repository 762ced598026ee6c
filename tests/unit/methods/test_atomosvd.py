from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import grace
from grace.contract.lent import Lent
from grace.contract.peer import Peer
from grace.errors import ConfigurationError, PayloadError
from grace.methods.atomosvd import AtomoSVD
from grace.methods.common.triples import Triples, fill_with_water
from grace.random import Stream
from tests.unit.methods.lowrank_helpers import (
    check_agreement_and_conservation,
    check_dtypes_and_layouts,
    check_memory_loses_nothing,
    check_non_finite,
    check_ugly_inputs,
    rand,
    steps,
)

SMALL = AtomoSVD(rank=2, min_rate=0.1)
SHAPE = (12, 3, 5)


class Dice(Stream):
    """A stream that draws what the test says."""

    def fork(self, salt: int) -> Stream:
        return self

    def words(self, groups: int, device: torch.device | str = "cpu") -> Tensor:
        wanted = torch.tensor([0.9, 0.4, 0.7], dtype=torch.float64)
        return (wanted * 2.0**32 - 2.0**31 - 0.5).to(torch.int32)[:groups, None].expand(-1, 2)


def stream(step: int) -> Stream:
    return Stream(0, "test", "x", 0, step)


@pytest.mark.parametrize(
    ("sizes", "budget", "expected"),
    [([6.0, 1, 1], 2, [1, 0.5, 0.5]), ([4.0, 1, 1, 2], 2, [1, 0.25, 0.25, 0.5]), ([3.0, 0, 2], 2, [1, 0, 1]),
     ([0.0, 0], 1, [0, 0]), ([1.0, 1, 1, 1], 2, [0.5] * 4), ([5.0], 3, [1]), ([1e-40, 1e-40], 1, [0.5, 0.5])],
)  # fmt: skip
def test_fill_with_water(sizes: list[float], budget: int, expected: list[float]) -> None:
    got = fill_with_water(torch.tensor(sizes, dtype=torch.float64), budget)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


def test_fill_with_water_spends_the_budget() -> None:
    for seed in range(20):
        sizes = rand(30, seed=seed).exp()
        p = fill_with_water(sizes, 7)
        assert float(p.sum()) == pytest.approx(7)
        assert 0 < float(p.min()) <= float(p.max()) <= 1
        rest = p < 1
        torch.testing.assert_close(p[rest] / sizes[rest], (p[rest] / sizes[rest])[:1].expand(int(rest.sum())))


def test_the_vector() -> None:
    triples = Triples(3, 3, 2, shrink=False)
    rows, out = torch.diag(torch.tensor([6.0, 1.0, 1.0])).view(1, 9), torch.zeros(1, 9)
    wire = triples.compress_(rows, Dice(0, "", "", 0, 0), keep_rest=True)
    triples.decompress_add_(wire, out, 1.0, stream(0))
    kept, lost = out.view(3, 3), rows.view(3, 3)
    torch.testing.assert_close(kept.diagonal().sort().values, torch.tensor([0.0, 2.0, 6.0]))  # of equal ones either
    torch.testing.assert_close(kept + lost, torch.diag(torch.tensor([6.0, 1.0, 1.0])))
    assert wire.shape[1] * 8 == 32 + 32 * 2 * (3 + 3 + 1)


def test_exact_within_the_budget() -> None:
    matrix = rand(20, 2, seed=1) @ rand(2, 15, seed=2)
    for xs in ([matrix], [matrix, -matrix * 3]):
        out = steps(SMALL, [xs])[0][0]
        torch.testing.assert_close(out.mean, sum(xs) / len(xs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [lambda: rand(6, 5, seed=1), lambda: rand(6, 5, seed=2).mul(2).exp(),
                                  lambda: torch.eye(6)[:, :5]])  # fmt: skip
def test_unbiased_with_the_declared_variance(make: object) -> None:
    x: Tensor = make()  # type: ignore[operator]
    triples, draws = Triples(6, 5, 2, shrink=False), 2048
    total, squares, count = torch.zeros(30, dtype=torch.float64), 0.0, 0
    for step in range(draws):
        out = torch.zeros(1, 30)
        wire = triples.compress_(x.reshape(1, 30).clone(), stream(step), keep_rest=False)
        count += int(wire[0, :4].view(torch.int32))
        triples.decompress_add_(wire, out, 1.0, stream(step))
        total += out[0].double()
        squares += float((out.view(6, 5) - x).square().sum())
    sigma = torch.linalg.svdvals(x.double())
    p = fill_with_water(sigma, 2)
    variance = float((sigma.square() / p).sum() - sigma.square().sum())
    assert squares / draws == pytest.approx(variance, rel=0.15)
    assert variance <= triples.facts(30).variance * float(sigma.square().sum()) * (1 + 1e-9)
    assert float((total / draws - x.reshape(-1)).abs().max()) <= 6 * math.sqrt(variance / draws)
    assert count / draws == pytest.approx(2, abs=0.1)


def test_a_memory_makes_it_a_contraction() -> None:
    method = grace.method("atomosvd:rank=2,min_rate=0.1,memory=residual")
    assert method.method.shrink
    x = rand(6, 5, seed=3)
    inner = Triples(6, 5, 2, shrink=True)
    errors = []
    for step in range(500):
        rows = x.reshape(1, 30).clone()
        inner.compress_(rows, stream(step), keep_rest=True)
        errors.append(float(rows.square().sum()))
    bound = 1 - inner.facts(30).contraction
    assert sum(errors) / 500 <= bound * float(x.square().sum()) * 1.02


def test_laws() -> None:
    check_agreement_and_conservation(SMALL, SHAPE)
    check_memory_loses_nothing(grace.method("atomosvd:rank=2,min_rate=0.1,memory=residual"), SHAPE)
    check_ugly_inputs(SMALL, (12, 15))
    check_dtypes_and_layouts(AtomoSVD(rank=5, min_rate=0.1), (4, 5))
    check_non_finite(SMALL, SHAPE, 0)


def test_the_authors_view_of_kernels() -> None:
    like = torch.empty(64, 32, 3, 3)
    assert AtomoSVD(view="atomo")._sizes(like)[:2] == (1024, 18)
    assert AtomoSVD()._sizes(like)[:2] == (64, 288)
    assert AtomoSVD(view="atomo")._sizes(torch.empty(3, 5, 2, 2))[:2] == (3, 20)  # 15 rows have no half
    check_agreement_and_conservation(AtomoSVD(rank=2, view="atomo", min_rate=0.1), (4, 3, 2, 2), count=2)


def test_small_and_flat_tensors_are_dense() -> None:
    for like in (torch.zeros(5000), torch.zeros(16, 4)):
        peer = Peer(0, 2, lent=Lent(keep_rest=True))
        assert grace.method("atomosvd").traffic(like, peer) == grace.method("none").traffic(like, peer)
        assert grace.method("atomosvd").facts(like).variance == 0


def test_corrupted_payloads() -> None:
    triples, rng = Triples(6, 5, 3, shrink=False), stream(1)
    good = triples.compress_(rand(1, 30, seed=1), rng, keep_rest=False)
    made = torch.Generator().manual_seed(1)
    for _ in range(400):
        bad = good.clone()
        at = torch.randint(0, bad.shape[1], (3,), generator=made)
        bad[0, at] = torch.randint(0, 256, (3,), generator=made, dtype=torch.uint8)
        bad = bad[:, : int(torch.randint(1, bad.shape[1] + 1, (1,), generator=made))].contiguous()
        out = torch.zeros(1, 30)
        try:
            triples.decompress_add_(bad, out, 1.0, rng)
        except PayloadError:
            continue
    for count in (-1, 6, 2**31 - 1):
        bad = good.clone()
        bad[0, :4] = torch.tensor([count], dtype=torch.int32).view(torch.uint8)
        with pytest.raises(PayloadError, match="count"):
            triples.decompress_add_(bad, torch.zeros(1, 30), 1.0, rng)
    for field, at in (("sizes", 4), ("u", 4 + 4 * int(good[0, :4].view(torch.int32)))):
        bad = good.clone()
        bad[0, at : at + 4] = torch.tensor([math.nan]).view(torch.uint8)
        with pytest.raises(PayloadError, match=field):
            triples.decompress_add_(bad, torch.zeros(1, 30), 1.0, rng)
    padded = torch.cat((good, torch.zeros(1, 8, dtype=torch.uint8)), dim=1)
    a, b = torch.zeros(1, 30), torch.zeros(1, 30)
    triples.decompress_add_(padded, a, 1.0, rng)
    triples.decompress_add_(good, b, 1.0, rng)
    assert torch.equal(a, b)


@pytest.mark.parametrize("knob", [{"rank": 0}, {"view": "square"}, {"min_rate": 0}, {"shrink": 1}])
def test_knobs(knob: dict) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(knob))):
        AtomoSVD(**knob)
