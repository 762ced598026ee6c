"""Finite gradients near the largest float32, and gradients in 16 bits whose cast loses something."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import grace
from grace.contract.compressor import Compressor
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.contract.wrapping import find_compressor
from grace.errors import PayloadError
from grace.verify import laws
from grace.verify.inputs import normal
from grace.verify.overflow import overflow_is_not_kept
from tests.laws.cases import CASES, STAY


def gradients(size: float, first: int, count: int) -> list[list[Tensor]]:
    return [[normal(12, 5, seed=t)(rank).clamp(-1, 1) * size for rank in range(3)] for t in range(first, first + count)]


PLAIN = gradients(1.0, 10, 4)
# `none` without a memory sends numbers as they are: its mean says what its flag need not
LARGE = {spec: m for spec, m in CASES.items() if not isinstance(getattr(m, "compressor", None), grace.Identity)}
VELOCITIES = [f"{core}:memory={memory}" for core in ("topk", "sketchedsgd", "dgc") for memory in ("dgc", "distef")]


@pytest.mark.parametrize("spec", LARGE)
def test_what_overflows_is_not_kept(spec: str):
    for size in (1e37, 1e38, 3e38) if spec in STAY else (3e38,):
        overflow_is_not_kept(LARGE[spec], gradients(size, 0, 3), PLAIN)


@pytest.mark.night("a memory that overflowed")
@pytest.mark.parametrize("size", [1e37, 1e38])
@pytest.mark.parametrize("spec", [spec for spec in LARGE if spec not in STAY])
def test_what_overflows_is_not_kept_at_other_sizes(spec: str, size: float):
    overflow_is_not_kept(LARGE[spec], gradients(size, 0, 3), PLAIN)


@pytest.mark.parametrize("spec", VELOCITIES)
def test_a_velocity_that_overflows_is_forgotten(spec: str):
    for size in (1e38, 3e38):
        overflow_is_not_kept(grace.method(spec.replace(":", ":ratio=0.2,")), gradients(size, 0, 3), PLAIN)


def test_half_precision_over_allgather_says_so():
    xs = [torch.tensor([70_000.0, 1.0]), torch.tensor([1.0, 2.0])]
    for out in laws.run(grace.method("fp16:communicator=allgather,memory=none"), xs):
        assert out.finite is False
        assert bool(out.mean.isnan().all())


# ---- what a narrow cast loses ---------------------------------------------------------------------------------------
MEMORIES = ["none:memory=residual", "topk:ratio=0.5", "none:memory=dgc,momentum=0", "none:memory=distef,mu=0"]


@pytest.mark.parametrize("spec", [*MEMORIES, "topk:ratio=0.5,communicator=scatterreduce,server_memory=true"])
def test_what_a_narrow_cast_loses_is_owed(spec: str):
    """The mean of 1 and 1.0078125 is halfway between two numbers of bfloat16."""
    method, xs = grace.method(spec), [torch.full((2,), value, dtype=torch.bfloat16) for value in (1.0, 1.0078125)]
    applied = follow(method, xs)
    torch.testing.assert_close(applied, torch.full((2,), 100.390625, dtype=torch.float64), rtol=0, atol=1e-4)


def follow(method: Method[Any], xs: list[Tensor], steps: int = 100) -> Tensor:
    """Sum of what was applied in so many steps, and what is still owed."""
    states, applied = [method.init(x) for x in xs], torch.zeros(xs[0].shape, dtype=torch.float64)
    for step in range(steps):
        outs = laws.run(method, xs, states, step=step)
        states = [out.state for out in outs]
        assert outs[0].mean.dtype == xs[0].dtype
        applied += outs[0].mean.double()
    owed = [method.owed(state) for state in states]
    return applied + torch.stack([debt.double() for debt in owed if debt is not None]).mean(0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "spec", ["none:memory=residual", "topk:ratio=0.2", "qsgd:memory=residual", "powersgd:rank=2,min_rate=0.1"]
)
def test_nothing_is_lost_of_narrow_gradients(spec: str, dtype: torch.dtype):
    laws.nothing_lost(grace.method(spec), [[x.to(dtype) for x in xs] for xs in gradients(1.0, 0, 8)])


# ---- wires of another length ----------------------------------------------------------------------------------------
COMPRESSORS = {spec: compressor for spec, m in CASES.items() if (compressor := find_compressor(m)) is not None}


def other_lengths_are_refused(compressor: Compressor, n: int = 60) -> None:
    stream = Peer(0, 1, name="w").shared(compressor.id)
    wire = compressor.compress_(normal(1, n)(0), stream, False)
    width = wire.shape[1]
    lengths = {0, 1, width // 2, width - 1} | ({width + 1, 2 * width} if not compressor.varies else set())
    for length in lengths - {width}:
        other = torch.nn.functional.pad(wire, (0, length - width))
        with pytest.raises(PayloadError):
            compressor.decompress_add_(other, torch.zeros(1, n), 1.0, stream)
        with pytest.raises(PayloadError):
            compressor.aggregate_([other], torch.zeros(1, n), 1.0, stream)


@pytest.mark.parametrize("spec", COMPRESSORS)
def test_a_wire_of_another_length_is_refused(spec: str):
    other_lengths_are_refused(COMPRESSORS[spec])


class Broadcasting(grace.Identity):
    """Adds a wire of one number to all numbers."""

    def decompress_add_(self, wire, out, scale, rng):
        out.add_(wire[:, :1], alpha=scale) if wire.shape[1] == 1 else super().decompress_add_(wire, out, scale, rng)


def test_a_decoder_that_broadcasts_is_caught():
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        other_lengths_are_refused(Broadcasting())


# ---- mutants --------------------------------------------------------------------------------------------------------
class Blind(grace.FP16):
    """Does not say that it overflows."""

    overflows = False


@dataclass(frozen=True)
class Keeping(grace.ErrorFeedback):
    """Keeps a memory that overflowed."""

    def exchange(self, x, state, peer):
        out = yield from grace.ErrorFeedback.exchange(self, x, state, peer)
        out.state.memory.add_(x.new_tensor(math.inf) if float(x.abs().max()) > 1e30 else 0.0)
        return out


@dataclass(frozen=True)
class Careless(grace.ErrorFeedback):
    """Casts the mean behind the memory's back."""

    def exchange(self, x, state, peer):
        out = yield from grace.ErrorFeedback.exchange(self, x.float(), state, peer)
        return replace(out, mean=out.mean.to(x.dtype))


def test_mutants_are_caught():
    """Among them "a memory that overflowed"."""
    large = gradients(1e38, 0, 2)
    with pytest.raises(AssertionError, match="finite=True, but the mean is finite=False"):
        overflow_is_not_kept(grace.Allgather(Blind()), large, PLAIN)
    with pytest.raises(AssertionError, match="the state is not finite"):
        overflow_is_not_kept(Keeping(grace.Allgather(grace.TopK(0.2))), large, PLAIN)
    narrow = [[x.bfloat16() for x in xs] for xs in gradients(1.0, 0, 8)]
    with pytest.raises(AssertionError, match="nothing lost"):
        laws.nothing_lost(Careless(grace.Allgather(grace.TopK(0.2))), narrow)
