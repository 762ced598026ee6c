from __future__ import annotations

import torch

from grace.methods.u8bit import U8bit, table
from tests.unit.methods import quant_checks as check

SPEC = torch.tensor([0.0, 1.0, -0.5, 0.25, 1e-7, 0.1])


def test_the_table_has_six_decades_of_equal_bins_between_0_and_1() -> None:
    tree = table("tree")
    assert tree.shape == (128,)
    assert bool((tree[1:] > tree[:-1]).all())
    assert tree[0] == 0
    assert tree[127] == 1
    assert abs(float(tree[1]) - 2.75e-6) < 1e-12
    assert abs(float(tree[126]) - 0.99140625) < 1e-7
    for decade in range(6):  # half of a decade's entries lie below 0.45 of it
        low = ((tree > 0.1 * 10.0**-decade) & (tree < 0.45 * 10.0**-decade)).sum()
        high = ((tree > 0.45 * 10.0**-decade) & (tree < 1.0 * 10.0**-decade)).sum()
        assert low == high == (1 << (6 - decade)) // 2
    bnb = table("bnb")
    assert bnb.shape == (128,)
    assert bool((bnb[1:] > bnb[:-1]).all())
    assert abs(float(bnb[127]) - (1 - 0.9 / 128)) < 1e-7
    assert abs(float(bnb[1]) - 0.55e-6) < 1e-12


def test_the_worked_example() -> None:
    wire = check.encoded(U8bit(), SPEC.view(1, -1))
    assert wire[0, 4:].tolist() == [0, 127, 128 | 97, 76, 0, 62]
    assert wire.shape[1] == 4 + 6
    want = torch.tensor([0, 1, -0.4929688, 0.2476562, 0, 0.0982813])
    torch.testing.assert_close(check.applied(U8bit(), SPEC), want, rtol=0, atol=1e-7)


def test_a_tie_goes_to_the_smaller_code() -> None:
    tree = table("tree").double()
    tie = (tree[126] + tree[127]).div(2).float()
    assert check.encoded(U8bit(), torch.stack((torch.tensor(1.0), tie)).view(1, -1))[0, 5] == 126


def test_errors_are_as_small_as_declared() -> None:
    x = torch.linspace(-1, 1, 200_001)
    error = (check.applied(U8bit(block=200_001), x) - x).abs()
    assert float(error.max()) <= 0.008594
    assert bool((error <= x.abs() + 1e-9).all())
    for above, relative in ((0.1, 0.050), (0.01, 0.0901), (0.001, 0.1531)):
        sel = x.abs() >= above
        assert float((error[sel] / x.abs()[sel]).max()) <= relative


def test_exact_on_the_table_constants_and_one_element() -> None:
    tree = table("tree")
    for x in (torch.cat((tree, -tree)) * 4, torch.full((50,), -0.3), torch.tensor([1.234e-5])):
        assert torch.equal(check.applied(U8bit(), x), x)


def test_facts_flags_edges_and_payload() -> None:
    for compressor in (U8bit(), U8bit(block=7), U8bit(block=1), U8bit(map="bnb", block=50)):
        check.assert_contracts(compressor)
        check.assert_flags(compressor, idempotent=compressor.map == "tree")
        check.assert_edges(compressor)
        check.assert_refuses_garbage(compressor)
    assert 8 < check.bits_per_element("u8bit:memory=none") < 8.03


def test_exchanges() -> None:
    check.assert_agrees_and_conserves("u8bit:block=16")
    check.assert_agrees_and_conserves("u8bit:block=16,communicator=scatterreduce")
    check.assert_loses_nothing("u8bit:block=16")
    check.assert_agrees_on_nonfinite("u8bit")


def test_knobs() -> None:
    check.assert_refuses_knobs(U8bit, block=[0, -1, 1.5], map=["linear"])
