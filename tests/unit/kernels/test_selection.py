"""Selection: native code against the specification, to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from grace.compute import backends
from grace.errors import InputError
from grace.kernels import root_mean_square, selection
from tests.unit.kernels.native_checks import TARGETS, needs_native, offset, same_bits, with_threads

LARGE = 600_001  # more than one thread works on it


def inputs(n: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=g)
    bad = x.clone()
    bad[n // 2 :: 5] = math.nan
    bad[n // 3 :: 7] = -math.inf
    return {
        "heavy tails": x * torch.exp(torch.randn(n, generator=g)),
        "few values": x.mul(2).round(),
        "zeros": torch.zeros(n),
        "constant": torch.full((n,), -2.0),
        "99 % zeros": torch.where(torch.rand(n, generator=g) < 0.99, 0.0, x),
        "denormals": x * 1e-42,
        "sorted": x.sort().values,
        "clustered": x * (torch.arange(n) // 50 % 97 == 0),
        "huge": x * 1e38,
        "not finite": bad,
        "all NaN": torch.full((n,), math.nan),
    }


def some_inputs(n: int) -> Iterator[tuple[int, str, Tensor]]:
    """Every other one, which the next size has instead: its number, name and numbers."""
    yield from ((i, name, x) for i, (name, x) in enumerate(inputs(n).items()) if (i + n) % 2 == 0)


def taken(x: Tensor, k: int, mode: str, narrow: bool, choice: str, by: int = 0) -> list[Tensor]:
    memory = offset((x.flip(0).nan_to_num() * 0.125)[None], by) if mode == "memory" else None
    rows = offset(x[None], by)
    rest = {"plain": None, "in place": rows}.get(mode, offset(torch.empty(1, x.numel()), by))
    with backends.using(choice):
        index, sent, finite = selection.take_topk(rows, k, memory, rest, narrow=narrow)
    if not finite:  # what is said means nothing
        return [index.long(), torch.tensor(finite)]
    return [index.long(), torch.tensor(finite), sent, *([] if rest is None else [rest])]


def agree(x: Tensor, k: int, mode: str, narrow: bool, choice: str, by: int = 0) -> bool:
    pairs = zip(taken(x, k, mode, narrow, choice, by), taken(x, k, mode, narrow, "reference"), strict=True)
    return all(same_bits(a, b) for a, b in pairs)


@needs_native
@pytest.mark.parametrize("mode", ["plain", "in place", "copied", "memory"])
def test_topk_of_every_small_size(mode: str):
    for n in range(1, 71):
        for _, name, x in some_inputs(n):
            for k in {1, n // 3 or 1, n}:
                want = taken(x, k, mode, n % 2 == 0, "reference")
                for choice in TARGETS:
                    got = taken(x, k, mode, n % 2 == 0, choice, n % 5)
                    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True)), (choice, n, name, k)


@needs_native
@pytest.mark.parametrize("choice", TARGETS)
@pytest.mark.parametrize("n", [2049, 4097, 20_000])
def test_topk_with_a_sample(choice: str, n: int):
    for i, (name, x) in enumerate(inputs(n).items()):
        for k in (1, n // 100, n // 3, n - 1):
            mode = ("plain", "in place", "copied", "memory")[(i + k) % 4]
            assert agree(x, k, mode, bool(k % 2), choice, i), (name, k, mode)


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_topk_does_not_depend_on_threads(threads: int):
    with with_threads(threads):
        for i, (name, x) in enumerate(inputs(LARGE).items()):
            mode = ("in place", "memory", "plain", "copied")[i % 4]
            for k in (600, 6000):
                assert agree(x, k, mode, i % 3 == 0, TARGETS[-1]), (name, k, mode)


@needs_native
@pytest.mark.parametrize("choice", TARGETS)
def test_a_sample_that_misleads_is_found_out(choice: str):
    """Large numbers where no sample looks; and a sample of nothing but large numbers."""
    hidden = torch.ones(LARGE)
    hidden[-6000:] = torch.arange(6000) + 2.0
    assert agree(hidden, 6000, "in place", False, choice)
    steps = torch.arange(LARGE).mul_(3).remainder_(LARGE).float()
    assert agree(steps, 5000, "memory", False, choice)


@needs_native
@pytest.mark.parametrize("strict", [False, True])
def test_at_least(strict: bool):
    check_at_least(TARGETS, strict)


def check_at_least(targets: Sequence[str], strict: bool) -> None:
    for n in (*range(1, 71), 9000, 9001):
        for i, name, x in some_inputs(n):
            for bound in (0.0, 1.0, 2.0, 1e-42, 1e300):
                memory = offset(x.flip(0) * 0.5, 1) if (n + i) % 3 == 0 else None

                def once(
                    which: str, x: Tensor = x, memory: Tensor | None = memory, bound: float = bound, n: int = n
                ) -> list[Tensor]:
                    row = offset(x, n % 3)
                    rest = row if memory is None and n % 2 else torch.empty_like(row)
                    with backends.using(which):
                        out = selection.take_at_least(row, bound, memory, rest, strict=strict, narrow=n % 4 == 0)
                        plain = selection.select_at_least(x, bound, strict=strict)
                    index, sent, finite = out
                    return [plain, index.long(), *([sent, rest] if finite else [])]

                want = once("reference")
                for choice in targets:
                    for a, b in zip(once(choice), want, strict=True):
                        assert same_bits(a, b), (choice, n, name, bound)


@needs_native
@pytest.mark.parametrize("threads", [1, 3])
def test_at_least_of_a_large_row(threads: int):
    x = inputs(LARGE)["heavy tails"]
    with with_threads(threads):
        for bound in (0.01, 5.0):  # more than there is room for at first; and less
            row = x.clone()
            index, sent, finite = selection.take_at_least(row, bound, None, row)
            assert finite
            assert torch.equal(index.long(), (x.abs() >= bound).nonzero()[:, 0])
            assert torch.equal(sent, x[index.long()])
            assert torch.equal(row, torch.where(x.abs() >= bound, 0.0, x))


@needs_native
@pytest.mark.parametrize("choice", TARGETS)
def test_root_mean_square(choice: str):
    for n in (*range(1, 71), 4095, 4097, 70_001):
        x, e = inputs(n)["heavy tails"], inputs(n)["few values"]
        for memory in (None, e):
            with backends.using(choice):
                fast = root_mean_square(offset(x, n % 4), memory)
            with backends.using("reference"):
                assert root_mean_square(x, memory) == fast
            p = x if memory is None else x + memory
            assert fast == pytest.approx(float(p.double().square().mean().sqrt()), rel=1e-12)


def test_bfloat16_and_what_it_loses():
    x = torch.tensor([[1.001, -3.0e38, torch.finfo(torch.float32).max, 1e-40, 0.5]])
    rest = x.clone()
    index, sent, finite = selection.take_topk(rest, 4, None, rest, narrow=True)
    assert finite
    assert index.tolist() == [[0, 1, 2, 4]]
    assert torch.equal(sent, selection.round_to_bfloat16(x[:, index[0].long()]).float())
    assert bool(sent.isfinite().all())
    assert torch.equal(rest.scatter_add(1, index.long(), sent), x)


def test_wrong_memory_is_refused_before_native_code():
    x = torch.randn(1, 100)
    for memory in (torch.zeros(1, 99), torch.zeros(1, 100, dtype=torch.float64), torch.zeros(100, 1).T[:, ::1].T):
        if backends.active()[0] != "reference":
            with pytest.raises(InputError, match="memory"):
                selection.take_topk(x, 3, memory, torch.empty_like(x))


def test_what_is_counted_in_32_bits_does_not_wrap() -> None:
    """Programs that count keys read whole groups of tiles, and count what is beyond the numbers in the lowest bin."""
    tiles = pytest.importorskip("grace.kernels.selection.triton.candidates", reason="needs the package triton")
    span = tiles._GROUP * tiles._TILE
    assert -(-tiles.MOST // span) * span < 1 << 31 <= tiles.MOST + span
