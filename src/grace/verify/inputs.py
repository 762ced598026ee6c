"""Ugly inputs: what gradients look like on a bad day. Each is a function of the rank."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Make = Callable[[int], Tensor]


def normal(*shape: int, seed: int = 0) -> Make:
    """Gaussian numbers, from a generator of their own."""
    return lambda rank: torch.randn(
        shape, generator=torch.Generator().manual_seed(1000 * seed + rank), dtype=torch.float32, device="cpu"
    )


def heavy(*shape: int) -> Make:
    """Log-normal magnitudes with random signs: a few large numbers among many small ones."""
    return lambda rank: normal(*shape)(rank).mul(2).exp().mul(normal(*shape, seed=1)(rank).sign())


def _ties(rank: int) -> Tensor:
    return torch.tensor([1.0, -1.0, 1.0, 0.0, -1.0, 2.0], dtype=torch.float32, device="cpu").repeat(7).view(6, 7) * (
        1 if rank % 2 else -1
    )


UGLY: dict[str, Make] = {
    "normal": normal(13, 7),
    "heavy": heavy(8, 9),
    "zeros": lambda rank: torch.zeros(5, 3, dtype=torch.float32, device="cpu"),
    "zeros on some": lambda rank: normal(5, 3)(rank) * (rank % 2),
    "one element": lambda rank: torch.full((1,), 1.5 - rank, dtype=torch.float32, device="cpu"),
    "1x1": lambda rank: torch.full((1, 1), -0.25 * rank, dtype=torch.float32, device="cpu"),
    "0-d": lambda rank: torch.tensor(0.5 + rank, dtype=torch.float32, device="cpu"),
    "empty": lambda rank: torch.empty(0, dtype=torch.float32, device="cpu"),
    "empty matrix": lambda rank: torch.empty(3, 0, dtype=torch.float32, device="cpu"),
    "equal": lambda rank: torch.full((5, 4), -0.7 * (rank + 1), dtype=torch.float32, device="cpu"),
    "negative": lambda rank: -normal(6, 4)(rank).abs() - 0.1,
    "ties": _ties,
    "one hot": lambda rank: torch.eye(41, dtype=torch.float32, device="cpu")[7 + rank] * -3,
    "denormal": lambda rank: normal(11, 3)(rank) * 2.0**-140,
    "tiny and huge": lambda rank: normal(40)(rank) * torch.logspace(-30, 30, 40, dtype=torch.float32, device="cpu"),
    "odd size": normal(127),
    "non-contiguous": lambda rank: normal(9, 14)(rank).t()[::2],
    "channels last": lambda rank: normal(2, 3, 4, 5)(rank).to(memory_format=torch.channels_last),
    "expanded": lambda rank: normal(1, 6)(rank).expand(4, 6),
    "f16": lambda rank: normal(9, 8)(rank).half(),
    "bf16": lambda rank: normal(9, 8)(rank).bfloat16(),
    "f64": lambda rank: normal(9, 8)(rank).double() + 1e-12,
}
HUGE: Make = lambda rank: normal(12, 5)(rank).clamp(-3, 3) * 1e38  # noqa: E731
