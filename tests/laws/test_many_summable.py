"""Wires that the network could sum, of a bucket over communicators that do not let it: by few launches, with the bytes, means
and memories of single exchanges on the CPU.

Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.registry.policy import Policy
from tests.laws.bucket_runs import SOME, Run, Shapes, assert_same
from tests.laws.test_counted import count_work
from tests.laws.test_many import SHAPES, SMALL
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
AROUND = {
    "none": (4, 4, 8, 8), "bf16": (4, 4, 8, 8), "fp16": (4, 4, 8, 8), "randomk:ratio=0.3": (5, 5, 11, 10),
}  # fmt: skip
OVER = ("allgather", "broadcast", "scatterreduce", "parameterserver")
GATE = (
    ("none:communicator=scatterreduce,memory=residual", torch.float32),
    ("none:memory=residual", torch.bfloat16),
    ("fp16:communicator=allgather,memory=residual", torch.float32),
    ("bf16:communicator=parameterserver,memory=none", torch.float16),
    ("fp16:communicator=scatterreduce,memory=residual,server_memory=true", torch.float32),
    ("randomk:ratio=0.3,communicator=broadcast,memory=none", torch.float32),
    ("randomk:ratio=0.3,communicator=scatterreduce,memory=residual", torch.float32),
)


def with_knobs(spec: str, *knobs: str) -> str:
    return ",".join((f"{spec}:" if ":" not in spec else f"{spec},", *knobs)).replace(":,", ":").replace(",,", ",")


def outcome(spec: str, dtype: torch.dtype, backend: str, together: bool, world: int, shapes: Shapes) -> tuple[Any, Any]:
    """Means and states of three steps, the third of which is not finite; and what the network was given in the first two: what
    a wire says of an inf nobody reads.
    """
    with backends.using(backend), cpu_as_accelerator():
        run, ends, seen = Run(Policy([("*", spec)]), world, shapes, lambda _: together, dtype), list[Any](), list[Any]()
        for _ in range(3):
            seen = list(run.seen)
            ends.append(run.step())
    return ends, seen


def assert_bits(spec: str, dtype: torch.dtype, world: int = 2, shapes: Shapes = SMALL) -> None:
    want = outcome(spec, dtype, "reference", False, world, shapes)
    assert outcome(spec, dtype, "triton", True, world, shapes) == want


@pytest.mark.parametrize(("spec", "dtype"), GATE, ids=str)
def test_a_bucket_has_the_bytes_of_the_cpu(spec: str, dtype: torch.dtype) -> None:
    assert_bits(spec, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_methods_that_start_later_have_the_bytes_of_the_cpu(dtype: torch.dtype) -> None:
    """The first of three steps goes uncompressed, or all of them."""
    for start in (1, 3):
        assert_bits(f"qsgd:bits=4,memory=residual,start={start}", dtype)


@pytest.mark.parametrize(("start", "launches"), [(2, 2), (1, 4)])
def test_launches_of_methods_that_start_later(start: int, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second step, which goes uncompressed, or as ``qsgd`` does."""
    spec = f"qsgd:memory=residual,start={start}"
    assert [count_work(spec, ((3,),) * T, monkeypatch) for T in (3, 40)] == [(launches, 0)] * 2


@night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("communicator", OVER)
@pytest.mark.parametrize("spec", AROUND)
def test_buckets_of_all_kinds(spec: str, communicator: str, dtype: torch.dtype) -> None:
    for memory in ("none", "residual"):
        full = with_knobs(spec, f"communicator={communicator}", f"memory={memory}")
        assert_bits(full, dtype, 3, SHAPES)
        with backends.using("triton"), cpu_as_accelerator():
            assert_same(Policy([("*", full)]), 2, SMALL, dtype=dtype, plans=SOME, beside="reference")


@night
@pytest.mark.parametrize("spec", AROUND)
def test_launches_do_not_grow_with_the_bucket(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for communicator, launches in zip(OVER, AROUND[spec], strict=True):
        full = with_knobs(spec, f"communicator={communicator}", "memory=none")
        assert [count_work(full, ((3,),) * T, monkeypatch) for T in (3, 40)] == [(launches, 0)] * 2, full


@pytest.mark.parametrize("communicator", OVER)
def test_a_mean_that_overflows_is_not_finite(communicator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 holds no 1e5, and says so to nobody before it is added up."""

    def large(rank: int, step: int, shapes: Shapes) -> dict[str, torch.Tensor]:
        return {f"layer{i}": torch.full(shape, 1.0 if i else 1e5) for i, shape in enumerate(shapes)}

    monkeypatch.setattr("tests.laws.bucket_runs.gradients", large)
    assert_bits(f"fp16:communicator={communicator},memory=none", torch.float32)


def test_what_is_not_finite_before_the_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.schedules.delayed.poison_many", lambda flags, many: None)
    with pytest.raises(AssertionError):
        assert_bits("qsgd:start=3", torch.float32)


@pytest.mark.parametrize(
    ("where", "spec"),
    [
        ("grace.communicators.many.finite_many", "fp16:communicator=allgather,memory=none"),
        ("grace.communicators.many.finite_many", "fp16:communicator=scatterreduce,memory=none"),
    ],
)
def test_overflow_that_is_not_looked_for_is_caught(where: str, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, lambda flags, many: flags)
    with pytest.raises(AssertionError):
        test_a_mean_that_overflows_is_not_finite(spec.split("=")[1].split(",")[0], monkeypatch)
