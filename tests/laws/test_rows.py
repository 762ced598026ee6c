"""Reduce-scatters of several tensors as one: bytes, means and states of one tensor after the other."""

from __future__ import annotations

import pytest

import grace
from grace.registry.policy import Policy
from tests.laws.bucket_runs import SOME, RowRun, Shapes, assert_same

W = 3
ROWS: Shapes = ((W, 5), (W, 41), (W, 1), (W, 64))
SCATTERED = [name for name in grace.methods() if grace.method(name).has_scatter]
MORE = (
    "qsgd:bits=4,bucket=32,memory=residual", "fp8:block=32", "fp8:fmt=e5m2,memory=residual", "efsignsgd:memory=distef",
    "topk:memory=dgc", "natural:memory=momentum", "topk:ratio=0.2,communicator=allgather,follow_lr=true",
    "none:communicator=allgather", "qsgd:bits=8,memory=ef21",
)  # fmt: skip


@pytest.mark.parametrize("spec", [*SCATTERED, *MORE])
def test_rows_have_the_bytes_of_single_tensors(spec: str) -> None:
    policy = Policy([("layer1", "none"), ("*", spec)])
    assert_same(policy, W, ROWS, plans=SOME, kind=RowRun)
