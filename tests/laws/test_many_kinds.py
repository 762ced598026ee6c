"""More of tests/laws/test_many.py, most of it at night: buckets of all kinds of methods, by few launches, with the bytes,
means and memories of the CPU, one tensor after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.kernels.tensor_list import TensorList
from grace.registry.policy import Policy
from tests.laws.bucket_runs import ALL, SOME, Plans, Run, Shapes, assert_same
from tests.laws.test_many import LARGE, SHAPES, SMALL, SUMMED, outcome
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
# Of a rotation of 8,192 numbers: a tensor that takes two passes, and one that takes one. A pass takes thousands of the
# interpreter's operations, so that there are no more, and each test has them in one dtype. Nothing is lost: other borders and
# lengths of blocks are in tests/unit/kernels/test_triton_rotation.py, and how numbers of a dtype are read does not depend on
# the block, so that those of 16 show it.
TWO_PASSES: Shapes = ((4097,), (255,))
KINDS = {
    "efsignsgd": LARGE,
    "efsignsgd:block=5000": LARGE,
    "signsgd": SHAPES,
    "signsgd:zero=abstain": SHAPES,
    "qsgd:bits=4,bucket=32,memory=residual": SMALL,
    "qsgd:bits=8,memory=residual": SHAPES,
    "qsgd:bits=2,norm=l2,bucket=5000": LARGE,
    "qsgd:levels=1,memory=residual": SHAPES,
    "natural:bits=4,block=7,memory=residual": SHAPES,
    "natural:bits=9": SMALL,
    "u8bit:block=100": SHAPES,
    "lpc:bits=5,clip=0.5,block=100": SHAPES,
    "lpc:nearest=true,memory=residual": SHAPES,
    "minmax:bits=3,block=128,nearest=true": SHAPES,
    "minmax:bits=8,block=16,memory=residual": SHAPES,
    "terngrad:bucket=32,memory=residual": SHAPES,
    "terngrad:clip=1.5,bucket=32,memory=residual": SHAPES,
    "terngrad:clip=1,bucket=5000": ((5001,), (255,)),
    "onebit:group=5000": LARGE,
    "qsgd:bits=16,memory=residual": SHAPES,
    "qsgd:levels=1000,norm=l2,bucket=5000": LARGE,
    "topk:ratio=0.2,communicator=broadcast": SHAPES,
    "fp8:fmt=e5m2,stochastic=true,memory=residual": SHAPES,
    "drive:block=16": SHAPES,
    "drive:block=8192,rotation=shared,memory=residual": TWO_PASSES,
    "eden:bits=3,block=64,memory=residual": SHAPES,
    "rht:block=16,memory=residual": SHAPES,
    "rht:inner=(lpc:bits=3,block=8),rounds=2,block=16,memory=residual": SHAPES,
    "rht:inner=fp8,block=8192": TWO_PASSES,
    "rht:inner=drive,block=16": SMALL,
    "rht:inner=(eden:bits=2,block=32),block=16,rounds=2,memory=residual": SHAPES,
    "rht:inner=(rht:inner=(qsgd:bits=4),block=32),block=16": SHAPES,
    "rht:inner=(topk:ratio=0.3),block=16,memory=residual": SMALL,
    "thc:block=16": SHAPES,
    "thc:block=8192,bits=3,memory=none": TWO_PASSES,
    "topk:ratio=0.2": SHAPES,
    "topk:ratio=0.05,values=bfloat16,index=elias-fano": LARGE,
    "topk:ratio=0.3,memory=none": SMALL,
    "qsparse:ratio=0.2": SHAPES,
    "qsparse:ratio=0.05,quant=4": LARGE,
    "qsparse:ratio=0.3,quant=1,index=raw,memory=none": SHAPES,
    "qsparse:ratio=0.9,quant=200": SHAPES,
    "3lc:zre=false": SMALL,
}
HOPPING = [spec for spec in KINDS if not spec.startswith(("signsgd", "thc")) and "comm" not in spec]


def in_dtypes(specs: Iterable[str], *dtypes: torch.dtype) -> list[tuple[str, torch.dtype]]:
    """Every kind in each of them; a rotation in two passes in the first."""
    return [(spec, d) for spec in specs for d in (dtypes[:1] if KINDS[spec] is TWO_PASSES else dtypes)]


INSIDE = "rht:inner=(drive:block=8),block=16"


def in_reference(spec: str) -> Any:
    """As :func:`tests.laws.test_many.outcome`, of the specification, one tensor after the other."""
    with backends.using("reference"), cpu_as_accelerator():
        run = Run(Policy([("*", spec)]), 1, SMALL, lambda _: False)
        return [run.step() for _ in range(3)], run.seen


def _unturned(storage: Tensor, many: TensorList, into: TensorList, *_: Any) -> Tensor:
    """Nothing is rotated."""
    return torch.ones(len(many), dtype=torch.bool)


def test_a_rotation_inside_another_has_the_bytes_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    want = in_reference(INSIDE)
    assert outcome(INSIDE, True, world=1) == want
    monkeypatch.setattr("grace.methods.rht.rotate_many", _unturned)
    assert outcome.__wrapped__(INSIDE, True, world=1) != want


def over(spec: str, communicator: str) -> str:
    return f"{spec}{',' if ':' in spec else ':'}communicator={communicator}"


def assert_as_on_the_cpu(
    spec: str, world: int, shapes: Shapes, plans: Plans = ALL, dtype: torch.dtype = torch.float32
) -> None:
    with backends.using("triton"), cpu_as_accelerator():
        assert_same(Policy([("*", spec)]), world, shapes, plans=plans, dtype=dtype, beside="reference")


@night
@pytest.mark.parametrize(
    ("spec", "dtype"), in_dtypes(HOPPING, torch.float32) + in_dtypes(HOPPING[::4], torch.bfloat16), ids=str
)
def test_two_hops(spec: str, dtype: torch.dtype) -> None:
    """Narrow gradients are read before the kinds differ: some show that. Each of three ranks rotates a third of a tensor,
    which is to take two passes, too.
    """
    shapes = KINDS[spec] if KINDS[spec] is not TWO_PASSES else tuple((3 * n,) for (n,) in TWO_PASSES)
    assert_as_on_the_cpu(over(spec, "scatterreduce"), 3, (*shapes, (6,)), dtype=dtype)


@night
@pytest.mark.parametrize("spec", HOPPING)
def test_a_server(spec: str) -> None:
    """A server of narrow gradients; tests/laws/test_many.py has some of float32."""
    assert_as_on_the_cpu(over(spec, "parameterserver"), 3, (*KINDS[spec], (6,)), dtype=torch.bfloat16)


@night
@pytest.mark.parametrize("spec", KINDS)
def test_one_hop(spec: str) -> None:
    assert_as_on_the_cpu(spec, 2, KINDS[spec])


@night
@pytest.mark.parametrize(("spec", "dtype"), in_dtypes(KINDS, torch.bfloat16, torch.float16), ids=str)
def test_narrow_gradients(spec: str, dtype: torch.dtype) -> None:
    assert_as_on_the_cpu(spec, 2, KINDS[spec], dtype=dtype)


@night
@pytest.mark.parametrize("spec", ["bf16", "fp16"])
def test_what_the_network_sums_of_sixteen_bits(spec: str) -> None:
    assert_as_on_the_cpu(spec, 3, (*SHAPES, *LARGE), plans=SOME)


@night
@pytest.mark.parametrize("memory", ["residual", "none"])
@pytest.mark.parametrize("spec", SUMMED)
def test_what_the_network_sums(spec: str, memory: str) -> None:
    assert_as_on_the_cpu(f"{spec},memory={memory}", 2, SHAPES, plans=SOME)


@night
def test_ranks_need_not_choose_alike() -> None:
    assert_as_on_the_cpu("efsignsgd:block=32", 3, SMALL, plans=SOME)
