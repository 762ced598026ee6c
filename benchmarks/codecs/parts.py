"""Cases that are no whole method at its usual input: degenerate inputs, index coding, PowerSGD's step on a known matrix."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

import grace
from benchmarks.codecs.goals import CONSTANT, ELIAS_FANO, ELIAS_FANO_FEW, POWERSGD, SPARSE, ZEROS
from grace.kernels import select_topk
from grace.kernels.index_codes import codes as index_codes
from grace.methods.common.counts import count_kept
from grace_bench.codecs.buffers import Buffers
from grace_bench.codecs.clock import Case
from grace_bench.codecs.compressors import compressor_of, stream
from grace_bench.codecs.conversations import ReplayedStep

MATRIX = (4096, 1024)


@dataclass(frozen=True, slots=True)
class IndexList:
    """A list of indices that a case codes: how many, and in how many bytes."""

    count: int
    size: int


def degenerate(buffers: Buffers) -> list[Case]:
    """Top-k of 1 % where nearly all numbers are equal."""
    compressor = compressor_of(grace.method("topk", ratio=0.01, memory="none"))
    assert compressor is not None
    rng = stream(compressor, 0, buffers)

    def sparse() -> None:
        buffers.rows.zero_()
        buffers.rows[:, ::100] = buffers.x[:, ::100]

    inputs = {ZEROS: buffers.rows.zero_, CONSTANT: lambda: buffers.rows.fill_(-0.5), SPARSE: sparse}
    return [Case(name, lambda: compressor.encode_(buffers.rows, rng), make) for name, make in inputs.items()]


def elias_fano(buffers: Buffers) -> list[tuple[Case, IndexList]]:
    """Coding the indices of the largest 1 and 0.1 %."""
    out = []
    for name, ratio in ((ELIAS_FANO, 0.01), (ELIAS_FANO_FEW, 0.001)):
        index = select_topk(buffers.x, count_kept(ratio, buffers.n))  # [1, k]
        size = index_codes.encode(index, buffers.n, "elias-fano").numel()
        case = Case(name, lambda index=index: index_codes.encode(index, buffers.n, "elias-fano"))  # type: ignore[misc]
        out.append((case, IndexList(index.numel(), size)))
    return out


def powersgd() -> tuple[Case, Case, int]:
    """A worker's whole step on a matrix, memory included, without the network; a copy of that matrix; its size."""
    m, l = MATRIX
    buffers = Buffers(m * l)
    case = ReplayedStep(
        POWERSGD, method=grace.method("powersgd:rank=4,memory=residual"), buffers=buffers, shape=MATRIX, part="all"
    )
    source, to = torch.zeros(m, l), torch.zeros(m, l)
    return case, Case("memcpy", lambda: ctypes.memmove(to.data_ptr(), source.data_ptr(), 4 * m * l)), m * l
