"""Buckets of tensors of every size from 1 to 300 and around the borders of tiles, of each dtype, that begin at odd addresses
or not; and each of these tensors alone: the bytes, means and memories of the CPU, one tensor after the other.

Specs stand in families that have kernels in common. In each dtype those of a family share the sizes, and over the dtypes each
of them has all. Triton's interpreter, and tensors on the CPU, stand in for an accelerator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton", reason="needs the package triton")

from grace.compute import backends
from grace.flags.finite import cpu_as_accelerator
from grace.kernels.tensor_list.triton import encoder_at
from grace.registry.policy import Policy
from tests.laws.bucket_runs import Run
from tests.unit.kernels.launched import read
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

SPREAD = True  # over the test runner's processes
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = range(1, 301)
BORDERS = (1023, 1024, 1025, 4095, 4096, 4097)
AT_ONCE = 50
# Blocks are short, so that tensors of few numbers have several.
FAMILIES: dict[str, tuple[str, ...]] = {
    "numbers": ("none",),
    "bfloat16": ("bf16",),
    "float16": ("fp16",),
    "casts": ("bf16:communicator=allgather,memory=residual", "fp16:communicator=allgather", "none:communicator=allgather"),
    "signs": ("efsignsgd:block=32", "onebit:group=8,tau=0.1", "signsgd:zero=abstain"),
    "stochastic_levels": (
        "qsgd:bits=4,bucket=32,memory=residual", "terngrad:clip=1.5,bucket=32", "qsgd:bits=3,norm=l2,bucket=100",
    ),
    "log2_quantization": ("natural:bits=4,block=7,memory=residual", "natural"),
    "dynamic_8bit": ("u8bit:block=100", "u8bit:block=16"),
    "linear_quantization": ("lpc:bits=5,clip=0.5,block=100,memory=residual", "lpc:block=16"),
    "affine": ("minmax:bits=3,block=16,memory=residual", "minmax:block=64"),
    "fp8": ("fp8:block=32,memory=residual", "fp8:fmt=e5m2,stochastic=true"),
    "weights": ("fp8:block=32,memory=residual,gamma=2",),
    "memories": ("signum", "efsignsgd:memory=distef,block=32", "fp8:memory=ef21m,block=32"),
    "blocks": ("blockrandomk:ratio=0.4,block=8,mode=cyclic,memory=dgc,clip=0.5",),
    "powersgd": ("powersgd:rank=1,min_rate=0.1",),
    "acpsgd": ("acpsgd:rank=1,min_rate=0.1",),
    "svd": ("atomosvd:rank=1,min_rate=0.1",),
    "gradiveq": ("gradiveq:collect=1",),
    "ridge": ("gradzip:rank=1,min_rate=0.1",),
    "tagged_fixed_point": ("inceptionn:p=6,memory=residual", "inceptionn:memory=residual"),
    "ternary": ("3lc",),
    "two hops": ("qsgd:bits=4,bucket=8,communicator=scatterreduce,memory=residual",),
    "servers": ("efsignsgd:block=32,communicator=parameterserver", "efsignsgd:block=32,communicator=scatterreduce"),
    "rotation": ("drive:block=16,memory=residual", "eden:bits=3,block=64,memory=residual"),
    "hadamard": ("rht:block=16,memory=residual", "rht:inner=fp8,block=64,memory=residual"),
    "lookup_table": ("thc:block=16", "thc:block=64"),
    "random_masks": ("randomk:ratio=0.3", "blockrandomk:ratio=0.4,mode=clt"),
    "selection": ("topk:ratio=0.2", "topk:ratio=0.2,memory=dgc"),
    "quanta": ("qsparse:ratio=0.2,quant=4",),
    "thresholds": ("threshold:v=0.5", "strom", "threshold:v=0.5,relative=true,values=bfloat16"),
    "gaps": ("varsparse:alpha=0.5,index=rice", "topk:ratio=0.2,index=delta", "strom:index=rice"),
    "exceedances": ("sidco:dist=gamma", "sidco:dist=gpareto", "sidco"),
    "sides": ("adaq:joint=true", "adaq"),
    "variable_sparse": ("dgc", "dgc:index=delta"),
    "quantiles": ("sketch", "sketch:quantiles=7,zero_edge=false"),
    "sampling": ("gspar:ratio=0.7", "gspar:rounds=0,memory=residual"),
    "expectations": ("gspar:ratio=0.7,index=rice", "atomo:ratio=0.3,index=delta"),
    "minmax_sketch": ("sketchml", "sketchml:index=rice"),
    "count_sketches": ("sketchedsgd:ratio=0.1,rows=1,cols=1,p2=1", "sketchedsgd:ratio=0.04,rows=3,cols=2,p2=2,nesterov=true"),
}  # fmt: skip
FAMILY = {spec: name for name, specs in FAMILIES.items() for spec in specs}
# Without a memory, and others: a third of the sizes in each dtype.
BARE = (
    "efsignsgd:block=32,memory=none", "onebit:memory=none", "qsgd:bits=2,bucket=16", "qsgd:levels=1", "natural:bits=9",
    "u8bit:memory=none", "lpc:nearest=true", "minmax:nearest=true", "fp8:block=32",
    "blockrandomk:ratio=0.4,block=8,memory=none",
    "randomk:ratio=0.3,memory=none", "topk:ratio=0.3,values=bfloat16,memory=none", "threshold:v=1.5,memory=none",
    "qsparse:ratio=0.3,quant=1,index=raw,memory=none", "inceptionn", "3lc:memory=none", "3lc:zre=false", "drive:block=16",
    "eden:bits=2,block=16", "rht:block=16", "thc:block=16,memory=none", "acpsgd:rank=1,min_rate=0.1,memory=none",
    "gradiveq:memory=none", "gradzip:rank=1,min_rate=0.1,memory=none", "dgc:memory=none", "sidco:memory=none",
    "adaq:memory=none", "strom:memory=none", "atomo:ratio=0.3", "sketch:memory=none", "sketchml:memory=none",
    "sketchedsgd:ratio=0.1,rows=1,cols=1,p2=1,memory=none",
)  # fmt: skip
# Of these a first step and others differ by more than the memory: both run there.
FROM_THE_FIRST = ("powersgd", "acpsgd", "gradiveq", "gradzip", "atomosvd")
GATE = (
    "signs", "stochastic_levels", "log2_quantization", "dynamic_8bit", "linear_quantization", "affine", "fp8", "ternary",
    "powersgd",
)  # fmt: skip
FEW = (*range(1, 10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 300)


def shape_of(n: int) -> tuple[int, int]:
    """A matrix of n numbers, as square as can be."""
    rows = max(rows for rows in range(1, math.isqrt(n) + 1) if n % rows == 0)
    return rows, n // rows


def sizes_of(spec: str, dtype: torch.dtype) -> list[int]:
    """Sizes, of those, that it has in this dtype."""
    specs = FAMILIES[FAMILY[spec]] if spec in FAMILY else BARE[:3]
    turn = specs.index(spec) if spec in FAMILY else BARE.index(spec)
    return [n for n in SIZES if (n + turn + DTYPES.index(dtype)) % len(specs) == 0]


class Aligned(Run):
    """Its tensors begin at multiples of 16 bytes; those of others side by side, after one number."""

    def _give(self, rank: int, step: int) -> dict[str, Tensor]:
        return {name: x.clone() for name, x in super()._give(rank, step).items()}


def outcome(
    spec: str, sizes: Sequence[int], dtype: torch.dtype, *, there: bool, together: bool, aligned: bool = False
) -> tuple[list[Any], list[Any]]:
    """Results of a second step, and what the network is given in it; the first, which makes memories, is the CPU's. Two
    ranks where the network divides tensors among them.
    """
    kind, world = Aligned if aligned else Run, 2 if spec.endswith("server") or "scatterreduce" in spec else 1
    first = there and spec.startswith(FROM_THE_FIRST)
    run = kind(Policy([("*", spec)]), world, tuple(map(shape_of, sizes)), lambda _: first and together, dtype)
    with backends.using("triton" if first else "reference"), cpu_as_accelerator():
        ends = [run.step()]
    run.plans = lambda _: together
    run.reload()
    with backends.using("triton" if there else "reference"), cpu_as_accelerator():
        return [*ends, run.step()], run.seen


def compare(
    spec: str, sizes: Sequence[int], dtype: torch.dtype, *, together: bool = True, aligned: bool = False
) -> None:
    """There and here; says which tensors differ."""
    there = outcome(spec, sizes, dtype, there=True, together=together, aligned=aligned)
    here = outcome(spec, sizes, dtype, there=False, together=False, aligned=aligned)
    same = there == here
    assert same, (spec, dtype, together, aligned, list(differing(there[0], here[0], sizes)))


def differing(there: list[Any], here: list[Any], sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Steps, and sizes of tensors whose means differ."""
    for step, (a, b) in enumerate(zip(there, here, strict=True)):
        for first, second in zip(a[0], b[0], strict=True):
            yield from ((step, n) for n, name in zip(sizes, first, strict=True) if first[name] != second[name])


@pytest.mark.parametrize("name", GATE)
def test_some_sizes(name: str) -> None:
    """The first of a family."""
    compare(FAMILIES[name][0], FEW, DTYPES[GATE.index(name) % 3])


def groups(specs: Iterable[str]) -> list[Any]:
    """Each may go to another of the test runner's processes."""
    return [pytest.param(spec, marks=pytest.mark.xdist_group(f"every size of {spec}")) for spec in specs]


@night
@pytest.mark.parametrize("spec", groups((*FAMILY, *BARE)))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_buckets(spec: str, dtype: torch.dtype) -> None:
    sizes, turn = sizes_of(spec, dtype), DTYPES.index(dtype)
    for number, first in enumerate(range(0, len(sizes), AT_ONCE)):
        compare(spec, sizes[first : first + AT_ONCE], dtype, aligned=(number + turn) % 3 == 0)
    if spec in FAMILIES.get(FAMILY.get(spec, ""), ())[turn : turn + 1] and not spec.startswith("sketchedsgd"):
        compare(spec, BORDERS, dtype)


@night
@pytest.mark.parametrize("name", groups(FAMILIES))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_alone(name: str, dtype: torch.dtype) -> None:
    """As buckets of one, and without buckets: a third of the sizes in each dtype, and each size with one of the family."""
    specs = FAMILIES[name]
    for number, spec in enumerate(specs):
        own = [n for n in SIZES[DTYPES.index(dtype) :: 3] if n // 3 % len(specs) == number]
        compare(spec, own, dtype, together=False)
        for n in own:
            compare(spec, (n,), dtype)


# ---- the kernels that this launches ---------------------------------------------------------------------------------
# What tensors of at most 300 numbers have no part in, and where the others have every size.
ELSEWHERE = {
    "kernels.join_pieces_kernel": "longer than 4096",
    "kernels.low_rank.join_kernel": "several pieces of a matrix",
    "random._walk": "longer than 4096",
    "kernels.quantiles._sample": "longer than 2**20",
    "kernels.packing._pack_trits": "tests/unit/kernels/test_triton_lists.py",
    "kernels.random_masks._take": "tests/unit/kernels/test_triton.py",
    "kernels.random_masks._add": "tests/unit/kernels/test_triton.py",
}
NARROWS = "kernels.multi_tensor._narrow"  # which rounds means to gradients that are narrower than float32


def launched(spec: str, dtype: torch.dtype, *, together: bool) -> set[str]:
    """The kernels of two steps."""
    names, run = set[str](), triton.runtime.interpreter.GridExecutor.__call__

    def note(executor: Any, *args: Any, **how: Any) -> Any:
        names.add(f"{executor.fn.__module__}.{executor.fn.__name__}")
        return run(executor, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("triton.runtime.interpreter.GridExecutor.__call__", note)
        outcome(spec, (299, 300), dtype, there=True, together=together)
    return {name.removeprefix("grace.").replace(".triton.", ".") for name in names}


@night
def test_every_kernel_has_every_size_in_every_dtype() -> None:
    """Every kernel of buckets; the others are launched for tensors alone."""
    alone = set[str]()
    for dtype in DTYPES:
        sizes: dict[str, set[int]] = {}
        for spec in (*FAMILY, *BARE):
            alone |= launched(spec, dtype, together=False)
            for kernel in launched(spec, dtype, together=True):
                sizes.setdefault(kernel, set()).update(sizes_of(spec, dtype))
        few = {kernel: len(some) for kernel, some in sizes.items() if len(some) < len(SIZES)}
        assert few == {}, dtype
        unused = {NARROWS} if dtype is torch.float32 else set[str]()
        assert read().ways.keys() - sizes.keys() - alone == ELSEWHERE.keys() | unused, dtype


# ---- a mutant -------------------------------------------------------------------------------------------------------
@triton.jit
def _one_size_is_cut(table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN):  # type: ignore[no-untyped-def]
    task, tile, x, e, rest, start, n, base, bad, head, nb, key0, key1 = encoder_at(
        table, programs, heads, x, e, rest, wire, bad, n, w, key0, key1, block, MANY, EVEN
    )
    return task, tile, x, e, rest, start, n - (n == 15), base, bad, head, nb, key0, key1


def test_a_kernel_that_is_wrong_at_one_size_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.kernels.signs.triton.encoder_at", _one_size_is_cut)
    compare(FAMILIES["signs"][0], [n for n in FEW if n != 15], torch.float32)
    with pytest.raises(AssertionError):
        test_some_sizes("signs")
