"""Buckets of methods that sketch tensors, by few launches, with the bytes, means and memories of the CPU, one tensor after the
other.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.registry.policy import Policy
from tests.laws.bucket_runs import Run, Shapes
from tests.laws.test_many import SHAPES, _nothing
from tests.laws.test_many_kinds import assert_as_on_the_cpu
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
SHORT = "sketchedsgd:ratio=0.04,rows=1,cols=2,p2=2"
BOTH: Shapes = ((2, 3), (41,))  # one that is sent whole, and one that is sketched
KINDS = {
    SHORT: ((43,), *BOTH, (37,)),
    "sketchedsgd:ratio=0.04,rows=3,cols=2,p2=2,nesterov=true": BOTH,
    "sketchedsgd:ratio=0.02,memory=residual": ((300,), (7,), (15, 17)),
    "sketchedsgd:ratio=0.02,rows=3,memory=none": ((1025,), (3,)),
    "sketchedsgd:ratio=1,memory=distef": ((7,), (2, 3)),
    "sketch": SHAPES,
    "sketch:quantiles=7,zero_edge=false": SHAPES,
    "sketch:quantiles=2,memory=none": SHAPES,
    "sketch:quantiles=256": ((1100,), (5,)),
    "sketch:quantiles=3,communicator=scatterreduce": ((5,), (7,), (4,)),
    "sketch:quantiles=3,communicator=parameterserver": ((5,), (7,)),
}
QUANTILES = "sketch:quantiles=3"


@functools.cache
def outcome(spec: str, backend: str, together: bool, steps: int, dtype: torch.dtype = torch.float32) -> Any:
    """Means and states of steps, the third of which is not finite; and what the network was given."""
    with backends.using(backend), cpu_as_accelerator():
        run = Run(Policy([("*", spec)]), 1, BOTH, lambda _: together, dtype)
        return [run.step() for _ in range(steps)], run.seen


@pytest.mark.parametrize(
    ("spec", "dtype", "steps"),
    [(SHORT, torch.float32, 3), (SHORT, torch.bfloat16, 1), (QUANTILES, torch.bfloat16, 3)],
    ids=str,
)
def test_a_bucket_has_the_bytes_of_the_cpu(spec: str, dtype: torch.dtype, steps: int) -> None:
    assert outcome(spec, "triton", True, steps, dtype) == outcome(spec, "reference", False, steps, dtype)


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", KINDS)
def test_buckets_of_all_kinds(spec: str, dtype: torch.dtype) -> None:
    assert_as_on_the_cpu(spec, 2, KINDS[spec], dtype=dtype)


@night
def test_quantiles_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantiles are taken of numbers that are drawn, of more than 20 here."""
    monkeypatch.setattr("grace.kernels.quantiles.samples.SMALL", 20)
    assert_as_on_the_cpu("sketch:sample=0.3", 2, ((5,), (41,), (3, 400), (7,)))


@night
def test_a_tensor_alone() -> None:
    assert outcome(SHORT, "triton", False, 3) == outcome(SHORT, "reference", False, 3)


# ---- mutants --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("put_listed_many", 1),
        *(
            pytest.param(name, steps, marks=night)
            for name, steps in (("clear_many", 1), ("add_memories_many", 2), ("poison_many", 3))
        ),
    ],
)
def test_mutants_are_caught(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right = outcome(SHORT, "reference", False, steps)
    mutant = _nothing
    if name == "add_memories_many":
        mutant = lambda like, many: torch.ones(len(many), dtype=torch.bool)  # noqa: E731
    monkeypatch.setattr(f"grace.methods.common.sketch_bucket.{name}", mutant)
    assert outcome.__wrapped__(SHORT, "triton", True, steps) != right
