"""A bucket of one tensor asks the network for the same, and sends it the same bytes, on an accelerator as on a CPU, where it
is exchanged alone: ranks on both agree.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton")

from grace.collectives import Collective
from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.registry.policy import Policy
from tests.laws import bucket_runs, test_many_summable
from tests.laws.bucket_runs import Run
from tests.laws.launches import LAUNCHES
from tests.laws.test_launches import shared
from tests.unit.kernels.triton_checks import interpreter

__all__ = ["interpreter"]

SPECS: dict[str, object] = {
    **dict.fromkeys((*LAUNCHES, "atomosvd:rank=1,min_rate=0.1")),
    **dict.fromkeys(spec for spec, _ in test_many_summable.GATE),
    **dict.fromkeys(
        ("threshold:v=0.5,communicator=broadcast", "3lc:communicator=broadcast", "qsgd:start=1", "qsgd:start=5")
    ),
}
GATE = (
    "sketchedsgd:cols=1,p2=1", "gradiveq:collect=1", "powersgd:rank=1,min_rate=0.1", "none", "thc", "blockrandomk:mode=clt",
    "topk:communicator=broadcast", "efsignsgd:communicator=parameterserver",
)  # fmt: skip


def ask(spec: str, shape: tuple[int, ...], dtype: torch.dtype, *, there: bool) -> tuple[list[Any], Any]:
    """Questions of two workers in two steps, with the bytes that they send; and their means and states in the end."""
    with backends.using("triton" if there else "reference"), cpu_as_accelerator():
        run = Run(Policy([("*", spec)]), 2, (shape,), lambda _: there, dtype)
        ends = [run.step() for _ in range(2)]
    return run.seen, ends


@pytest.mark.parametrize(("shape", "dtype"), [((5, 7), torch.float32), ((13,), torch.float16)])
@pytest.mark.parametrize("spec", shared({**dict.fromkeys(GATE), **SPECS}, GATE))
def test_one_tensor_sends_the_same(spec: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    there, here = (ask(spec, shape, dtype, there=there) for there in (True, False))
    assert there == here


def test_shapes_of_all_reduces_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_shape(op: Collective) -> str:
        return f"{type(op).__name__}{tuple(op.buf.shape)}"

    monkeypatch.setattr(bucket_runs, "signature", with_shape)
    with pytest.raises(AssertionError):
        test_one_tensor_sends_the_same("none", (5, 7), torch.float32)
