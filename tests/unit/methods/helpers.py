"""Shared parts of the tests of several methods: inputs, and the steps of simulated workers."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.lent import Lent
from grace.contract.method import Exchanged, Method
from grace.contract.peer import Peer
from grace.errors import PayloadError
from grace.random import Stream
from grace.run.simulate import simulate

UGLY = {
    "zeros": torch.zeros(37),
    "one": torch.tensor([-3.0]),
    "one zero": torch.zeros(1),
    "negative": -torch.arange(1.0, 30.0),
    "ties": torch.tensor([2.0, -2.0] * 13),
    "constant": torch.full((33,), 0.7),
    "huge": torch.linspace(-1, 1, 41).sign() * 3e38,
    "denormal": torch.linspace(-1, 1, 41) * 1e-42,
    "mixed": torch.tensor([1e38, -1e-38, 0.0, 1e-45, -3e38, 1.0] * 4),
}


def stream(rank: int | None = 0, step: int = 0) -> Stream:
    return Stream(3, "test", "x", rank, step)


def shapes(n: int = 4000) -> dict[str, Tensor]:
    """The inputs that bounds are measured on."""
    g = torch.Generator().manual_seed(11)
    gauss = torch.randn(n, generator=g)
    heavy = torch.randn(n, generator=g).mul(2).exp() * gauss.sign()
    one_hot = torch.zeros(n)
    one_hot[n // 3] = -2.5
    sparse = gauss * (torch.rand(n, generator=g) < 0.01)
    return {
        "gauss": gauss,
        "heavy": heavy,
        "one-hot": one_hot,
        "constant": torch.full((n,), -1.5),
        "sparse": sparse,
        "negative": -heavy.abs(),
    }


def coded(compressor: Compressor, x: Tensor, step: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """x ``[n]`` -> wire ``[1, w]``, what it decodes to ``[n]``, and the rest ``[n]``."""
    rows = x.clone().view(1, -1)
    rank = None if compressor.randomness == "shared" else 0
    wire = compressor.compress_(rows, stream(rank, step), True)
    out = torch.zeros_like(rows)
    compressor.decompress_add_(wire, out, 1.0, stream(None, step))
    return wire, out[0], rows[0]


def check_contraction(compressor: Compressor) -> None:
    for name, x in shapes().items():
        bound = compressor.facts(x.numel()).contraction
        assert bound is not None
        decoded = coded(compressor, x)[1]
        error = (x.double() - decoded.double()).square().sum() / x.double().square().sum()
        assert error <= (1 - bound) * (1 + 1e-5), name


def check_ugly(compressor: Compressor) -> None:
    """Every input decodes to finite numbers, x = decoded + rest, zeros to zeros, and padding is ignored."""
    for name, x in UGLY.items():
        wire, decoded, rest = coded(compressor, x)
        assert decoded.isfinite().all(), name
        assert rest.isfinite().all(), name
        atol = 1e-44 + 1e-6 * float(x.abs().max())  # the rest is rounded to float32
        torch.testing.assert_close(decoded.double() + rest.double(), x.double(), rtol=0, atol=atol, msg=name)
        if not x.any():
            assert not decoded.any()
        if compressor.varies:
            again = torch.zeros(1, x.numel())
            compressor.decompress_add_(torch.nn.functional.pad(wire, (0, 13)), again, 1.0, stream(None))
            assert torch.equal(again[0], decoded), name


def check_rows(compressor: Compressor, n: int = 50) -> None:
    """Several rows of different sizes in one wire, and a scale."""
    rows = torch.stack([torch.zeros(n), torch.linspace(-3, 5, n), -torch.arange(1.0, n + 1)])
    rest = rows.clone()
    rank = None if compressor.randomness == "shared" else 0
    wire = compressor.compress_(rest, stream(rank), True)
    out = torch.ones_like(rows)
    compressor.decompress_add_(wire, out, -2.0, stream(None))
    torch.testing.assert_close((1 - out) / 2, rows - rest, rtol=1e-5, atol=1e-5)


def check_corrupted(compressor: Compressor, n: int = 60, tries: int = 300) -> None:
    """Flipped, cut or random bytes: a PayloadError or numbers, nothing else, and nothing outside of the output."""
    dice = random.Random(5)
    x = torch.randn(n, generator=torch.Generator().manual_seed(1))
    wire = coded(compressor, x)[0].view(torch.uint8)
    refused = 0
    for _ in range(tries):
        bad = wire.clone()
        for _ in range(dice.randint(1, 4)):
            bad[0, dice.randrange(bad.shape[1])] = dice.randrange(256)
        if dice.random() < 0.5:
            bad = bad[:, : dice.randrange(bad.shape[1])]
        room = torch.zeros(3, n)
        try:
            compressor.decompress_add_(bad, room[1:2], 1.0, stream(None))
        except PayloadError:
            refused += 1
        assert not room[0].any()
        assert not room[2].any()
    assert refused
    with pytest.raises(PayloadError):
        compressor.decompress_add_(wire[:, :2], torch.zeros(1, n), 1.0, stream(None))


def steps(
    method: Method,
    gradients: list[list[Tensor]],
    states: list | None = None,
    *,
    keep_rest: bool = False,
    first: int = 0,
) -> tuple[list[Exchanged], list]:
    """gradients[step][rank] -> the results of rank 0 after agreement was checked, and all states at the end."""
    world = len(gradients[0])
    states = states or [method.init(gradients[0][0]) for _ in range(world)]
    out = []
    before = torch.get_rng_state()
    for step, xs in enumerate(gradients, start=first):
        peers = [Peer(rank, world, step, "x", 3, lent=Lent(keep_rest=keep_rest)) for rank in range(world)]
        outs = simulate([method.exchange(x.clone(), states[p.rank], p) for x, p in zip(xs, peers, strict=True)])
        for exchanged in outs:
            assert torch.equal(exchanged.mean.view(torch.uint8), outs[0].mean.view(torch.uint8)), "agreement"
        if keep_rest and outs[0].finite:
            sent = sum((x - exchanged.rest).double() for x, exchanged in zip(xs, outs, strict=True)) / world
            torch.testing.assert_close(sent, outs[0].mean.double(), rtol=1e-4, atol=1e-5)
        states = [exchanged.state for exchanged in outs]
        out.append(Exchanged(outs[0].mean.clone(), None, None, outs[0].finite))
    assert torch.equal(before, torch.get_rng_state())
    return out, states


def gradients(count: int, world: int, *shape: int, seed: int = 7) -> list[list[Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=g) for _ in range(world)] for _ in range(count)]


def check_nothing_lost(method: Method, world: int, count: int = 5) -> None:
    """Sum of means + average of what is owed = sum of the average gradients."""
    given = gradients(count, world, 9, 13)
    outs, states = steps(method, given)
    owed = sum(method.owed(state).double() for state in states) / world
    total = sum(out.mean.double() for out in outs) + owed
    torch.testing.assert_close(total, sum(torch.stack(xs).double().mean(0) for xs in given), rtol=1e-4, atol=1e-4)


def check_exchange(method: Method, world: int) -> None:
    """Agreement and conservation without a memory."""
    steps(method, gradients(2, world, 9, 13), keep_rest=True)
