from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import grace
from grace.contract.peer import Peer
from grace.errors import CompositionError, ConfigurationError, PayloadError
from grace.kernels.sparse_codes import wire as coded_wire
from grace.methods.common.powers_of_two import PowersOfTwo
from grace.methods.varsparse import VarSparse, VarSparseState
from grace.run.simulate import simulate

from .helpers import UGLY, check_corrupted, check_nothing_lost, check_rows, coded, gradients, shapes, steps, stream


def take_step(
    method: VarSparse, samples: list[float], state: VarSparseState | None = None
) -> tuple[float, VarSparseState]:
    """A worker's step of one number with these samples -> what was sent, and the state."""
    zs = [torch.tensor([z]) for z in samples]
    state = state or method.init(zs[0])
    for z in zs:
        state = method.observe(state, z, len(zs))
    mean = sum(zs) / len(zs)
    out = simulate([method.exchange(mean, state, Peer(0, 1))])[0]
    return float(out.mean), out.state


def test_vector_of_the_specification():
    sent, state = take_step(VarSparse(alpha=1.0), [1.0, 0.8])
    assert sent == 0.5
    assert float(state.r) == pytest.approx(0.4)
    assert float(state.d) == 0.0
    assert state.seen is None
    sent, state = take_step(VarSparse(alpha=1.0), [1.0, -0.8])
    assert sent == 0.0
    assert float(state.r) == pytest.approx(0.1)
    assert float(state.d) ** 2 == pytest.approx(0.40959)


def test_the_paper_drops_the_error():
    sent, state = take_step(VarSparse(alpha=1.0, keep_error=False), [1.0, 0.8])
    assert sent == 0.5
    assert float(state.r) == 0.0


@pytest.mark.parametrize(("alpha", "waits"), [(1.0, 1), (1.5, 1), (2.1, 2), (3.5, 3)])
def test_one_gradient_per_step(alpha: float, waits: int):
    """c equal gradients: r^2 = c^2 g^2, v = c g^2: sent once c > alpha."""
    outs, _ = steps(VarSparse(alpha, zeta=1.0), [[torch.tensor([1.0])]] * 4)
    assert [bool(out.mean.any()) for out in outs[: waits + 1]] == [False] * waits + [True]
    outs, _ = steps(VarSparse(alpha, zeta=1.0), [[torch.tensor([(-1.0) ** i])] for i in range(8)])
    assert not any(out.mean.any() for out in outs)


@pytest.mark.parametrize("samples", [1, 4])
def test_agrees_with_the_equations(samples: int):
    """r, v and the choice, as plain dense formulas in float64."""
    method, g = VarSparse(1.3, 0.9), torch.Generator().manual_seed(3)
    r = v = torch.zeros(50, dtype=torch.float64)
    state = method.init(torch.zeros(50))
    for step in range(12):
        zs = torch.randn(samples, 50, generator=g) + 0.3
        x = zs.mean(0)
        if samples > 1:
            for z in zs:
                state = method.observe(state, z, samples)
        out = simulate([method.exchange(x.clone(), state, Peer(0, 1, step))])[0]
        r = r + x.double()
        v = v + (zs.double() / samples).square().sum(0)
        sent = out.mean != 0
        assert not (sent & ~(r**2 > 1.3 * v * (1 - 1e-5))).any()
        top = math.floor(math.log2(r[r**2 > 1.3 * v].abs().max())) if bool((r**2 > 1.3 * v).any()) else 0
        assert (sent | ~(r**2 > 1.3 * v * (1 + 1e-5)) | (r.abs() < 0.75 * 2.0 ** (top - 7))).all()
        r = r - out.mean.double()
        v = torch.where(sent, 0.0, 0.9 * v)
        state = out.state
        torch.testing.assert_close(state.r.double(), r, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(state.d.double().square(), v, rtol=1e-4, atol=1e-6)


def test_powers_of_two():
    x = torch.tensor([1.0, -0.74, 0.76, 0.5, 0.0, 1.9, -0.01, 0.005, 2.0**-7, 2.0**-7 * 0.76, 2.0**-7 * 0.74])
    wire, decoded, _ = coded(PowersOfTwo(), x)
    small = 2.0**-7
    assert decoded.tolist() == [1.0, -0.5, 1.0, 0.5, 0.0, 1.0, -small, 0.0, small, small, 0.0]
    exponent, index, codes = coded_wire.split(wire, ("exponent", torch.uint8, 1), 4, 11, "auto")
    assert exponent.tolist() == [127]
    assert index.tolist() == [0, 1, 2, 3, 5, 6, 8, 9]
    assert codes.tolist() == [0, 8 | 1, 0, 1, 0, 8 | 7, 7, 7]


def test_powers_of_two_at_the_ends_of_the_range():
    for value in (1.5 * 2.0**127, 2.0**-126, -(2.0**-125)):
        assert coded(PowersOfTwo(), torch.tensor([value]))[1].abs() == 2.0 ** math.floor(math.log2(abs(value)))
    for value in (1e-45, 2.0**-127, 0.0):
        assert coded(PowersOfTwo(), torch.tensor([value]))[1] == 0
    for name, x in UGLY.items():
        _, decoded, rest = coded(PowersOfTwo(), x)
        assert (decoded.sign() * x.sign() >= 0).all(), name
        assert (rest.abs() <= x.abs()).all(), name
        torch.testing.assert_close(decoded + rest, x, msg=name)


def test_payload():
    x = shapes(100_000)["sparse"]
    wire, decoded, _ = coded(PowersOfTwo("raw"), x)
    k = int((decoded != 0).sum())
    assert wire.shape[1] == 5 + -(-4 * k // 8) + -(-17 * k // 8)
    assert 8 * coded(PowersOfTwo(), x)[0].shape[1] / k < 12.8  # the paper: 32
    for index in ("auto", "rice", "bitmap"):
        check_rows(PowersOfTwo(index))
        check_corrupted(PowersOfTwo(index))
    wire[0, 4] = 255
    with pytest.raises(PayloadError, match="exponent"):
        PowersOfTwo("raw").decompress_add_(wire, torch.zeros(1, 100_000), 1.0, stream())


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_nothing_is_lost(world: int):
    check_nothing_lost(VarSparse(), world)
    check_nothing_lost(VarSparse(alpha=0.1), world)


@pytest.mark.parametrize("value", [1e38, 1e-30, -3e-20])
def test_huge_and_tiny_gradients(value: float):
    outs, states = steps(VarSparse(), [[torch.full((3,), value)] * 2] * 2)
    assert torch.equal(outs[0].mean, torch.zeros(3))
    ratio = outs[1].mean / (2 * value)
    assert ((ratio > 0.5) & (ratio <= 1)).all()
    assert states[0].r.isfinite().all()


def test_odd_and_homogeneous():
    given = gradients(4, 2, 30)

    def run(factor: float) -> Tensor:
        return torch.stack([out.mean for out in steps(VarSparse(), [[x * factor for x in xs] for xs in given])[0]])

    plain = run(1.0)
    assert plain.any()
    assert torch.equal(run(-1.0), -plain)
    assert torch.equal(run(2.0**-30), plain * 2.0**-30)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_not_finite(bad: float):
    method = VarSparse()
    _, states = steps(method, gradients(2, 2, 10))
    before = [(s.r.clone(), s.d.clone()) for s in states]
    (out,), states = steps(method, [[torch.ones(10), torch.full((10,), bad)]], states, first=2)
    assert not out.finite
    assert out.mean.isnan().all()
    assert all(torch.equal(s.r, r) and torch.equal(s.d, d) for s, (r, d) in zip(states, before, strict=True))
    state = method.observe(states[0], torch.full((10,), bad), 2)
    out = simulate([method.exchange(torch.full((10,), bad), state, Peer(0, 1))])[0]
    assert out.state.seen is None
    assert torch.equal(out.state.d, before[0][1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype):
    outs, [state] = steps(VarSparse(), [[torch.tensor([1.0, -3.0], dtype=dtype)]] * 2)
    assert outs[1].mean.dtype == dtype
    assert outs[1].mean.tolist() == [2.0, -4.0]
    assert state.r.tolist() == [0.0, -2.0]


def test_empty_and_shaped():
    outs, _ = steps(VarSparse(), [[torch.zeros(0, 3)]])
    assert outs[0].mean.shape == (0, 3)
    outs, _ = steps(VarSparse(), gradients(2, 2, 4, 5))
    assert outs[0].mean.shape == (4, 5)


def test_knobs():
    for knobs in ({"alpha": 0}, {"alpha": math.inf}, {"zeta": 0}, {"zeta": 1.1}, {"keep_error": 1}, {"index": "zip"}):
        with pytest.raises(ConfigurationError):
            VarSparse(**knobs)
    with pytest.raises(CompositionError):
        grace.ErrorFeedback(VarSparse())


def test_a_mean_too_large_for_float16_leaves_the_state_as_it_was():
    method, x = VarSparse(), torch.full((3,), 6e4, dtype=torch.float16)
    outs, states = steps(method, [[x.clone()], [x.clone()]])
    assert [out.finite for out in outs] == [True, False]
    assert torch.equal(states[0].r, x.float())
    assert torch.equal(states[0].d, steps(method, [[x.clone()]])[1][0].d)
