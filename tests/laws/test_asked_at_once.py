"""Methods that decompose or solve one tensor after the other, but ask the host at most once for a bucket: the bytes, means and
states of single exchanges.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.flags.finite import ask_host, cpu_as_accelerator
from grace.registry.policy import Policy
from tests.laws import bucket_runs
from tests.laws.bucket_runs import ALL, SOME, Run, Shapes, assert_same, gradients
from tests.laws.test_counted import count_work
from tests.unit.kernels.triton_checks import CAUGHT, interpreter, night

__all__ = ["interpreter"]

SHAPES: Shapes = ((41,), (6, 5), (9, 2, 3), (1,))
SPECS = {
    "gradzip:rank=2,min_rate=0.1": "gradzip",
    "gradzip:rank=2,min_rate=0.1,alternate=true": "gradzip",
    "gradiveq:length=8,dims=2,collect=2,use=3": "gradiveq",
}
ASKED = list(SPECS)[1:]  # the first sends both factors, whether they are finite or not
COUNTED = {
    "gradzip:rank=1,min_rate=0.1": 0, "gradzip:rank=1,min_rate=0.1,alternate=true": 1, "gradzip": 0, "gradiveq": 1,
    "gradiveq:collect=1": 1, "gradiveq:memory=none": 1,
}  # fmt: skip


def check(spec: str, backend: str, *, narrow: bool = False) -> None:
    """A bucket on an accelerator, beside single exchanges there and on the host."""
    dtype = torch.bfloat16 if narrow else torch.float32
    runs = [Run(Policy([("*", spec)]), 2, SHAPES, plans, dtype) for plans in (ALL, lambda _: False, lambda _: False)]
    told = []
    for run, there in zip(runs, (True, True, False), strict=True):
        with backends.using(backend):
            if there:
                with cpu_as_accelerator():
                    told.append([run.step() for _ in range(5)])
            else:
                told.append([run.step() for _ in range(5)])
    assert told[0] == told[1] == told[2]
    assert runs[0].seen == runs[1].seen == runs[2].seen


@pytest.mark.parametrize("spec", SPECS)
def test_a_bucket_has_the_bytes_of_single_exchanges(spec: str) -> None:
    check(f"{spec},memory=none", "reference")


def not_finite_twice(rank: int, step: int, shapes: Shapes) -> dict[str, torch.Tensor]:
    """A matrix that is not finite in two steps, one after the other."""
    given = gradients(rank, step, shapes)
    if step in (1, 2) and rank == 1:
        given["layer1"][0, 0] = torch.nan
    return given


@pytest.mark.parametrize("spec", SPECS)
def test_states_stay_as_they_were_where_steps_are_not_finite(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: what a state has left is not what it still needs."""
    monkeypatch.setattr(bucket_runs, "gradients", not_finite_twice)
    check(f"{spec},memory=none", "reference")


@night
@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("memory", ["residual", "none"])
@pytest.mark.parametrize("spec", SPECS)
def test_with_kernels_and_memories(spec: str, memory: str, narrow: bool) -> None:
    check(f"{spec},memory={memory}", "triton", narrow=narrow)


@night
@pytest.mark.parametrize("spec", SPECS)
def test_steps_that_fail_and_ranks_that_choose_otherwise(spec: str) -> None:
    policy = Policy([("layer1", "none"), ("*", f"{spec},memory=none")])
    with backends.using("reference"), cpu_as_accelerator():
        assert_same(policy, 3, SHAPES, Policy([("*", "none")]), plans=SOME)


@night
@pytest.mark.parametrize("spec", COUNTED)
def test_the_host_is_asked_once_with_kernels_and_memories(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [count_work(spec, ((3, 5),) * T, monkeypatch)[1] for T in (3, 12)]
    assert asked == [COUNTED[spec]] * 2


@pytest.mark.parametrize("spec", ASKED)
def test_the_host_is_asked_once_for_a_bucket(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [count_work(f"{spec},memory=none", ((4, 5),) * T, monkeypatch, backend="reference")[1] for T in (3, 12)]
    assert asked == [1, 1]


@pytest.mark.parametrize("spec", ASKED)
def test_answers_for_other_tensors_are_told(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module(f"grace.methods.{SPECS[spec]}")
    ask = module.ask_host_of_all
    monkeypatch.setattr(module, "ask_host_of_all", lambda flags: ask(flags)[::-1])
    with pytest.raises(CAUGHT):
        check(f"{spec},memory=none", "reference")


def test_a_question_for_each_tensor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module("grace.methods.gradiveq")
    monkeypatch.setattr(module, "ask_host_of_all", lambda flags: list(map(ask_host, flags)))
    with pytest.raises(CAUGHT):
        test_the_host_is_asked_once_for_a_bucket(list(SPECS)[-1], monkeypatch)
