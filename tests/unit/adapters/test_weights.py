"""Weights that are gathered through a compressor: a shard with an inf or NaN arrives as NaN, whatever carries it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import grace
from grace.adapters.weights import Weights, _Part, read_weights
from grace.errors import CompositionError, ConfigurationError
from grace.run.simulate import simulate

N, WORLD = 2048, 3


def find_carriers() -> list[str]:
    """The methods that can carry weights."""
    specs = ["int8", "int4", "qsgd:bits=8"]
    for name in grace.methods():
        try:
            if read_weights(f"{name}:memory=none") is not None:
                specs.append(f"{name}:memory=none")
        except (CompositionError, ConfigurationError):
            continue
    return specs


def gather(spec: str, bad: float) -> list[Tensor]:
    """Result of each rank ``[W, N]`` of gathering all shards, where rank 1's has this number."""

    def begin(rank: int, out: Tensor) -> object:
        weights = Weights.__new__(Weights)
        weights.compressor, weights._version = read_weights(spec), lambda: 3  # type: ignore[assignment]
        weights.session = SimpleNamespace(rank=rank, world=WORLD, options=SimpleNamespace(seed=0))  # type: ignore[assignment]
        shard = torch.randn(N, generator=torch.Generator().manual_seed(rank))
        if rank == 1:
            shard[5] = bad
        return weights._exchange("g", [_Part(N, True)], shard, out)

    outs = [torch.zeros(WORLD, N) for _ in range(WORLD)]
    simulate([begin(rank, out) for rank, out in enumerate(outs)])  # type: ignore[misc]
    return outs


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("spec", find_carriers())
def test_a_shard_that_is_not_finite_arrives_as_nan_and_the_others_as_they_are(spec: str, bad: float) -> None:
    right, outs = gather(spec, 0.5), gather(spec, bad)
    for out, other in zip(outs, right, strict=True):
        assert bool(out[1].isnan().all())
        assert torch.equal(out[[0, 2]], other[[0, 2]])
