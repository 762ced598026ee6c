from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.errors import PayloadError
from grace.methods import E3M0, e3m0
from tests.unit.methods import quant_checks as check


def test_vector_of_the_specification() -> None:
    x = torch.tensor([8, -5, 6, 1.4, 0.05, 0.1])
    wire = check.encoded(E3M0(), x[None])
    assert wire[0, :4].view(torch.float32).tolist() == [8]
    assert wire[0, 4:].tolist() == [7 | (6 | 8) << 4, 7 | 4 << 4, 0 | 1 << 4]
    assert check.applied(E3M0(), x).tolist() == [8, -4, 8, 1, 0, 0.125]


def test_of_two_equally_near_ones_it_is_the_larger_magnitude() -> None:
    powers = torch.tensor([2.0**-j for j in range(7)])
    ties = torch.cat([powers[:6] * 0.75, torch.tensor([2.0**-7])])  # between two powers; between the last one and 0
    under = ties.nextafter(torch.zeros(7))
    for sign in (1, -1):
        got = check.applied(E3M0(), torch.cat([torch.ones(1), sign * ties, sign * under]))[1:] * sign
        assert got[:7].tolist() == powers.tolist()
        assert got[7:].tolist() == [*powers[1:].tolist(), 0]
    grid = torch.cat([powers, -powers, torch.zeros(1)]) * 3.7
    assert torch.equal(check.applied(E3M0(), grid), grid)


@pytest.mark.parametrize("compressor", [E3M0(), E3M0(16), E3M0(1)])
def test_it_contracts(compressor: E3M0) -> None:
    check.assert_contracts(compressor)
    check.assert_edges(compressor)
    check.assert_refuses_garbage(compressor)
    check.assert_flags(compressor)


def test_no_error_exceeds_a_third_nor_what_is_owed_a_half() -> None:
    """So long a block has no delta, and what a memory owes stays bounded: |e| <= (|g| + |e|) / 3."""
    assert E3M0(1 << 16).facts(1 << 16).contraction is None
    x = torch.linspace(-1, 1, 4097)
    got = check.applied(E3M0(1 << 16), x)
    error = (got - x).abs()
    assert bool((error <= torch.maximum(x.abs() / 3, torch.tensor(2.0**-7)) * 1.0001).all())
    assert float((error / x.abs().clamp_min(0.012)).max()) > 0.33
    simulator = grace.Simulator("e3m0:memory=residual,block=65536", world=1)
    for _ in range(40):
        simulator.step({"w": [x.clone().view(17, 241)]})
    assert 0.1 < float(simulator.debts()["w"].abs().max()) <= 0.5


def test_tiny_blocks_are_zero_and_small_ones_are_exact() -> None:
    assert not check.applied(E3M0(), torch.full((5,), 2.0**-121)).any()
    x = torch.tensor([2.0**-120, -(2.0**-126)])
    assert torch.equal(check.applied(E3M0(), x), x)


def test_minus_zero_is_refused() -> None:
    wire = check.encoded(E3M0(), torch.ones(1, 2))
    wire[0, -1] = 0x87
    with pytest.raises(PayloadError, match="minus zero"):
        check.decoded(E3M0(), wire, 2)


def test_exchanges_and_bits() -> None:
    check.assert_agrees_and_conserves("e3m0")
    check.assert_agrees_and_conserves("e3m0:communicator=scatterreduce")
    check.assert_loses_nothing("e3m0:memory=residual")
    check.assert_agrees_on_nonfinite("e3m0")
    assert 4.06 < check.bits_per_element("e3m0") < 4.1


def test_knobs() -> None:
    check.assert_refuses_knobs(E3M0, block=[0, -1, 1.5])


# ---- mutants --------------------------------------------------------------------------------------------------------
_compress = E3M0.compress_
_repeat = e3m0.repeat_by_block


def _largest_everywhere(scales: Tensor, n: int, block: int) -> Tensor:
    """The scale of a row, not of a block."""
    return _repeat(scales.amax(1, keepdim=True).expand_as(scales).contiguous(), n, block)


def _says_more(self: E3M0, rows: Tensor, rng: Any, keep_rest: bool) -> Tensor:
    """Nothing is left, as if all had been said."""
    wire = _compress(self, rows, rng, False)
    rows.zero_()
    return wire


def _contracts() -> None:
    check.assert_contracts(E3M0(16))


def _blocks_are_apart() -> None:
    x = torch.cat([torch.ones(16), torch.full((16,), 2.0**-20)])
    assert torch.equal(check.applied(E3M0(16), x), x)


def _loses_nothing() -> None:
    check.assert_loses_nothing("e3m0:memory=residual")


@pytest.mark.parametrize(
    ("where", "name", "mutant", "law"),
    [
        (e3m0, "_HALF", 0, _contracts),  # always the power below
        (e3m0, "_HALF", (1 << 52) - 1, _contracts),  # always the power above
        (e3m0, "repeat_by_block", _largest_everywhere, _blocks_are_apart),
        (E3M0, "compress_", _says_more, _loses_nothing),
    ],
    ids=["down", "up", "one scale", "says more"],
)
def test_mutants_are_caught(
    where: Any, name: str, mutant: Any, law: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    law()
    monkeypatch.setattr(where, name, mutant)
    with pytest.raises(AssertionError):
        law()
