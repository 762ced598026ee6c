"""DeMo: error feedback around a tiled top-k of cosines, and signs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.optim import DeMo
from grace.optim.tiles import TiledTopK, from_tiles, to_tiles
from tests.unit.optim.workers import Point, Workers, flat


def test_the_numbers_of_a_hand() -> None:
    x = torch.tensor([1.0, 2, 3, 4])
    torch.testing.assert_close(to_tiles(x, 4, 1), torch.tensor([5.0, -2.230442, 0.0, -0.158513]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape", [(32, 48), (30,), (7, 4, 3, 3), ()], ids=str)
def test_tiles_lose_nothing_and_keep_norms(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h, w = TiledTopK(side=8).tile(x)
    y = to_tiles(x, h, w)
    torch.testing.assert_close(from_tiles(y, x, h, w), x)
    torch.testing.assert_close(y.norm(), x.norm())
    assert h <= 8
    assert w <= 8


def tiles_are_the_largest() -> None:
    like = torch.empty(4096, 96)
    assert TiledTopK().tile(like) == (64, 48)
    assert TiledTopK().tile(torch.empty(67, 10)) == (1, 10)


def test_a_tile_has_the_largest_divisors() -> None:
    tiles_are_the_largest()


@pytest.mark.parametrize(
    ("mutant", "got"),
    [
        (lambda side, most: min(side, most), r"\(64, 64\) == \(64, 48\)"),  # no divisor
        (lambda side, most: math.gcd(side, most), r"\(64, 32\) == \(64, 48\)"),  # no multiple of 3
        (lambda side, most: side, r"\(4096, 96\) == "),  # without a limit
    ],
    ids=["cut", "common", "whole"],
)
def test_other_tiles_are_caught(mutant: Callable[[int, int], int], got: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.optim.tiles._divisor", mutant)
    with pytest.raises(AssertionError, match=got):
        tiles_are_the_largest()


def tiles_are_blocks(transform: Callable[[Tensor, int, int], Tensor] = to_tiles) -> None:
    """A block of the matrix is the tile of that place, and a smooth block is its first component."""
    x = torch.zeros(12, 10)
    x[4:8, 5:10] = 3.0
    tiles = transform(x, 4, 5).view(6, 20)
    assert tiles.any(1).nonzero().flatten().tolist() == [3]
    torch.testing.assert_close(tiles[3], torch.tensor([3 * 20**0.5] + [0.0] * 19), atol=1e-5, rtol=0)


def test_tiles_are_blocks_of_the_matrix() -> None:
    tiles_are_blocks()


def rows_in_turn(x: Tensor, h: int, w: int) -> Tensor:
    """Cuts the numbers in their order, not the matrix."""
    return to_tiles(x.reshape(-1, w), h, w)


def sideways(x: Tensor, h: int, w: int) -> Tensor:
    """Lists the tiles column by column."""
    rows, columns = x.shape
    return to_tiles(x, h, w).view(rows // h, columns // w, h * w).transpose(0, 1).reshape(-1)


@pytest.mark.parametrize("mutant", [rows_in_turn, sideways])
def test_tiles_that_are_no_blocks_are_caught(mutant: Callable[[Tensor, int, int], Tensor]) -> None:
    with pytest.raises(AssertionError, match=r"== \[3\]"):
        tiles_are_blocks(mutant)


def test_a_tile_of_few_numbers_is_averaged_whole() -> None:
    workers = Workers(DeMo, 2, lambda: Point(67, 67), lr=0.1)  # 67 is prime
    made = torch.Generator().manual_seed(0)
    gradients = [torch.randn(67, 67, generator=made) for _ in range(2)]
    workers.step([[gradient] for gradient in gradients])
    assert torch.equal(flat(workers.models[0]).view(67, 67), -0.1 * sum(gradients).sign())  # type: ignore[union-attr]


class KeepsWhatItSent(DeMo):
    def _update(self, gradients: Any) -> Any:
        out = yield from DeMo._update(self, gradients)
        for _, state in self.session.worker._states.values():
            state[0].add_(1e-2)
        return out


class AppliesTheMean(DeMo):
    def _update(self, gradients: Any) -> Any:
        before = [p.clone() for p in self._names]
        out = yield from DeMo._update(self, gradients)
        for p, x in zip(self._names, before, strict=True):
            p.sub_(x).mul_(0.5).add_(x)
        return out


def by_hand(make: Callable[..., DeMo], world: int = 3) -> None:
    """m = beta m + g; q = the top-k of the DCT of each tile of m; m -= q; x -= lr sign(mean q)."""
    shape, k, side, beta = (32, 48), 8, 16, 0.9
    workers = Workers(make, world, lambda: Point(*shape), lr=1.0, k=k, tile=side, beta=beta)
    momenta = [torch.zeros(shape) for _ in range(world)]
    made = torch.Generator().manual_seed(0)
    for _ in range(6):
        gradients = [torch.randn(shape, generator=made) for _ in range(world)]
        before = flat(workers.models[0])
        workers.step([[gradient] for gradient in gradients])
        mean = torch.zeros(shape)
        for rank, gradient in enumerate(gradients):
            momenta[rank] = beta * momenta[rank] + gradient
            rows = to_tiles(momenta[rank], side, side).view(-1, side * side)
            kept = torch.zeros_like(rows).scatter_(1, rows.abs().topk(k, dim=1).indices, 1.0)
            sent = from_tiles((rows * kept).view(-1), momenta[rank], side, side)
            momenta[rank] -= sent
            mean += sent / world
        torch.testing.assert_close((before - flat(workers.models[0])).view(shape), mean.sign())
        for optimizer, momentum in zip(workers.optimizers, momenta, strict=True):
            assert isinstance(optimizer, DeMo)
            torch.testing.assert_close(optimizer.momentum("x"), momentum, atol=1e-5, rtol=0)
        assert workers.replicas_equal()


def test_it_is_error_feedback_around_a_tiled_top_k() -> None:
    by_hand(DeMo)


@pytest.mark.parametrize("mutant", [KeepsWhatItSent, AppliesTheMean])
def test_something_else_is_caught(mutant: type[DeMo]) -> None:
    with pytest.raises(AssertionError):
        by_hand(mutant)


def test_a_parameter_without_numbers_is_taken() -> None:
    workers = Workers(DeMo, 2, lambda: Point(0, 64))
    workers.step([[torch.zeros(0, 64)] for _ in range(2)])
    assert workers.optimizers[0].steps == 1


def places_are_packed(**knobs: Any) -> None:
    workers = Workers(DeMo, 2, lambda: Point(128, 128), **knobs)
    workers.step([[torch.randn(128, 128)] for _ in range(2)])
    bits = workers.optimizers[0].stats.traffic.sent * 8 / 128**2
    of_a_tile = 32 * (32 + 12) / 4096  # k values, each with a place among 64 * 64
    assert of_a_tile <= bits <= of_a_tile + 0.02


def test_bytes_are_values_and_packed_places() -> None:
    places_are_packed()


def test_places_as_whole_numbers_and_more_components_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=r"assert 0\.68"):
        places_are_packed(k=64)
    monkeypatch.setattr("grace.optim.tiles.index_bits", lambda chunk: 16)
    with pytest.raises(AssertionError, match=r"assert 0\.3[78]"):
        places_are_packed()


def test_numbers_that_cancel_do_not_move() -> None:
    """Their sum is the rounding of sums, whose sign would depend on the processor."""
    workers = Workers(DeMo, 2, lambda: Point(16, 16), lr=1.0, k=200, tile=16)
    x: Tensor = torch.zeros(16, 16)
    x[3, 5] = 1.0
    workers.step([[x], [x]])
    moved = flat(workers.models[0]).view(16, 16)
    assert float(moved[3, 5]) == -1.0
    all_sent = Workers(DeMo, 2, lambda: Point(16, 16), lr=1.0, k=255, tile=16)
    all_sent.step([[torch.ones(16, 16)], [-torch.ones(16, 16)]])
    assert not flat(all_sent.models[0]).any()


def test_it_finds_a_known_optimum() -> None:
    made = torch.Generator().manual_seed(1)
    best = torch.randn(32, 32, generator=made)
    goals = [best + 0.1 * torch.randn(32, 32, generator=made) for _ in range(2)]
    workers = Workers(DeMo, 2, lambda: Point(32, 32), lr=0.2, beta=0.9, k=64, tile=32)
    for step in range(400):
        for optimizer in workers.optimizers:
            optimizer.param_groups[0]["lr"] = 0.2 * 0.985**step
        workers.step([[model.x.detach() - goal] for model, goal in zip(workers.models, goals, strict=True)])  # type: ignore[operator]
    best = torch.stack(goals).mean(0)
    assert float((flat(workers.models[0]).view(32, 32) - best).norm() / best.norm()) < 0.1
