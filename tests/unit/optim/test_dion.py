"""Dion: the numbers of a hand, and that workers do what one does with the mean gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grace
from grace.collectives import AllReduce
from grace.kernels import project_columns, unit_rows
from grace.optim import Dion
from grace.optim.dion import DionExchange, DionState
from grace.run import simulate
from tests.unit.optim.workers import Point, Workers, flat


def test_the_numbers_of_a_hand() -> None:
    state = DionState(torch.zeros(2, 2), torch.tensor([[1.0, 0.0]]))
    g = torch.tensor([[3.0, 0.0], [4.0, 0.0]])
    (out,) = simulate([DionExchange(rank_fraction=0.5).exchange(g, state, grace.Peer(0, 1, 0))])
    torch.testing.assert_close(out.mean, torch.tensor([[0.6, 0.0], [0.8, 0.0]]))
    torch.testing.assert_close(out.state.momentum, torch.tensor([[2.85, 0.0], [3.8, 0.0]]))
    assert not state.momentum.any()


@dataclass(frozen=True, slots=True)
class OwnFactor(DionExchange):
    """Projects by P of its own momentum."""

    def exchange(self, x: Tensor, state: DionState, peer: grace.Peer) -> Any:
        run = DionExchange.exchange(self, x, state, peer)
        first = next(run)
        yield first
        second = run.send(first.buf.clone())
        answer = yield second
        try:
            run.send(answer)
        except StopIteration as stop:
            return stop.value


@dataclass(frozen=True, slots=True)
class Forgetful(DionExchange):
    """Takes its own R, not the mean, out of the momentum, and forgets the rest of it."""

    def exchange(self, x: Tensor, state: DionState, peer: grace.Peer) -> Any:
        out = yield from DionExchange.exchange(self, x, state, peer)
        out.state = out.state._replace(momentum=out.state.momentum * 0.5)
        return out


def workers_are_one(
    codec: type[DionExchange] = DionExchange, world: int = 3, shape: tuple[int, ...] = (32, 48)
) -> None:
    """20 steps; momenta of single workers differ, and their mean is the one worker's."""
    method, alone = codec(0.25), DionExchange(0.25)
    states, lone = [method.init(torch.zeros(shape)) for _ in range(world)], alone.init(torch.zeros(shape))
    made = torch.Generator().manual_seed(0)
    for step in range(20):
        gs = [torch.randn(shape, generator=made) for _ in range(world)]
        peers = [grace.Peer(rank, world, step) for rank in range(world)]
        outs = simulate([method.exchange(g.clone(), s, peer) for g, s, peer in zip(gs, states, peers, strict=True)])
        (single,) = simulate([alone.exchange(sum(gs) / world, lone, grace.Peer(0, 1, step))])  # type: ignore[arg-type]
        states, lone = [out.state for out in outs], single.state
        assert all(torch.equal(out.mean, outs[0].mean) for out in outs)
        torch.testing.assert_close(outs[0].mean, single.mean, atol=1e-5, rtol=0)
        mean = sum(state.momentum for state in states) / world
        torch.testing.assert_close(mean, lone.momentum, atol=1e-5, rtol=0)
    if method.compresses(torch.zeros(shape)):
        assert float((states[0].momentum - states[1].momentum).norm()) > float(lone.momentum.norm())


@pytest.mark.parametrize("shape", [(32, 48), (48, 20), (8, 4, 3, 3), (3, 2)], ids=str)
def test_workers_do_what_one_does_with_the_mean_gradient(shape: tuple[int, ...]) -> None:
    workers_are_one(shape=shape)


@pytest.mark.parametrize("mutant", [OwnFactor, Forgetful])
def test_workers_that_do_not_are_caught(mutant: type[DionExchange]) -> None:
    with pytest.raises(AssertionError):
        workers_are_one(mutant)


def orthonormal() -> None:
    """The update becomes sqrt(m / l) U V^T of a gradient of low rank that stays: all its singular values are alike, whatever
    those of the gradient are; and no update has a column of another length.
    """
    made = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(32, 8, generator=made)).Q
    right = torch.linalg.qr(torch.randn(48, 8, generator=made)).Q
    x = left @ torch.diag(2.0 ** -torch.arange(8.0)) @ right.T
    method, out = DionExchange(0.25, mu=0.95), None
    state = method.init(x)
    for step in range(60):
        (out,) = simulate([method.exchange(x.clone(), state, grace.Peer(0, 1, step))])
        state = out.state
        size = float(out.mean.norm())
        assert size == pytest.approx((8 * 32 / 48) ** 0.5, rel=1e-4), "as long as orthonormal columns"
    assert out is not None
    torch.testing.assert_close(out.mean, (32 / 48) ** 0.5 * left @ right.T, atol=0.02, rtol=0)
    singular = torch.linalg.svdvals(out.mean)
    torch.testing.assert_close(singular[:8], torch.full((8,), (32 / 48) ** 0.5), atol=0.02, rtol=0)
    assert float(singular[8:].max()) < 1e-5


def test_updates_are_orthonormal() -> None:
    orthonormal()


def unit_length(p: Tensor) -> Tensor:
    """A factor of unit length that is not orthogonal."""
    return unit_rows(p) * p.shape[1] ** 0.5


def as_they_are(p: Tensor) -> Tensor:
    return p


@pytest.mark.parametrize(
    ("name", "mutant", "got"),
    [
        ("orthonormalize", unit_length, "as long as orthonormal columns"),
        ("unit_rows", as_they_are, "as long as orthonormal columns"),  # P R^T, as long as the momentum
        # columns that belong to others
        ("project_columns", lambda momentum, p: project_columns(momentum, p).flip(0), "Tensor-likes are not close"),
    ],
)
def test_updates_that_are_not_orthonormal_are_caught(
    name: str, mutant: Callable[..., Tensor], got: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"grace.optim.dion.{name}", mutant)
    with pytest.raises(AssertionError, match=got):
        orthonormal()


def test_bytes_are_those_of_the_factors() -> None:
    method, x = DionExchange(0.25), torch.randn(32, 48, generator=torch.Generator().manual_seed(0))
    assert method.facts(x).payload == 4 * 8 * (32 + 48)
    sent: list[int] = []
    run = method.exchange(x.clone(), method.init(x), grace.Peer(0, 1, 0))
    op = next(run)
    assert isinstance(op, AllReduce)
    sent.append(op.buf.numel())
    sent.append(run.send(op.buf).buf.numel())
    assert sent == [8 * 32, 8 * 48]


def test_zeros_and_lost_directions_do_no_harm() -> None:
    method = DionExchange(0.5)
    zero = torch.zeros(8, 6)
    state = method.init(zero)
    (out,) = simulate([method.exchange(zero.clone(), state, grace.Peer(0, 1, 0))])
    assert not out.mean.any()
    assert torch.equal(out.state.right, state.right)
    thin = torch.zeros(8, 6)
    thin[0, 0] = 1
    for step in range(3):
        (out,) = simulate([method.exchange(thin.clone(), out.state, grace.Peer(0, 1, step))])
        assert bool(out.mean.isfinite().all())
        assert float(out.mean[0, 0]) > 0


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(40, 32), nn.Linear(32, 48))


def adam_for_the_rest(make: Callable[..., Dion] = Dion) -> None:
    model, other = build(), build()
    groups = [
        {"params": list(model[0].named_parameters("0")), "dion": False}, {"params": list(model[1].named_parameters("1"))},
    ]  # fmt: skip
    optimizer = make(groups, lr=0.01, rank_fraction=0.25)
    plain = torch.optim.AdamW([other[0].weight, other[1].bias], lr=0.01, betas=(0.9, 0.95), weight_decay=0.01)
    made = torch.Generator().manual_seed(0)
    for _ in range(5):
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=made)
            q.grad = p.grad.clone()
        optimizer.step()
        plain.step()
    torch.testing.assert_close(model[0].weight, other[0].weight, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model[1].bias, other[1].bias, atol=1e-6, rtol=1e-5)
    assert not torch.equal(model[1].weight, other[1].weight)
    assert "0.weight" not in optimizer.session.worker.state.debts()


def test_adamw_takes_what_is_no_matrix_and_what_it_is_given() -> None:
    adam_for_the_rest()


def test_it_finds_a_known_optimum() -> None:
    made = torch.Generator().manual_seed(1)
    goals = [torch.randn(24, 40, generator=made) for _ in range(2)]
    workers = Workers(Dion, 2, lambda: Point(24, 40), lr=1.0, weight_decay=0.0, rank_fraction=0.25, mu=0.5)
    for step in range(300):
        for optimizer in workers.optimizers:
            optimizer.param_groups[0]["lr"] = 1.0 * 0.98**step
        workers.step([[model.x.detach() - goal] for model, goal in zip(workers.models, goals, strict=True)])  # type: ignore[operator]
    best = sum(goals) / 2
    assert float((flat(workers.models[0]).view(24, 40) - best).norm() / best.norm()) < 0.05
