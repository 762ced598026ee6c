from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import grace
from grace.contract.lent import Lent
from grace.contract.peer import Peer
from grace.errors import CompositionError, ConfigurationError
from grace.kernels import Drawing
from grace.methods import BlockRandomK
from grace.methods.common.blocks import Blocks
from grace.run.simulate import simulate
from grace.transports.traced import Tracer

from . import sparse_checks as checks

MODES = ("random", "cyclic", "clt")


def test_vector_of_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drawing, "order", staticmethod(lambda *_: torch.tensor([2, 0, 3, 1])))
    x = torch.arange(1.0, 9.0)
    sent = [(4, 6), (0, 2), (6, 8), (2, 4), (4, 6)]
    for step, (low, high) in enumerate(sent):
        (out,) = checks.run(BlockRandomK(0.25, 2, "cyclic"), [x], step=step)
        want = torch.zeros(8)
        want[low:high] = x[low:high]
        assert torch.equal(out.mean, want)
        assert torch.equal(out.rest, x - want)


@pytest.mark.parametrize(
    ("n", "block", "ratio"), [(8, 2, 0.25), (103, 10, 0.25), (103, 10, 0.3), (1000, 1, 0.01), (5, 9, 0.1)]
)
def test_cyclic_sends_everything_once_in_any_cycle(n: int, block: int, ratio: float) -> None:
    count = -(-n // block)
    cycle = -(-count // max(1, -int(-ratio * count // 1)))
    for start in (0, 3):
        times = torch.zeros(n)
        for step in range(start, start + cycle):
            (out,) = checks.run(BlockRandomK(ratio, block, "cyclic"), [torch.ones(n)], step=step)
            times += out.mean
        assert torch.equal(times, torch.ones(n))


def test_order_is_a_permutation_and_differs_between_seeds() -> None:
    orders = [Drawing.order(50, replace(checks.stream(seed), rank=None), torch.device("cpu")) for seed in range(3)]
    assert all(torch.equal(order.sort().values, torch.arange(50)) for order in orders)
    assert not torch.equal(orders[0], orders[1])
    assert Drawing.order(1, checks.stream(), torch.device("cpu")).tolist() == [0]


def test_random_is_unbiased_also_in_the_short_block() -> None:
    x = torch.randn(103, generator=checks.generator())
    compressor = Blocks(0.3, 10, cyclic=False, scaled=True)  # 4 of 11 blocks
    draws = 1024
    total = sum(checks.decoded(compressor, x, checks.stream(seed)).double() for seed in range(draws))
    omega = 11 / 4 - 1
    assert compressor.facts(103).variance == pytest.approx(omega)
    assert bool(((total / draws - x.double()).abs() <= 6 * x.double().abs() * (omega / draws) ** 0.5).all())


def test_random_unscaled_contracts() -> None:
    checks.check_contraction(Blocks(0.3, 10, cyclic=False, scaled=False), draws=200)
    assert Blocks(0.3, 10, False, False).facts(103).contraction == pytest.approx(4 / 11)


@pytest.mark.parametrize("mode", MODES)
def test_exact_at_ratio_1(mode: str) -> None:
    for _, x in checks.edges():
        (out,) = checks.run(BlockRandomK(1.0, 10, mode), [x])
        assert torch.equal(out.mean, x)


@pytest.mark.parametrize("mode", MODES)
def test_edges(mode: str) -> None:
    for _, x in checks.edges():
        (out,) = checks.run(BlockRandomK(0.1, 4, mode, scale=False), [x])
        assert torch.equal(out.mean.double() + out.rest.double(), x.double())
    (out,) = checks.run(BlockRandomK(0.1, 4, mode), [torch.zeros(0)])
    assert out.mean.numel() == 0


def test_clt_takes_the_positions_of_one_rank_in_turn() -> None:
    xs = [torch.tensor([9.0, 0, 1, 2]), torch.tensor([1.0, 2, 3, -9])]
    for step, want in enumerate(([5.0, 0, 0, 0], [0, 0, 0, -3.5], [5.0, 0, 0, 0])):
        outs = checks.run(BlockRandomK(0.25, mode="clt"), xs, step=step)
        assert all(out.mean.tolist() == want for out in outs)
        assert outs[0].rest.tolist() == [0 if w else v for v, w in zip(xs[0].tolist(), want, strict=True)]


@pytest.mark.parametrize("mode", MODES)
def test_declared_traffic_is_traced_traffic(mode: str) -> None:
    method = BlockRandomK(0.1, 10, mode, scale=False)
    for world in (1, 2, 3):
        for step in range(12):  # with the short block and the short end of a cycle
            like = torch.empty(101, device="meta")
            peers = [Peer(rank, world, step, "x", lent=Lent(keep_rest=True)) for rank in range(world)]
            tracers = [Tracer(rank, world) for rank in range(world)]
            simulate([t.trace(method.exchange(torch.randn(101), None, p)) for t, p in zip(tracers, peers, strict=True)])
            assert [t.traffic for t in tracers] == [method.traffic(like, peer) for peer in peers]


@pytest.mark.parametrize("mode", MODES)
def test_exchange(mode: str) -> None:
    checks.check_exchange(BlockRandomK(0.2, 10, mode))
    checks.check_exchange(BlockRandomK(0.2, 10, mode, scale=False))
    checks.check_nothing_lost(grace.method("blockrandomk", ratio=0.2, block=10, mode=mode))


def test_knobs() -> None:
    for knobs in ({"ratio": 0}, {"block": 0}, {"mode": "x"}, {"scale": 1}, {"mode": "cyclic", "scale": True}):
        with pytest.raises(ConfigurationError, match="blockrandomk"):
            BlockRandomK(**knobs)
    with pytest.raises(CompositionError, match="grow without bound"):
        grace.method("blockrandomk", scale=True)
    assert grace.method("blockrandomk", memory="none").facts(torch.empty(1 << 20, device="meta")).payload == 1 << 16
