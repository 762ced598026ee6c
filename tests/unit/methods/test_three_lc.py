from __future__ import annotations

import pytest
import torch

import grace
from grace.errors import PayloadError
from grace.kernels.ternary.codes import lengthen_runs, pack_quartic, shorten_runs, unpack_quartic
from grace.methods.three_lc import ThreeLC
from tests.unit.methods import quant_checks as check

ALL = [ThreeLC(s=s, zre=zre) for s in (1.0, 1.5, 1.9) for zre in (True, False)]
SPEC = torch.tensor([1, -0.6, 0.3, 0, 0.49] + [0.0] * 10)


def test_the_worked_example() -> None:
    wire = check.encoded(ThreeLC(zre=False), SPEC.view(1, -1))
    assert wire[0, 4:].tolist() == [202, 40, 121]
    wire = check.encoded(ThreeLC(), SPEC.view(1, -1))
    assert wire[0, 4:8].view(torch.int32).tolist() == [3]
    assert wire[0, 8:].tolist() == [202, 40, 121]
    assert check.applied(ThreeLC(), SPEC).tolist() == [1, -1] + [0] * 13


def test_runs_of_zeros() -> None:
    def by_hand(packed: list[int]) -> list[int]:
        out: list[int] = []
        run = 0
        for byte in [*packed, -1]:
            if byte == 121:
                run += 1
                continue
            while run:
                j = min(run, 14)
                out.append(121 if j == 1 else 243 + j - 2)
                run -= j
            out.append(byte)
        return out[:-1]

    assert by_hand([121] * 15) == [255, 121]
    made = torch.Generator().manual_seed(0)
    cases = [torch.full((j,), 121, dtype=torch.uint8) for j in range(1, 60)]
    for share in (0.2, 0.8, 0.98):
        zero = torch.rand(500, generator=made) < share
        other = torch.randint(0, 243, (500,), generator=made, dtype=torch.uint8)
        cases.append(torch.where(zero, 121, other).to(torch.uint8))
    for packed in cases:
        short = shorten_runs(packed)
        assert short.tolist() == by_hand(packed.tolist())
        assert torch.equal(lengthen_runs(short, packed.numel()), packed)
        with pytest.raises(PayloadError, match="digits"):
            lengthen_runs(short, packed.numel() + 1)


def test_quartic_is_five_parts_with_descending_weights() -> None:
    made = torch.Generator().manual_seed(0)
    for n in (1, 4, 5, 6, 23):
        digits = torch.randint(0, 3, (2, n), generator=made)
        packed = pack_quartic(digits)
        L = -(-n // 5)
        filled = torch.cat((digits, torch.ones(2, 5 * L - n, dtype=digits.dtype)), 1).view(2, 5, L)
        assert torch.equal(packed.long(), (filled * torch.tensor([81, 27, 9, 3, 1]).view(1, 5, 1)).sum(1))
        assert torch.equal(unpack_quartic(packed, n), digits.byte())


def test_halves_round_to_zero_and_errors_stay_below_the_number() -> None:
    assert check.applied(ThreeLC(), torch.tensor([2.0, 1.0, -1.0, -1.01])).tolist() == [2, 0, 0, -2]
    for compressor in ALL:
        for x in check.inputs(300).values():
            error = (check.applied(compressor, x) - x).abs()
            assert bool((error <= x.abs() * (1 + 1e-6)).all())
            if compressor.s == 1:
                assert float(error.max()) <= float(x.abs().max()) / 2 * (1 + 1e-6)


@pytest.mark.parametrize("compressor", ALL)
def test_facts_flags_edges_and_payload(compressor: ThreeLC) -> None:
    check.assert_contracts(compressor)
    check.assert_flags(compressor, idempotent=compressor.s == 1)
    check.assert_edges(compressor)
    check.assert_refuses_garbage(compressor)


def test_exact_for_one_magnitude() -> None:
    x = torch.tensor([0, 0.3, -0.3, 0.3, 0, 0, -0.3])
    assert torch.equal(check.applied(ThreeLC(), x), x)


def test_bits() -> None:
    assert ThreeLC(zre=False).facts(1000).payload == 204
    assert 1.6 < check.bits_per_element("3lc:zre=false,memory=none") < 1.602
    assert check.bits_per_element("3lc:memory=none") < 1.0
    assert check.encoded(ThreeLC(), torch.zeros(1, 70_000)).shape[1] * 8 / 70_000 < 0.116


def test_exchanges() -> None:
    for knobs in ("s=1.5", "zre=false", "communicator=scatterreduce", "zre=false,communicator=broadcast"):
        check.assert_agrees_and_conserves(f"3lc:{knobs}")
        check.assert_loses_nothing(f"3lc:{knobs}")
    check.assert_agrees_on_nonfinite("3lc")
    assert grace.method("3lc") == grace.ErrorFeedback(grace.Allgather(ThreeLC()))


def test_knobs() -> None:
    check.assert_refuses_knobs(ThreeLC, s=[0.9, 2, -1], zre=[1])
