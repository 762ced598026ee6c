"""Tensors of hundreds of millions of numbers, and of more than 2**31: grids, places and counts that no test of small tensors
reaches. The checks themselves are run on small ones, on the CPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grace.registry.policy import Policy
from grace.run.simulate import simulate
from grace.run.worker import Worker
from tests.gpu.here import DEVICE, HERE, few

TOP = 100.0  # the largest number, which is the last one
ENDS = 1 << 20  # of both ends every number is looked at
SPECS = ("none", "bf16", "qsgd:bits=4,memory=none", "natural", "3lc:memory=none", "topk:ratio=0.01,memory=none")
HUGE = SPECS[:3]
CPU = torch.device("cpu")
CASES = [
    *((spec, n) for n in (300_000_000, 525_000_000) for spec in SPECS),
    *((spec, (1 << 31) + 4096) for spec in HUGE),
]


def check(spec: str, n: int, device: torch.device) -> None:
    """A worker's exchange of a bucket of two, one of n numbers."""
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < 30 * n:
        pytest.skip("needs more of the GPU's memory")
    x = torch.empty(n, device=device).normal_(generator=torch.Generator(device).manual_seed(0)).clamp_(-9, 9)
    x[-1] = TOP
    worker = Worker(Policy([("*", spec)]), 0, 1)
    (outs,) = simulate([worker.exchange({"large": x.clone(), "small": x[-5000:].clone()})])
    worker.workspace.reset()
    worker.advance()
    mean = outs["large"].mean
    assert mean.shape == x.shape
    for end in (slice(0, ENDS), slice(-ENDS, None)):
        _compare(spec.partition(":")[0], x[end], mean[end])
    if spec.startswith("topk"):
        assert int((mean != 0).sum()) == round(0.01 * n)
    worker._wait_for_pending()
    assert worker.nonfinite_seen == 0


def _compare(name: str, x: Tensor, mean: Tensor) -> None:
    assert bool(mean.isfinite().all())
    if name == "none":
        assert torch.equal(mean, x)
    elif name == "bf16":
        assert torch.equal(mean, x.bfloat16().float())
    elif name == "qsgd":
        assert float((mean - x).abs().max()) <= TOP / 7
    elif name == "natural":
        sure = x.abs() > 1e-2
        ratio = mean[sure] / x[sure]
        assert 0.499 < float(ratio.min()) <= float(ratio.max()) < 2.001
    elif name == "topk":
        kept = mean != 0
        assert torch.equal(mean[kept], x[kept])
        assert not bool((x[~kept].abs() > 4).any()), "far above the threshold"
    largest = float(x.max())
    if largest == TOP:
        assert float(mean.max()) > TOP / 3 or name == "3lc"
        assert float(mean[-1]) > 0


@pytest.mark.parametrize("spec", SPECS)
def test_the_checks_hold_for_small_tensors(spec: str) -> None:
    check(spec, 30_000, CPU)


@pytest.mark.skipif(not HERE, reason="needs a CUDA device")
@pytest.mark.parametrize(("spec", "n"), few(CASES))
def test_a_large_tensor_is_exchanged_whole(spec: str, n: int) -> None:
    check(spec, n, DEVICE)
