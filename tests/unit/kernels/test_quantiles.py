from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grace.compute import backends, native
from grace.contract.compressor import Fused
from grace.errors import PayloadError
from grace.kernels.quantiles import encode_quantiles
from grace.kernels.quantiles.samples import SMALL
from grace.methods.sketch import Sketch
from tests.unit.kernels import block_codecs as check

BUCKETS = (2, 3, 4, 7, 8, 13, 16, 17, 33, 64, 100, 256)
CODECS = [Sketch(q) for q in (2, 5, 16, 100)] + [Sketch(4, zero_edge=False)]


def assert_same(codec: Fused, x: Tensor) -> None:
    """Wires, rests and sums of these numbers, under all native targets."""
    with backends.using("reference"):
        want = check.results(codec, x, x.flip(1) / 4)
    for target in check.TARGETS:
        with backends.using(target):
            for k, (a, b) in enumerate(zip(want, check.results(codec, x, x.flip(1) / 4), strict=True)):
                assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), (codec, target, k)


@check.needs_native
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_native_agrees_for_every_small_size(codec: Sketch) -> None:
    check.assert_agrees(codec, range(1, 71), rows=3, shifts=(1,))


@check.needs_native
def test_native_agrees_for_every_size() -> None:
    check.assert_agrees(Sketch(5), range(71, 301), rows=1, shifts=(1,))


@check.needs_native
@pytest.mark.parametrize("q", BUCKETS)
@pytest.mark.parametrize("n", [127, 300, 1023, 1025, 4096, 16_385])
def test_native_agrees_for_every_number_of_buckets(q: int, n: int) -> None:
    check.assert_agrees(Sketch(q), (n,), rows=2, shifts=(3,))


@check.needs_native
@pytest.mark.parametrize("n", [1, 40, 5000, 17_000])
def test_native_agrees_on_ties_zeros_and_numbers_of_all_sizes(n: int) -> None:
    made = torch.Generator().manual_seed(n)
    words = torch.randint(-(1 << 31), 1 << 31, (n,), generator=made).to(torch.int32)
    sizes = (words & ~0x40000000).view(torch.float32)  # denormal numbers to 2
    tied = words.remainder(7).float() - 3
    rows = [sizes, tied, tied * 0.0, tied.abs() + 0.5, -tied.abs(), tied * 1e-45, tied.sign() * sizes, sizes * 1e38]
    for codec in CODECS:
        assert_same(codec, torch.stack(rows))


def encoded(x: Tensor, memory: Tensor, q: int, seen: int, at: int = 0) -> list[Tensor]:
    """The wire, and the rest, so many floats behind an aligned address."""
    rest = check.unaligned(torch.zeros_like(x), at)
    wire, finite = encode_quantiles(x, q, True, seen, check.RNG, check.unaligned(memory, at), rest)
    assert finite
    return [wire, rest]


@check.needs_native
@pytest.mark.parametrize("border", [256, 512, 1024, 4096, 32_768, 131_072, 524_288])
def test_native_agrees_around_borders_with_a_memory(border: int) -> None:
    """Borders of parts, of tasks, and of what is stored past the caches; with edges of all numbers, and of a few drawn
    ones.
    """
    for n in (border - 1, border, border + 1):
        x, memory = check.numbers(1, n), check.numbers(1, n, 1) / 4
        for q, seen in ((16, n), (5, n // 7)):
            with backends.using("reference"):
                want = encoded(x, memory, q, seen)
            for target in check.TARGETS:
                with backends.using(target), check.threads(1):
                    got = encoded(x, memory, q, seen, at=n % 2)
                assert all(map(torch.equal, got, want)), (n, q, target)


@check.needs_native
def test_a_kernel_that_forgets_the_memory_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: edges, codes and rests of the gradient alone."""
    x, memory = check.numbers(1, 257), check.numbers(1, 257, 1)
    with backends.using("reference"):
        want = encoded(x, memory, 16, 257)
    with backends.using(check.TARGETS[-1]):
        honest = native.c.encode_quantiles
        monkeypatch.setattr(native.c, "encode_quantiles", lambda x, _, *a: honest(x, None, *a))
        got = encoded(x, memory, 16, 257)
    assert not torch.equal(got[1], want[1])


# Half-way between two float32 numbers is the mean of the first eight, and beyond it if the four smallest are added up first.
HALFWAY = torch.tensor([2.0**-51] * 4 + [4.0, 2.0, 2.0, 2.0**-21])


@check.needs_native
@pytest.mark.parametrize(
    ("codec", "others"),  # which leave these eight in a bucket of their own: from their least, from zero, or open
    [
        (Sketch(3), [1e-30] * 3 + [9.0] * 9),
        (Sketch(3), [-1.0] * 5 + [9.0] * 9),
        (Sketch(2), [9.0] * 9),
        (Sketch(2, zero_edge=False), [9.0] * 9),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_that_depend_on_their_order_have_the_order_of_the_numbers(
    codec: Sketch, others: list[float], sign: int
) -> None:
    made = torch.Generator().manual_seed(2)
    rows = torch.cat((HALFWAY, torch.tensor(others)))[None].repeat(64, 1)
    for row in rows[1:]:
        row.copy_(row[torch.randperm(row.numel(), generator=made)])
    assert_same(codec, sign * rows)
    with backends.using("reference"):
        wire = codec.encode_(rows, check.RNG)[0]
    means = wire[:, : 4 * codec.quantiles].contiguous().view(torch.float32)
    assert {1.0, 1 + 2.0**-23} <= set(means.flatten().tolist())  # the order makes a difference


@check.needs_native
def test_a_sum_that_cancels_has_the_order_of_the_numbers() -> None:
    made = torch.Generator().manual_seed(3)
    x = torch.cat((torch.randn(300, generator=made) * 1e30, torch.randn(300, generator=made), torch.full((700,), 1e38)))
    x = torch.stack([x[torch.randperm(1300, generator=made)] for _ in range(8)])
    assert_same(Sketch(2, zero_edge=False), x)


@check.needs_native
@pytest.mark.parametrize("sign", [1, -1])
def test_a_rest_is_the_largest_number_where_it_would_be_larger(sign: int) -> None:
    x, rests = sign * torch.tensor([[-3e38] + [3e38] * 5 + [3.2e38] * 7]), []
    for target in ("reference", *check.TARGETS):
        rests.append(torch.empty_like(x))
        with backends.using(target):
            Sketch(2, zero_edge=False).encode_(x, check.RNG, None, rests[-1])
    assert rests[0].abs().max() == torch.finfo(torch.float32).max
    assert all(torch.equal(rest, rests[0]) for rest in rests)


@check.needs_native
@pytest.mark.parametrize("bias", [0.0, 9.0, -9.0])
def test_edges_of_a_sample_see_signs_of_all(bias: float) -> None:
    x = torch.randn(1, SMALL + 77, generator=torch.Generator().manual_seed(5)) + bias
    if bias:
        x[0, 1 + SMALL // 2] = -bias  # no sample of two has it
    wires = []
    for target in ("reference", *check.TARGETS):
        with backends.using(target), check.threads(2):
            wires.append(encode_quantiles(x, 4, True, 2 if bias else SMALL // 50, check.RNG)[0])
    assert all(torch.equal(wire, wires[0]) for wire in wires)


def test_nonfinite_numbers_are_found() -> None:
    check.assert_flags_nonfinite(Sketch(5))


def test_corrupted_wires_are_refused() -> None:
    for codec in (Sketch(13), Sketch(100)):
        check.assert_refuses(
            codec, 250, [(4 * codec.quantiles + 3, 0xFF)], rf"'codes' must be in \[0, {codec.quantiles}\)"
        )
    check.assert_refuses_other_lengths(Sketch())


@pytest.mark.parametrize("q", [2, 16, 100])
def test_means_that_are_not_finite_are_refused(q: int) -> None:
    good = Sketch(q).encode_(check.numbers(1, 250), check.RNG)[0]
    for bad in (torch.inf, -torch.inf, torch.nan):
        wire = good.clone()
        wire[0, 4 * q - 4 : 4 * q] = torch.tensor([bad]).view(torch.uint8)
        for target in backends.available():
            with backends.using(target), pytest.raises(PayloadError, match="'means' must be finite"):
                Sketch(q).aggregate_([good, wire], torch.empty(1, 250), 1.0, check.RNG)
