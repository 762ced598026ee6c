from __future__ import annotations

import pytest
import torch

from grace.kernels import hadamard


def matrix(h: int) -> torch.Tensor:
    """Sylvester's matrix, by its recursion."""
    out = torch.ones(1, 1, dtype=torch.float64)
    while out.shape[0] < h:
        out = torch.cat((torch.cat((out, out), 1), torch.cat((out, -out), 1)), 0)
    return out / h**0.5


@pytest.mark.parametrize(("n", "block", "pieces"), [
    (4, 4, [4]), (64, 64, [64]), (300, 128, [128, 128, 32, 0]), (100, 64, [64, 32, 0]), (31, 1024, [16, 0]),
    (15, 16, [0]), (1, 2, [0]), (7, 2, [2, 2, 2, 0]), (5, 4, [4, 0]), (1024, 1024, [1024]), (112, 1024, [64, 32, 16]),
])  # fmt: skip
def test_blocks_then_powers_of_two_then_nothing(n: int, block: int, pieces: list[int]) -> None:
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    want, at = x.double().clone(), 0
    for h in pieces:
        if h:
            want[:, at : at + h] = x[:, at : at + h].double() @ matrix(h)
            at += h
    got = hadamard(x, block)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(hadamard(got, block), x, rtol=1e-5, atol=1e-6)
    assert torch.equal(x, before)


def test_neither_the_largest_numbers_nor_the_smallest_overflow() -> None:
    for size in (torch.finfo(torch.float32).max, 1e38, 1e30):
        one_hot = torch.zeros(1, 64)
        one_hot[0, 5] = -size
        torch.testing.assert_close(hadamard(hadamard(one_hot, 64), 64), one_hot)
    full = torch.full((1, 64), torch.finfo(torch.float32).max)
    assert hadamard(full, 64)[0, 0] == torch.finfo(torch.float32).max
    assert bool(hadamard(full, 64).isfinite().all())
    tiny = torch.full((1, 16), 1e-42)
    torch.testing.assert_close(hadamard(tiny, 16)[0, 0], torch.tensor(4e-42), rtol=1e-2, atol=0)
