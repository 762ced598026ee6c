"""A kernel that tells whether Triton works here at all. Importing this imports Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from grace.compute.launching import launch

_COUNT = 1024


@triton.jit
def _add(x, out, n, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    tl.store(out + i, tl.load(x + i, i < n, 0.0) + 1.0, i < n)


def triton_adds_up(device: torch.device) -> bool:
    """True if a kernel adds one to 1,024 numbers of this device."""
    x = torch.arange(_COUNT, dtype=torch.float32, device=device)
    out = torch.zeros_like(x)
    launch(_add, (4,), x, out, _COUNT, TILE=_COUNT // 4)
    return torch.equal(out, x + 1)
