"""Passes of Triton kernels over what they encode, counted in Triton's interpreter, against what compressors declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs the package triton")

from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

import grace
from grace.compute import backends
from grace.contract.compressor import Compressor
from grace.methods.efsignsgd import EFSignSGD
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK
from grace_bench.codecs.compressors import compressor_of
from grace_bench.codecs.device import pass_bytes
from tests.unit.kernels import block_codecs as check
from tests.unit.kernels.triton_checks import interpreter

__all__ = ["interpreter"]

# A block that programs hold whole and one that they do not, and a mean.
SPECS = ("qsgd:bits=4", "natural:bits=8,block=700", "efsignsgd:block=256")
AT_NIGHT = (
    "efsignsgd", "onebit", "signsgd:zero=plus", "signsgd:zero=abstain", "natural", "natural:bits=4", "natural:bits=9",
    "terngrad", "terngrad:bucket=700", "qsgd:bits=4,bucket=700", "qsgd:bits=2,norm=l2", "qsgd:levels=1", "qsgd:bits=16", "fp8",
    "fp8:block=700", "u8bit", "u8bit:block=700", "lpc", "lpc:block=700", "minmax",
)  # fmt: skip
N, W = 1100, 2


def count_moved(run: Callable[[], Any], patch: pytest.MonkeyPatch) -> Callable[[Tensor], tuple[int, int]]:
    """Counts the bytes of a tensor that launches of kernels read, and that they write, each once in a launch."""
    seen: dict[str, list[list[Any]]] = {"create_masked_load": [], "create_masked_store": []}
    execute = GridExecutor.__call__

    def begin(self: Any, *args: Any, **constants: Any) -> None:
        for launches in seen.values():
            launches.append([])
        execute(self, *args, **constants)

    def noting(name: str) -> Callable[..., Any]:
        own, launches = getattr(InterpreterBuilder, name), seen[name]

        def note(self: Any, at: Any, *args: Any) -> Any:
            mask = args[0 if name == "create_masked_load" else 1]
            size = at.get_element_ty().primitive_bitwidth // 8
            first = np.broadcast_to(at.data, mask.data.shape)[mask.data]
            launches[-1].append((first.astype(np.int64)[:, None] + np.arange(size)).ravel())
            return own(self, at, *args)

        return note

    with patch.context() as patched:
        patched.setattr(GridExecutor, "__call__", begin)
        for name in seen:
            patched.setattr(InterpreterBuilder, name, noting(name))
        run()

    def moved(x: Tensor) -> tuple[int, int]:
        begins, ends = x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()
        counts = []
        for launches in seen.values():
            bytes_of = (np.unique(np.concatenate(launch)) for launch in launches if launch)
            counts.append(sum(int(((there >= begins) & (there < ends)).sum()) for there in bytes_of))
        return counts[0], counts[1]

    return moved


def check_passes(compressor: Compressor, feeds_back: bool, patch: pytest.MonkeyPatch) -> None:
    """Encoding and decoding move as many bytes of their tensors as is declared."""
    passes = compressor.passes(N)
    assert passes is not None
    x, memory, rest, out = check.numbers(1, N), check.numbers(1, N, 1), torch.empty(1, N), torch.empty(1, N)
    wires = torch.empty(W, 1, compressor.facts(N).payload or 0, dtype=torch.uint8)
    size, width, made = 4 * N, wires[0].numel(), list[Tensor]()
    with backends.using("triton"):
        moved = count_moved(lambda: made.append(compressor.encode_(x, check.RNG)[0]), patch)
        assert (moved(x), moved(made[0])) == ((passes * size, 0), (0, width))
        assert pass_bytes(ENCODE, compressor, N, W) == passes * size + width
        if feeds_back:
            moved = count_moved(lambda: made.append(compressor.encode_(x, check.RNG, memory, rest)[0]), patch)
            assert moved(x) == moved(memory) == (passes * size, 0)
            assert (moved(rest), moved(made[1])) == ((0, size), (0, width))
            assert pass_bytes(FEEDBACK, compressor, N, W) == (2 * passes + 1) * size + width
        wires.copy_(made[0])
        moved = count_moved(lambda: compressor.aggregate_(list(wires), out, 0.5, check.RNG), patch)
        assert (moved(wires), moved(out)) == ((W * width, 0), (0, size))
        assert pass_bytes(DECODE, compressor, N, W) == W * width + size


@pytest.mark.parametrize(
    "spec", [*SPECS, *(pytest.param(spec, marks=pytest.mark.night("a pass too few")) for spec in AT_NIGHT)]
)
def test_what_compressors_say_of_their_passes(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compressor = compressor_of(grace.method(spec, memory="none"))
    assert compressor is not None
    check_passes(compressor, not spec.startswith("signsgd"), monkeypatch)


def test_a_pass_too_few_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches "a pass too few"."""
    monkeypatch.setattr(EFSignSGD, "passes", lambda self, n: 1)
    with pytest.raises(AssertionError):
        check_passes(EFSignSGD(), True, monkeypatch)


def test_clipping_and_rotations_have_not_been_counted() -> None:
    for compressor in (grace.TernGrad(clip=2.5), grace.EDEN(), grace.TopK(), grace.RandomK()):
        assert compressor.passes(N) is None
