from __future__ import annotations

import pytest
import torch

import grace
from grace.compute import backends
from grace.methods.minmax import MinMax
from tests.unit.methods import quant_checks as check


def test_the_worked_example() -> None:
    compressor = MinMax(bits=2)  # l = -1, d = 1: codes 0, 2 1/2, 1 1/4, 3
    x = torch.tensor([[-1, 1.5, 0.25, 2]])
    with backends.using("reference"):  # the native kernel draws its own numbers
        up = compressor.compress_(x.clone(), check.Given([0.9, 0.4, 0.2, 0.9]), False)
        down = compressor.compress_(x.clone(), check.Given([0.0, 0.6, 0.3, 0.0]), False)
    assert up[0, :8].tolist() == list(torch.tensor([-1.0, 1.0]).numpy().tobytes())
    assert up[0, 8:].tolist() == [0 | 3 << 2 | 2 << 4 | 3 << 6]
    assert check.decoded(compressor, up, 4).tolist() == [[-1, 2, 1, 2]]
    assert check.decoded(compressor, down, 4).tolist() == [[-1, 1, 0, 2]]
    nearest = MinMax(bits=2, nearest=True)
    assert check.applied(nearest, x[0]).tolist() == [-1, 2, 0, 2]  # a tie goes up


def test_constants_are_exact_and_so_are_the_ends_of_blocks() -> None:
    for bits in range(2, 9):
        for nearest in (False, True):
            compressor = MinMax(bits=bits, block=8, nearest=nearest)
            for value in (0.3, -7.1e-30, 1e-40, 2.0**126, 0.0):
                x = torch.full((19,), value)
                assert torch.equal(check.applied(compressor, x), x)
            x = torch.randn(64, 8, generator=torch.Generator().manual_seed(bits))
            got = check.applied(compressor, x)
            least, most = x.argmin(1, keepdim=True), x.argmax(1, keepdim=True)
            assert torch.equal(got.gather(1, least), x.gather(1, least))
            torch.testing.assert_close(got.gather(1, most), x.gather(1, most), rtol=1e-6, atol=1e-6)


def test_an_offset_costs_no_precision() -> None:
    """Numbers far from zero keep their precision, where a symmetric grid is as coarse as the offset."""
    x = 100 + torch.randn(1024, generator=torch.Generator().manual_seed(0))
    of = {spec: float((check.applied(grace.method(spec).compressor, x) - x).abs().max()) for spec in ("minmax", "lpc")}
    assert of["minmax"] <= float(x.max() - x.min()) / 15 * 1.001
    assert of["minmax"] < of["lpc"] / 20


def test_to_the_nearest_no_error_exceeds_half_a_step() -> None:
    x = torch.randn(9, 1024, generator=torch.Generator().manual_seed(1))
    step = (x.amax(1, keepdim=True) - x.amin(1, keepdim=True)) / 255
    error = (check.applied(MinMax(bits=8, nearest=True), x) - x).abs()
    assert bool((error <= step * (0.5 + 2.0**-15)).all())
    assert bool((error > step * 0.4).any())


@pytest.mark.parametrize("compressor", [MinMax(), MinMax(bits=2), MinMax(bits=3, block=8), MinMax(bits=8, block=2)])
def test_unbiased(compressor: MinMax) -> None:
    check.assert_unbiased(compressor)


@pytest.mark.parametrize("compressor", [MinMax(8, 1024, True), MinMax(2, 16, True), MinMax(4, 256, True)])
def test_to_the_nearest_it_contracts_where_that_is_said(compressor: MinMax) -> None:
    check.assert_contracts(compressor)


def test_where_it_need_not_contract_it_does_not() -> None:
    """Both ends are far from zero, and no code says zero: what comes back is more wrong than nothing would be."""
    x = torch.zeros(1024)
    x[0], x[1] = 1, -1
    compressor = MinMax(nearest=True)
    assert compressor.facts(1024).contraction is None
    error = float((check.applied(compressor, x) - x).square().sum())
    assert error == pytest.approx(1022 / 15**2, rel=1e-5)
    assert error <= (1023 / (2 * 15**2)) * 2
    assert error > 2


@pytest.mark.parametrize("spec", ["minmax:bits=2,nearest=true", "minmax:bits=2", "minmax:bits=4"])
def test_with_a_memory_what_is_owed_stays_bounded(spec: str) -> None:
    """|e| <= r (|g| + |e|) for the largest magnitudes, r = 2/q or 1/q: however long the blocks are."""
    method = grace.method(f"{spec},memory=residual")
    ratio = (1 if "nearest" in spec else 2) / method.method.compressor.q
    simulator = grace.Simulator(method, world=1)
    x = torch.zeros(32, 64)
    x[0, 0], x[0, 1] = 1, -1
    for _ in range(60):
        simulator.step({"w": [x.clone()]})
    owed = float(simulator.debts()["w"].abs().max())
    assert 0 < owed <= ratio / (1 - ratio) * 1.001


@pytest.mark.parametrize("compressor", [MinMax(), MinMax(bits=2, block=8), MinMax(bits=8, nearest=True)])
def test_edges_and_payload(compressor: MinMax) -> None:
    check.assert_edges(compressor)
    check.assert_refuses_garbage(compressor)


def test_exchanges_and_bits() -> None:
    check.assert_agrees_and_conserves("minmax")
    check.assert_agrees_and_conserves("minmax:bits=8,nearest=true,communicator=scatterreduce")
    check.assert_loses_nothing("minmax:bits=2,memory=residual")
    check.assert_loses_nothing("minmax:nearest=true,memory=residual,communicator=scatterreduce")
    check.assert_agrees_on_nonfinite("minmax")
    assert 4.06 < check.bits_per_element("minmax") < 4.1


def test_knobs() -> None:
    check.assert_refuses_knobs(MinMax, nearest=[1], bits=[1, 9, 3.5, 4.0], block=[0, 1, 3, 100, 8192, 0.1])
