"""Legal values of Horovod's ``compression=``, and others; without Horovod."""

from __future__ import annotations

import pytest
import torch

import grace.horovod
from grace.errors import ConfigurationError
from grace.transports.horovod import HorovodTransport


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("qsgd:bits=4", "cannot be summed"), ("topk:ratio=0.1", "cannot be summed"), ("bf16", "does not sum"),
        ("randomk:ratio=0.1,memory=none", "draws random numbers"), ("randomk:ratio=0.1", "keeps a memory"),
    ],
)  # fmt: skip
def test_what_cannot_be_summed_names_what_to_use_instead(method: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{why}.*use grace\.horovod\.DistributedOptimizer"):
        grace.horovod.compression(method)


def test_half_precision_moves_half_the_bytes_and_comes_back() -> None:
    half, x = grace.horovod.compression("fp16"), torch.randn(3, 5)
    wire, context = half.compress(x)  # type: ignore[attr-defined]
    assert (wire.dtype, wire.numel()) == (torch.float16, 15)
    assert torch.equal(half.decompress(wire, context), x.half().float())  # type: ignore[attr-defined]


def test_horovod_that_nobody_has_initialized() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ConfigurationError, match=r"call hvd\.init\(\) first"):
        grace.horovod.DistributedOptimizer(optimizer)
    with pytest.raises(ConfigurationError, match="Horovod"):
        HorovodTransport()
