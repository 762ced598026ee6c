"""none, fp16, bf16, signsgd, efsignsgd, qsgd: the vectors that were worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import grace
from grace.contract.peer import Peer
from grace.errors import ConfigurationError
from grace.run import simulate
from tests.unit.methods.tools import Fixed, hex_of, roundtrip, row, wire_of


def average(method: Any, *xs: list[float], step: int = 0) -> list[float]:
    W = len(xs)
    outs = simulate([method.exchange(torch.tensor(x), None, Peer(r, W, step, "w")) for r, x in enumerate(xs)])
    return outs[0].mean.tolist()


# ---- none -----------------------------------------------------------------------------------------------------------
def test_none_is_the_plain_average():
    assert average(grace.method("none"), [1.0, -2.0], [3.0, 5.0]) == [2.0, 1.5]
    assert average(grace.method("none"), [0.1, 1e-40]) == torch.tensor([0.1, 1e-40]).tolist()
    assert grace.Identity().facts(10).payload == 40


# ---- casts ----------------------------------------------------------------------------------------------------------
def test_bf16_vectors():
    assert roundtrip(grace.BF16(), row(1.00390625, 3.14159274))[0] == [1.0, 3.140625]  # the tie goes to even
    assert hex_of(wire_of(grace.BF16(), row(1.0, -2.0))) == "803f00c0"


def test_fp16_vectors():
    halves, rest = roundtrip(grace.FP16(), row(1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-25, 65504.0))
    assert halves == [1.0, 1 + 2 * 2.0**-10, 0.0, 65504.0]
    assert rest == [2.0**-11, -(2.0**-11), 2.0**-25, 0.0]


def test_a_cast_with_a_rest_saturates():
    assert roundtrip(grace.FP16(), row(1e6, -1e6)) == ([65504.0, -65504.0], [1e6 - 65504, 65504 - 1e6])
    assert wire_of(grace.FP16(), row(1e6))[0].tolist() == [math.inf], "without one it does not hide the overflow"


@pytest.mark.parametrize(("cast", "bits"), [(grace.FP16(), 11), (grace.BF16(), 8)])
def test_relative_error_of_normal_numbers(cast: Any, bits: int):
    x = torch.ldexp(1 + torch.arange(1000) / 1000, torch.arange(1000) % 12)[None]
    decoded = torch.tensor([roundtrip(cast, x)[0]])
    assert float(((decoded - x) / x).abs().max()) <= 2.0**-bits
    assert cast.facts(1000).payload == 2000


def test_a_cast_under_a_memory_keeps_the_excess():
    method = grace.ErrorFeedback(grace.ScatterReduce(grace.FP16()))
    xs = [torch.full((4,), 1e5) for _ in range(2)]
    states = [method.init(x) for x in xs]
    total = torch.zeros(4)
    for step in range(3):
        zero = 1.0 if step == 0 else 0.0
        outs = simulate([method.exchange(x * zero, states[r], Peer(r, 2, step)) for r, x in enumerate(xs)])
        states = [out.state for out in outs]
        assert bool(outs[0].mean.isfinite().all())
        total += outs[0].mean
    torch.testing.assert_close(total, xs[0])


# ---- signsgd --------------------------------------------------------------------------------------------------------
def test_the_majority_wins():
    xs = [[1.0, -2.0, 0.5], [-1.0, -1.0, 3.0], [2.0, -4.0, -1.0]]
    for zero in ("parity", "abstain", "plus"):
        assert average(grace.method("signsgd", zero=zero), *xs) == [1.0, -1.0, 1.0]
    assert average(grace.method("signsgd"), [1.0], [-1.0]) == [0.0], "a tie"


def test_zeros_vote_by_parity():
    """bit = (i + rank + step) & 1: a zero of all of an even number of workers is zero, of an odd number alternates."""
    method = grace.method("signsgd")
    assert average(method, [0.0, 0.0], [0.0, 0.0]) == [0.0, 0.0]
    assert average(method, [0.0, 0.0]) == [-1.0, 1.0]
    assert average(method, [0.0, 0.0], step=1) == [1.0, -1.0]
    assert average(method, [0.0, 5.0], [0.0, 5.0], [0.0, -5.0]) == [-1.0, 1.0]


def test_other_zeros():
    assert average(grace.method("signsgd:zero=abstain"), [0.0, 1.0], [0.0, 0.0]) == [0.0, 1.0]
    assert average(grace.method("signsgd:zero=plus"), [0.0, -1.0], [0.0, 0.0]) == [1.0, 0.0]


def test_sign_bytes():
    x = row(1, -1, 1, 1, -1, -1, -1, 1, 1)
    assert hex_of(wire_of(grace.SignSGD(), x)) == "8d01"  # bits 1 0 1 1 0 0 0 1, 1
    assert (
        hex_of(wire_of(grace.SignSGD(zero="abstain"), row(1, 0, -1, 1, 1, -1)))
        == f"{2 + 3 + 0 + 2 * 27 + 2 * 81:02x}00"
    )
    for n in (1, 8, 9, 1000):
        assert grace.SignSGD().facts(n).payload == math.ceil(n / 8)
        assert grace.SignSGD(zero="abstain").facts(n).payload == math.ceil(n / 5)


# ---- efsignsgd ------------------------------------------------------------------------------------------------------
def test_scaled_signs_by_hand():
    assert roundtrip(grace.EFSignSGD(), row(1, -2, 3, -4)) == ([2.5, -2.5, 2.5, -2.5], [-1.5, 0.5, 0.5, -1.5])


def test_every_block_has_its_scale():
    decoded, _ = roundtrip(grace.EFSignSGD(block=2), row(1, -3, 10, 20, -7))
    assert decoded == [2, -2, 15, 15, -7]
    assert hex_of(wire_of(grace.EFSignSGD(block=2), row(1, -3, 10, 20, -7))) == "00000040000070410000e0400d"


@pytest.mark.parametrize(("n", "block"), [(1, 4096), (4096, 4096), (4097, 4096), (100, 7)])
def test_size_of_scaled_signs(n: int, block: int):
    facts = grace.EFSignSGD(block=block).facts(n)
    assert facts.payload == 4 * math.ceil(n / block) + math.ceil(n / 8)
    assert facts.contraction == 1 / min(n, block)


def test_the_error_does_not_depend_on_the_sign_of_zeros():
    x = row(0, 0, 3, -1, 0)
    for step in (0, 1):
        decoded, rest = roundtrip(grace.EFSignSGD(), x, Fixed(step=step))
        assert sum(r * r for r in rest) == pytest.approx(10 - 16 / 5)
        assert [abs(v) for v in decoded] == pytest.approx([0.8] * 5)


def test_zeros_decode_to_zeros():
    for compressor in (grace.EFSignSGD(), grace.QSGD(), grace.QSGD(levels=1), grace.TopK(), grace.Threshold()):
        assert roundtrip(compressor, torch.zeros(1, 9))[0] == [0.0] * 9


# ---- qsgd -----------------------------------------------------------------------------------------------------------
def test_qsgd_by_hand():
    """[3, -4], l2, s=4: N = 5, y = [2.4, 3.2]; u = [.3, .5] rounds the first up."""
    rng = Fixed(u=[0.3, 0.5])
    compressor = grace.QSGD(levels=4, norm="l2")
    assert roundtrip(compressor, row(3, -4), rng) == ([3.75, -3.75], [-0.75, -0.25])
    assert hex_of(wire_of(compressor, row(3, -4), rng)) == "0000a040" + "17"  # codes + 4: 7 and 1, four bits each


@pytest.mark.parametrize(
    ("knobs", "s", "width"),
    [({}, 7, 4), ({"bits": 2}, 1, 2), ({"bits": 8}, 127, 8), ({"bits": 16}, 32767, 16), ({"levels": 5}, 5, 4)],
)
def test_levels_and_sizes(knobs: dict[str, int], s: int, width: int):
    compressor = grace.QSGD(**knobs)  # type: ignore[arg-type]
    assert compressor.s == s
    for n in (1, 255, 256, 1000):
        codes = math.ceil(n / 5) if s == 1 else math.ceil(n * width / 8)
        assert compressor.facts(n).payload == 4 * math.ceil(n / 256) + codes


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_one_hot_is_exact(norm: Any):
    for s in (1, 2, 7, 127):
        assert roundtrip(grace.QSGD(levels=s, norm=norm), row(0, 0, -3, 0))[0] == pytest.approx([0, 0, -3, 0], rel=1e-6)


def test_grid_points_do_not_move():
    x = torch.arange(-8.0, 9.0)[None]
    assert roundtrip(grace.QSGD(levels=8), x)[0] == x[0].tolist()


def test_a_tiny_norm_is_sent_as_zero():
    decoded, rest = roundtrip(grace.QSGD(), torch.full((1, 5), 2.0**-130))
    assert decoded == [0.0] * 5
    assert rest == [2.0**-130] * 5


def test_huge_norms_do_not_overflow():
    for norm in ("linf", "l2"):
        decoded, _ = roundtrip(grace.QSGD(norm=norm), torch.full((1, 64), 3e38))  # type: ignore[arg-type]
        assert all(math.isfinite(v) for v in decoded)


def test_shrink_divides_by_one_plus_omega():
    plain, shrunk = (grace.QSGD(levels=4, norm="l2", shrink=s) for s in (False, True))
    omega = plain.facts(2).variance
    assert omega == min(2 / 16, math.sqrt(2) / 4)
    rng = Fixed(u=[0.3, 0.5])
    expected = [v / (1 + omega) for v in roundtrip(plain, row(3, -4), rng)[0]]
    assert roundtrip(shrunk, row(3, -4), rng)[0] == pytest.approx(expected)
    assert shrunk.facts(2).contraction == 1 / (1 + omega)
    assert not shrunk.facts(2).unbiased


# ---- knobs ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "knobs", "message"),
    [
        (grace.QSGD, {"bits": 1}, r"qsgd: bits=1 is out of range; legal: 2, 3, \.\.\., 16"),
        (grace.QSGD, {"bits": 17}, "qsgd: bits=17 is out of range"),
        (grace.QSGD, {"bits": 4.0}, r"qsgd: bits=4\.0 is out of range"),
        (grace.QSGD, {"levels": 0}, r"qsgd: levels=0 is out of range; legal: 1, 2, \.\.\., 32767"),
        (grace.QSGD, {"levels": 32768}, "qsgd: levels=32768 is out of range"),
        (grace.QSGD, {"bits": 4, "levels": 7}, r"give bits or levels, not both \(bits=4, levels=7\)"),
        (grace.QSGD, {"bucket": 0}, "qsgd: bucket=0 is out of range; legal: a whole number >= 1"),
        (grace.QSGD, {"bucket": 2.5}, r"qsgd: bucket=2\.5 is out of range"),
        (grace.QSGD, {"norm": "l1"}, "qsgd: norm='l1' is out of range; legal: 'linf', 'l2'"),
        (grace.QSGD, {"shrink": "no"}, "qsgd: shrink='no' is out of range; legal: True, False"),
        (grace.EFSignSGD, {"block": 0}, "efsignsgd: block=0 is out of range; legal: a whole number >= 1"),
        (grace.EFSignSGD, {"block": "8"}, "efsignsgd: block='8' is out of range"),
        (grace.SignSGD, {"zero": "minus"}, "signsgd: zero='minus' is out of range; legal: 'parity', 'abstain', 'plus'"),
    ],
)
def test_knobs_are_checked(make: Any, knobs: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        make(**knobs)
