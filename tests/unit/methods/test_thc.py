from __future__ import annotations

import itertools
import math

import pytest
import torch

import grace
from grace.contract.lent import Lent
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.errors import ConfigurationError, PayloadError
from grace.kernels import decode_entries, rotate_blocks, rotate_blocks_back
from grace.kernels.lookup_table.reference import round_to_table
from grace.methods.thc import THC
from grace.run.simulate import simulate
from tests.unit.methods import quant_checks as check


def normal_density(v: torch.Tensor, method: THC) -> torch.Tensor:
    y = (v * 2 / method.table[-1] - 1) * method.reach
    return (-y.square() / 2).exp()


def expected_variance(table: tuple[int, ...], method: THC) -> float:
    """The integral of (hi - v)(v - lo) phi, by quadrature."""
    v = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000 * method.table[-1]
    t = torch.tensor(table, dtype=torch.float64)
    low = torch.bucketize(v, t, right=True) - 1
    return float(((t[low + 1] - v) * (v - t[low]) * normal_density(v, method)).sum())


@pytest.mark.parametrize("bits", [3, 4])
def test_no_symmetric_table_that_differs_in_one_pair_is_better(bits: int) -> None:
    method = THC(bits=bits)
    best = expected_variance(method.table, method)
    g = method.table[-1]
    for i in range(1, len(method.table) // 2):
        for move in (-1, 1):
            other = list(method.table)
            other[i] += move
            other[-1 - i] = g - other[i]
            if all(a < b for a, b in itertools.pairwise(other)):
                assert expected_variance(tuple(other), method) > best


def test_the_worked_example() -> None:
    method = THC()
    assert abs(method.reach - 2.1538747) < 1e-6
    bound, table, g = torch.tensor([[method.reach]]), method.table, method.table[-1]  # |y| / sqrt(h) = 1

    def entry(y: float, u: float) -> int:
        return table[int(round_to_table(torch.tensor([[y]]), bound, method.block, table, torch.tensor([[u]])))]

    assert [entry(0.5, 0.5), entry(-1.0, 0.9)] == [19, 7]
    for y, v in ((0.5, 18.482), (-1.0, 8.036)):  # which v is, shows where u turns from up to down
        low, high = max(x for x in table if x <= v), min(x for x in table if x > v)
        up, margin = (v - low) / (high - low), 1e-3 / (high - low)
        assert [entry(y, up - margin), entry(y, up + margin)] == [high, low]
    sums, mean = torch.tensor([[26]] * 2, dtype=torch.uint8), torch.empty(1, 1)  # of two workers, of the one number
    decode_entries(sums, 8, g, bound, mean, method.block, check.peer().shared("THC"))
    torch.testing.assert_close(mean.abs(), torch.tensor([[0.2872]]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", [THC(), THC(bits=3), THC(bits=2, uniform=True), THC(clip=1 / 512, uniform=True)])
def test_rounding_is_unbiased_between_neighbors(method: THC) -> None:
    table, g = torch.tensor(method.table, dtype=torch.float32), method.table[-1]

    def rounded(v: torch.Tensor) -> torch.Tensor:
        y, u = v.view(1, -1) / (g / 2) - 1, check.peer().private("THC").uniform(v.numel())
        return table[round_to_table(y, torch.ones(1, 1), v.numel(), method.table, u.view(1, -1)).long()]

    assert torch.equal(rounded(table), table.view(1, -1))
    v = torch.linspace(0, g, 37).repeat(20_000, 1)
    got = rounded(v).view(v.shape)
    assert float((got - v).abs().max()) < float(table.diff().max())
    assert float((got.mean(0) - v[0]).abs().max()) <= 6 * float(table.diff().max()) / 2 / math.sqrt(20_000)


def run(method: Method[None], xs: list[torch.Tensor], step: int = 0) -> list[torch.Tensor]:
    W = len(xs)
    peers = [Peer(r, W, step, "tensor", 7, lent=Lent(keep_rest=True)) for r in range(W)]
    outs = simulate([method.exchange(x.clone(), None, p) for x, p in zip(xs, peers, strict=True)])
    return [outs[0].mean, *(out.rest for out in outs)]


def test_the_mean_is_as_far_off_as_gaussian_numbers_are_and_unbiased_but_for_clipping() -> None:
    n, W, rounds = 1024, 4, 40
    xs = [x * 1.0 for x in check.gradients(W, n, 0)]
    true = torch.stack(xs).mean(0)
    for bits in (4, 3):
        method = THC(bits=bits)
        g, t = method.table[-1], method.reach
        width = g / 200_000  # of the steps of the quadrature
        rounding = expected_variance(method.table, method) * width * (2 * t / g) ** 3 / math.sqrt(2 * math.pi)
        beyond = t + torch.arange(0, 6, 1e-4, dtype=torch.float64)
        clipping = (
            2 * float(((beyond - t).square() * (-beyond.square() / 2).exp()).sum()) * 1e-4 / math.sqrt(2 * math.pi)
        )
        means = torch.stack([run(method, xs, step)[0] for step in range(rounds)])
        single = float((means - true).square().sum(1).mean() / torch.stack(xs).square().sum(1).mean())
        assert abs(single * W / (rounding + clipping) - 1) < 0.1
        assert float((means.mean(0) - true).square().sum()) < 0.2 * float((means - true).square().sum(1).mean())


def test_a_rest_is_the_number_minus_its_own_decoding() -> None:
    x = check.gradients(1, 300, 0)
    mean, rest = run(THC(block=64), x)
    torch.testing.assert_close(x[0] - rest, mean, rtol=0, atol=1e-6)
    shared = check.peer().shared("THC")
    levels = rotate_blocks(mean.view(1, -1), 64, shared)
    torch.testing.assert_close(rotate_blocks_back(levels, 64, shared)[0], mean, rtol=0, atol=1e-5)


def test_zeros_ones_and_edges() -> None:
    for n in (1, 2, 19, 1030):
        for W in (1, 3):
            assert not run(THC(), [torch.zeros(n)] * W)[0].any()
            for size in (1e38, 1e30, 1e-30, 1e-41):
                for part in run(THC(), [x.clamp(-1, 1) * size for x in check.gradients(W, n, 0)]):
                    assert bool(part.isfinite().all())
    assert run(THC(), [torch.zeros(0), torch.zeros(0)])[0].shape == (0,)
    mixed = run(THC(block=16), [torch.cat((torch.ones(16), torch.zeros(16)))] * 2)[0]
    assert not mixed[16:].any()


def test_homogeneous_for_powers_of_two() -> None:
    xs = check.gradients(3, 100, 0)
    assert torch.equal(run(THC(), [x * 2.0**-9 for x in xs])[0], run(THC(), xs)[0] * 2.0**-9)


@pytest.mark.parametrize("knobs", ["", "block=16", "bits=3,block=32", "bits=2,uniform=true,block=32", "clip=0.001"])
def test_exchanges(knobs: str) -> None:
    check.assert_agrees_and_conserves(f"thc:{knobs}".rstrip(":"))
    check.assert_loses_nothing(f"thc:{knobs}".rstrip(":"))


def test_nonfinite_is_agreed_on_before_anything_else_travels() -> None:
    check.assert_agrees_on_nonfinite("thc")


def test_bits() -> None:
    n = 1 << 16
    norms = 32 / 1024
    assert (
        check.bits_per_element("thc", n) == norms + 4 / 2 + 6 / 2
    )  # W = 2: half of the codes, and of the sums (60 < 64)
    for W, sums in ((1, 5), (2, 6), (4, 7), (8, 8), (9, 9)):
        traffic = THC().traffic(torch.empty(n), Peer(0, W))
        assert traffic is not None
        assert traffic.rounds == 3
        chunk = math.ceil(n / W)
        assert traffic.received == (W - 1) * (math.ceil(chunk * 4 / 8) + math.ceil(chunk * sums / 8)) + math.ceil(
            2 * (W - 1) * 4 * (n / 1024) / W
        )


def test_a_sum_that_nobody_can_reach_is_refused() -> None:
    exchange = THC().exchange(torch.ones(10), None, Peer(0, 2))
    op = next(exchange)
    op = exchange.send(op.buf)
    op = exchange.send(op.buf)
    with pytest.raises(PayloadError, match="sums"):
        exchange.send(torch.full((2, *op.buf.shape), 255, dtype=torch.uint8))


def test_state_is_whole_when_a_collective_fails() -> None:
    x = torch.ones(10)
    exchange = THC().exchange(x.clone(), None, Peer(0, 2, lent=Lent(keep_rest=True)))
    next(exchange)
    with pytest.raises(RuntimeError, match="gone"):
        exchange.throw(RuntimeError("gone"))


def test_knobs() -> None:
    check.assert_refuses_knobs(THC, uniform=[1], bits=[1, 5, 4.0], clip=[0, 0.5], block=[0, 3])
    with pytest.raises(ConfigurationError, match="uniform"):
        THC(bits=2)
    assert grace.method("thc:bits=3") == grace.ErrorFeedback(THC(bits=3))
