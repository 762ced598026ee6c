"""Kernels compiled for this GPU have the bits of the CPU: wires, means and memories, so that ranks on both agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

import grace
from grace.compute import backends
from grace.contract.method import Method
from grace.flags.finite import cpu_as_accelerator
from grace.registry.policy import Policy
from grace.verify.inputs import UGLY, normal
from grace.verify.running import run, same_bits
from tests.golden.golden import COMPRESSORS, GOLDEN, METHODS, conversation, decoded, encoded
from tests.golden.test_golden import BY_LAPACK
from tests.gpu.here import DEVICE, few, needs_gpu
from tests.laws import test_counted, test_many, test_triton
from tests.laws.bucket_runs import HOST, Run, Shapes
from tests.laws.cases import CASES
from tests.laws.launches import LAUNCHES
from tests.unit.kernels import block_codecs as check
from tests.unit.kernels.test_signs import CODECS, everything
from tests.unit.kernels.test_signs import numbers as signed_numbers
from tests.unit.kernels.test_triton import CODES

pytestmark = needs_gpu
# Whose own parts are torch operations, whose sums have another order there: equal to rounding only, but in buckets of kernels.
BY_TORCH = (
    "gradiveq",
    "atomo",
    "atomosvd",
    "sketch",
    "sketchedsgd",
    "sketchml",
    "adaq",
    "gspar",
    "strom",
)
# So it is of a part of these in buckets of kernels, too: covariances, decompositions, and the moments of distributions.
PARTLY_BY_TORCH = ("gradiveq", "atomo", "atomosvd", "sidco:dist=gpareto", "sidco:dist=gamma")
# Of which the code of an inf, of a wire that is marked, so that nobody reads it, is what the processor makes of it.
WORDS_OF_INF = ("qsgd:norm=l2",)
BUCKETS = dict.fromkeys((*LAUNCHES, "atomosvd:rank=1,min_rate=0.1"))  # the last goes one by one
KINDS: dict[str, Shapes] = {"small": test_many.SMALL, "some": test_many.SHAPES, "large": test_many.LARGE}
OF_BUCKETS = [(torch.float32, "some"), (torch.float32, "large"), (torch.bfloat16, "some"), (torch.float16, "small")]
SIZES = [
    *range(1, 41),
    *(border + d for border in (64, 128, 256, 1024, 4096, 8192) for d in (-1, 0, 1)),
    300,
    9001,
    72_000,
]
OF_SIZES = [
    "efsignsgd", "signsgd", "onebit", "qsgd:bits=4,memory=residual", "qsgd:bits=2,norm=l2", "qsgd:bits=8", "terngrad",
    "natural", "natural:bits=9", "u8bit", "fp8:memory=residual", "lpc:memory=residual", "randomk:ratio=0.3",
    "blockrandomk:ratio=0.3,block=8", "topk:ratio=0.1", "topk:ratio=0.1,index=rice", "threshold:v=1.5", "dgc:ratio=0.1",
    "qsparse:ratio=0.1", "sidco:ratio=0.1", "drive", "eden", "rht", "thc", "bf16", "powersgd:rank=2,min_rate=0.1",
    "acpsgd:rank=2,min_rate=0.1",
]  # fmt: skip


def is_exact(spec: str) -> bool:
    return spec.partition(":")[0] not in BY_TORCH


@contextmanager
def at(device: torch.device, on_cpu: str = "reference") -> Iterator[None]:
    """Triton's kernels there, or those of a CPU whose flags stay tensors as they do there, in states too."""
    if device is DEVICE:
        with backends.using("triton"):
            yield
    else:
        with backends.using(on_cpu), cpu_as_accelerator():
            yield


def assert_agrees(method: Method[Any], xs: list[Tensor], exact: bool, what: object, count: int = 2) -> None:
    """Means and states of some steps."""
    with at(HOST, "native"):
        want = test_triton.steps(method, xs, count)
    with at(DEVICE):
        got = test_triton.steps(method, [x.to(DEVICE) for x in xs], count)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        if exact:
            assert same_bits(a.cpu(), b), f"{what}: {k} of {len(want)} means and memories"
        else:
            torch.testing.assert_close(a.cpu(), b, rtol=2e-4, atol=2e-5, equal_nan=True)


def assert_agrees_by_lapack(method: Method[Any], xs: list[Tensor], what: object) -> None:
    """Means of some steps, to a rounding of the largest number in their own dtype. What they are made of, singular vectors and
    a basis, may have other signs and another order there: they are not compared.
    """
    with at(HOST, "native"):
        want = means_of(method, xs, 4)
    with at(DEVICE):
        got = means_of(method, [x.to(DEVICE) for x in xs], 4)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        largest, eps = float(b.abs().max()) if b.numel() else 0.0, max(1e-5, torch.finfo(xs[0].dtype).eps)
        torch.testing.assert_close(
            a.cpu(), b, rtol=2e-4, atol=eps * largest, msg=lambda text, k=k: f"{what}: {k}: {text}"
        )


def means_of(method: Method[Any], xs: list[Tensor], count: int) -> list[Tensor]:
    """The means of rank 0, as float64."""
    states, out = None, []
    for step in range(count):
        done = run(method, xs, states, step=step)
        states = [out.state for out in done]
        out.append(done[0].mean.double())
    return out


def with_one_nan(means: Any) -> Any:
    """The means of all ranks, in bytes, where each NaN is the same one: what comes of NaN + h depends on the processor."""
    return [
        {name: (dtype, shape, _with_one_nan(dtype, raw)) for name, (dtype, shape, raw) in rank.items()}
        for rank in means
    ]


def _with_one_nan(dtype: torch.dtype, raw: bytes) -> bytes:
    numbers = torch.frombuffer(bytearray(raw), dtype=dtype)
    return numbers.masked_fill_(numbers.isnan(), torch.nan).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("spec", few(CASES))
def test_means_and_memories_of_every_case(spec: str) -> None:
    world = 3 if getattr(CASES[spec], "server", 0) < 3 else 5
    for name, make in UGLY.items():
        xs = [make(rank) for rank in range(world)]
        if spec.partition(":")[0] in BY_LAPACK:
            assert_agrees_by_lapack(CASES[spec], xs, name)
        else:
            assert_agrees(CASES[spec], xs, is_exact(spec), name)


@pytest.mark.parametrize("spec", few(OF_SIZES))
def test_means_and_memories_of_every_size(spec: str) -> None:
    for n in SIZES:
        shape = (n // 9, 9) if "power" in spec or "acp" in spec else (n,)
        assert_agrees(grace.method(spec), [normal(*shape)(rank) for rank in range(2)], True, n)


@pytest.mark.parametrize("spec", few(OF_SIZES))
def test_means_and_memories_of_many_numbers(spec: str) -> None:
    xs = [normal(1_213, 1_001)(rank) for rank in range(2)]
    assert_agrees(grace.method(spec), xs, True, "1.2 million")


@pytest.mark.parametrize(("dtype", "kind"), OF_BUCKETS)
@pytest.mark.parametrize("spec", few(BUCKETS))
def test_a_bucket_has_the_bytes_of_the_cpu(spec: str, dtype: torch.dtype, kind: str) -> None:
    if (not is_exact(spec) and spec not in LAUNCHES) or spec.startswith(PARTLY_BY_TORCH):
        pytest.skip("its parts are torch operations")
    (want, told), (got, heard) = (tell(spec, KINDS[kind], dtype, device) for device in (HOST, DEVICE))
    for step, (a, b) in enumerate(zip(heard, told, strict=True)):
        assert a == b or (step == 2 and spec in WORDS_OF_INF), f"step {step}: bytes"
    for step, (a, b) in enumerate(zip(got, want, strict=True)):
        for part, x, y in zip(("means", "states", "traffic"), a, b, strict=True):
            if part == "means" and "ef21" in spec:  # which adds what it has to means that are not finite
                x, y = with_one_nan(x), with_one_nan(y)
            assert x == y, f"step {step}: {part}"


def tell(spec: str, shapes: Shapes, dtype: torch.dtype, device: torch.device) -> tuple[list[Any], list[Any]]:
    """Results of three steps, the third of which is not finite: (means, states and traffic, the bytes that are sent)."""
    with at(device):
        workers = Run(Policy([("*", spec)]), 2, shapes, lambda _: device is DEVICE, dtype, device)
        done, sent = [], []
        for _ in range(3):
            begin = len(workers.seen)
            done.append(workers.step())
            sent.append(workers.seen[begin:])
        return done, sent


@pytest.mark.parametrize("name", few(COMPRESSORS))
def test_golden_bytes(name: str) -> None:
    with backends.using("triton"), DEVICE:
        assert bytes(encoded(COMPRESSORS[name]).tolist()).hex() == GOLDEN[name]["wire"]
        assert decoded(COMPRESSORS[name], bytes.fromhex(GOLDEN[name]["wire"])) == GOLDEN[name]["decoded"]


@pytest.mark.parametrize("name", few(name for name in METHODS if name.partition(":")[0] not in BY_LAPACK))
def test_golden_conversations(name: str) -> None:
    with backends.using("triton"), DEVICE:
        assert conversation(METHODS[name]) == GOLDEN[name]


@pytest.mark.parametrize("codec", few(CODES))
def test_codes_of_every_size(codec: str) -> None:
    for n in (*range(1, 301), 641, 1025, 2049, 9001):
        x, memory = check.numbers(2, n), check.numbers(2, n, 1) / 4
        with backends.using("reference"):
            want = check.results(CODES[codec], x, memory)
        with backends.using("triton"), DEVICE:
            got = check.results(CODES[codec], x.to(DEVICE), memory.to(DEVICE), n % 4)
        assert [same_bits(a.cpu(), b) for a, b in zip(got, want, strict=True)] == [True] * len(want), n


@pytest.mark.parametrize("codec", few(CODECS))
def test_signs_of_every_size(codec: str) -> None:
    for n in (*range(1, 301), 641, 1025, 2049, 9001):
        block = (1, 3, 8, 16, 48, 4096, 10**12)[n % 7]
        x, memory = signed_numbers(2, n, n % 5, n), signed_numbers(2, n, (n + 1) % 5, n + 1)
        with backends.using("reference"):
            want = everything(codec, x, memory, block, 3)
        with backends.using("triton"), DEVICE:
            got = everything(codec, x.to(DEVICE), memory.to(DEVICE), block, 3)
        assert [same_bits(a.cpu(), b) for a, b in zip(got, want, strict=True)] == [True] * len(want), n


def test_sizes_that_depend_on_the_data_are_those_of_the_cpu() -> None:
    """A bucket of which some tensors go without a list, over 3 workers."""
    spec, out = test_counted.SHARE[0][0], []
    for device in (HOST, DEVICE):
        with at(device):
            workers = Run(Policy([("*", spec)]), 3, test_counted.MIXED, lambda _: True, torch.float32, device)
            out.append(([workers.step() for _ in range(4)], workers.seen))
    assert out[0] == out[1]
