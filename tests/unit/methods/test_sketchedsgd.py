from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import grace
from grace.contract.lent import Lent
from grace.contract.peer import Peer
from grace.errors import CompositionError, ConfigurationError, PayloadError
from grace.kernels import PRIME, hash_coefficients, polynomial_hash, sketch_add_, sketch_hashes, sketch_query
from grace.methods.common.count_sketch import CountSketch
from grace.methods.sketchedsgd import SketchedSGD
from grace.run.simulate import simulate
from grace.transports.traced import Tracer

from .helpers import UGLY, check_nothing_lost, coded, gradients, steps, stream

CELLS, SIGNS = torch.tensor([[0, 1, 0, 1]]), torch.tensor([[1, 1, -1, -1]])
VECTOR = torch.tensor([1.0, 10.0, 2.0, -1.0])


def test_sketch_of_the_specification():
    sketch = torch.zeros(1, 1, 2)
    sketch_add_(sketch, VECTOR[None], CELLS, SIGNS)
    assert sketch.tolist() == [[[-1.0, 11.0]]]
    assert sketch_query(sketch, CELLS, SIGNS).tolist() == [[-1.0, 11.0, 1.0, -11.0]]


def test_vector_of_the_specification(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "grace.kernels.count_sketches.reference.sketch_hashes", lambda *_: iter([(slice(0, 4), CELLS, SIGNS)])
    )
    method = SketchedSGD(ratio=0.25, rows=1, cols=2, p2=2)
    (out,), _ = steps(method, [[VECTOR]], keep_rest=True)
    assert out.mean.tolist() == [0.0, 10.0, 0.0, 0.0]


def test_hashes_are_polynomials():
    coefficients = hash_coefficients(stream().words(20), 3)
    assert coefficients.shape == (10, 4)
    keys = [0, 1, 77, 123_456_789, PRIME - 1]
    got = polynomial_hash(coefficients, torch.tensor(keys)).tolist()
    for (a, b, c, d), row in zip(coefficients.tolist(), got, strict=True):
        assert row == [(a * i**3 + b * i**2 + c * i + d) % PRIME for i in keys]


def test_hashes_are_even():
    cells, signs = torch.zeros(5, 64), torch.zeros(5)
    for _, cell, sign in sketch_hashes(stream().words(15), 5, 300_000, 64):
        cells.scatter_add_(1, cell, torch.ones_like(cell, dtype=torch.float32))
        signs += sign.sum(1)
    assert (cells / (300_000 / 64) - 1).abs().max() < 0.1  # six standard deviations
    assert (signs.abs() < 6 * math.sqrt(300_000)).all()


def test_sketch_is_linear():
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-1000, 1000, (1, 5000), generator=g).float() for _ in range(2))
    sketch = CountSketch(5, 64)
    wires = [sketch.compress_(v.clone(), stream(None), False) for v in (x, y, x + y)]
    assert torch.equal(wires[0] + wires[1], wires[2])


def test_sketch_is_odd_homogeneous_and_finite():
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    wire, decoded, rest = coded(CountSketch(5, 100), x)
    assert wire.shape == (1, 500)
    torch.testing.assert_close(decoded + rest, x)
    assert torch.equal(coded(CountSketch(5, 100), -x)[1], -decoded)
    assert torch.equal(coded(CountSketch(5, 100), x * 2.0**-40)[1], decoded * 2.0**-40)
    for name, ugly in UGLY.items():
        assert coded(CountSketch(3, 4), ugly)[1].isfinite().all(), name
    with pytest.raises(PayloadError):
        CountSketch(3, 4).decompress_add_(torch.zeros(1, 11), torch.zeros(1, 9), 1.0, stream(None))


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_finds_heavy_hitters_of_the_mean(world: int):
    """Numbers that stand out in the mean only, not in the sum of what each worker would have chosen."""
    n, planted = 20_000, torch.arange(5) * 3911 + 5
    xs = [g[0] for g in gradients(world, 1, n, seed=3)]
    noise = sum(xs) / world
    for x in xs:
        x.sub_(noise)  # the mean is now zero, and no worker's gradient is
        x[planted] += torch.linspace(3, 6, 5) * (-1.0) ** planted
    (out,), _ = steps(SketchedSGD(ratio=0.001), [xs], keep_rest=True)
    assert torch.equal(out.mean.abs().topk(5).indices.sort().values, planted)
    torch.testing.assert_close(out.mean[planted], (sum(xs) / world)[planted])


def test_sends_exact_means_and_keeps_the_others():
    x = torch.randn(4000, generator=torch.Generator().manual_seed(5))
    peer = Peer(0, 1, lent=Lent(keep_rest=True))
    out = simulate([SketchedSGD(0.005).exchange(x.clone(), None, peer)])[0]
    sent = out.mean != 0
    assert int(sent.sum()) == 20
    assert torch.equal(out.mean[sent], x[sent])
    assert torch.equal(out.mean + out.rest, x)


@pytest.mark.parametrize("n", [1, 2, 9, 700, 1500])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_agreement_conservation_and_traffic(n: int, world: int):
    method = SketchedSGD(ratio=0.01)
    steps(method, gradients(3, world, n), keep_rest=True)
    tracers = [Tracer(rank, world) for rank in range(world)]
    xs = gradients(1, world, n)[0]
    simulate([t.trace(method.exchange(x, None, Peer(t.rank, world))) for t, x in zip(tracers, xs, strict=True)])
    for rank, tracer in enumerate(tracers):
        assert tracer.traffic == method.traffic(torch.empty(n), Peer(rank, world))
    k = -(-n // 100)
    assert method.facts(torch.empty(n)).payload == (4 * 24 * k if 24 * k <= n else 4 * n)


def test_bits_per_element():
    n = 1_000_000
    assert 8 * SketchedSGD().facts(torch.empty(n, device="meta")).payload / n == pytest.approx(0.768)


@pytest.mark.parametrize("world", [1, 3])
def test_nothing_is_lost(world: int):
    check_nothing_lost(grace.ErrorFeedback(SketchedSGD(0.02)), world, count=3)
    check_nothing_lost(grace.method("sketchedsgd:ratio=0.02,momentum=0,masking=false"), world, count=3)


def test_momentum_is_masked_on_the_final_support():
    x = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    (out,), [((u, v), _)] = steps(grace.method("sketchedsgd:ratio=0.01"), [[x]])
    sent = out.mean != 0
    assert int(sent.sum()) == 20
    for memory in (u, v):
        assert torch.equal(memory, torch.where(sent, 0.0, x))


@pytest.mark.parametrize("n", [10, 2000])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_not_finite(n: int, bad: float):
    xs = [torch.ones(n), torch.ones(n)]
    xs[1][n // 2] = bad
    (out,), states = steps(grace.method("sketchedsgd:ratio=0.001"), [xs])
    assert not out.finite
    assert out.mean.isnan().all()
    assert all(not u.any() and not v.any() for (u, v), _ in states)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype):
    def planted(rank: int) -> Tensor:
        x = torch.zeros(2000, dtype=dtype)
        x[3], x[1200] = 1.5, -2.5 * (rank + 1)
        return x

    (out,), _ = steps(SketchedSGD(0.001), [[planted(0), planted(1)]], keep_rest=True)
    assert out.mean.dtype == dtype
    assert out.mean[3] == 1.5
    assert out.mean[1200] == -3.75


def test_knobs():
    for knobs in ({"ratio": 0}, {"rows": 4}, {"rows": 0}, {"cols": 0}, {"cols": 1.5}, {"p2": 0}):
        with pytest.raises(ConfigurationError):
            SketchedSGD(**knobs)
    with pytest.raises(CompositionError):
        grace.method("sketchedsgd:communicator=allgather")
