"""The same work as it is usually written in torch: what the kernels are compared with.

These do less than the codecs: codes are not packed, indices not coded, one scale serves the whole tensor, random numbers
come from torch's global generator, nothing is checked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.codecs.goals import THRESHOLD
from grace_bench.codecs.buffers import Buffers
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK, Case

_SETUP_SECONDS = 0.5
Payload = tuple[Tensor, Tensor]
Encode = Callable[[Tensor], Payload]
Decode = Callable[[Payload, Tensor], Tensor]  # payload, like -> numbers


def _top(ratio: float) -> tuple[str, Encode, Decode]:
    def encode(x: Tensor) -> Payload:
        index = x.abs().topk(max(1, int(ratio * x.numel())), sorted=False).indices
        return x[index], index

    return "torch.topk, indices as int64", encode, _scatter


def _scatter(payload: Payload, like: Tensor) -> Tensor:
    values, index = payload
    return torch.zeros_like(like).scatter_(0, index, values)


def _above(limit: float) -> tuple[str, Encode, Decode]:
    def encode(x: Tensor) -> Payload:
        index = (x.abs() > limit).nonzero().view(-1)
        return x[index], index

    return "abs, compare, nonzero, index", encode, _scatter


def _random(ratio: float) -> tuple[str, Encode, Decode]:
    def encode(x: Tensor) -> Payload:
        index = torch.randperm(x.numel())[: max(1, int(ratio * x.numel()))]
        return x[index], index

    return "torch.randperm, index", encode, _scatter


def _signs() -> tuple[str, Encode, Decode]:
    def encode(x: Tensor) -> Payload:
        return x.abs().mean(), (x >= 0).to(torch.uint8)

    return "mean, compare, a byte a sign", encode, lambda payload, like: payload[0] * (payload[1].float() * 2 - 1)


def _quantize(bits: int) -> tuple[str, Encode, Decode]:
    s = 2 ** (bits - 1) - 1

    def encode(x: Tensor) -> Payload:
        norm = x.abs().max()
        level = s * x.abs() / norm
        low = level.floor()
        level = low + (torch.rand_like(x) < level - low)
        return norm, (x.sign() * level).to(torch.int8)

    return "rand, floor, a byte a code", encode, lambda payload, like: payload[0] / s * payload[1].float()


def _natural() -> tuple[str, Encode, Decode]:
    def encode(x: Tensor) -> Payload:
        mantissa, exponent = torch.frexp(x)
        up = torch.rand_like(x) < mantissa.abs() * 2 - 1
        return (x < 0), (exponent - 1 + up).clamp_(-127, 127).to(torch.int8)

    def decode(payload: Payload, like: Tensor) -> Tensor:
        sign, exponent = payload
        return torch.ldexp(torch.where(sign, -1.0, 1.0), exponent)

    return "frexp, rand, a byte an exponent", encode, decode


def _codebook() -> tuple[str, Encode, Decode]:
    table = torch.cat([torch.zeros(1), torch.logspace(-6, 0, 127)])
    table = torch.cat([-table.flip(0)[:-1], table])  # [255]
    middle = (table[1:] + table[:-1]) / 2

    def encode(x: Tensor) -> Payload:
        scale = x.abs().max()
        return scale, torch.bucketize(x / scale, middle, out_int32=True).to(torch.uint8)

    return "torch.bucketize", encode, lambda payload, like: table[payload[1].int()] * payload[0]


def _turned(x: Tensor, signs: Tensor) -> Tensor:
    """Blocks ``[m, 1024]`` with these signs, times Hadamard's matrix."""
    x, s = x * signs, 1
    while s < x.shape[1]:
        p, q = x.view(-1, x.shape[1] // (2 * s), 2, s).unbind(2)
        x, s = torch.stack((p + q, p - q), 2).view(x.shape), 2 * s
    return x.div(math.sqrt(x.shape[1]))


def _shared_table(h: int = 1024) -> tuple[str, Encode, Decode]:
    signs = torch.randint(0, 2, (1, h), generator=torch.Generator().manual_seed(0)).float() * 2 - 1

    def encode(x: Tensor) -> Payload:
        y = _turned(torch.nn.functional.pad(x, (0, -x.numel() % h)).view(-1, h), signs)
        bound = 2.15 * y.square().mean(1, keepdim=True).sqrt()
        return bound, ((y / bound).clamp(-1, 1) * 7.5 + 7.5 + torch.rand_like(y)).to(torch.uint8)

    def decode(payload: Payload, like: Tensor) -> Tensor:
        bound, level = payload
        y = (level.float() / 7.5 - 1) * bound
        return (_turned(y, torch.ones(1, h)) * signs).view(-1)[: like.numel()]

    return "stacked sums and differences, rand, a byte a code", encode, decode


def _buckets(q: int = 16) -> tuple[str, Encode, Decode]:
    def encode(x: Tensor) -> Payload:
        seen = x[:: max(1, x.numel() >> 18)].sort().values
        code = torch.bucketize(x, seen[torch.arange(1, q) * seen.numel() // q], right=True)
        sums = torch.zeros(q, dtype=torch.float64).scatter_add_(0, code, x.double())
        return (sums / code.bincount(minlength=q).clamp_(min=1)).float(), code.to(torch.uint8)

    return "sort, torch.bucketize, scatter_add_", encode, lambda payload, like: payload[0][payload[1].int()]


CODES: dict[str, Callable[[], tuple[str, Encode, Decode]]] = {
    "topk": lambda: _top(0.01),
    "topk:ratio=0.001": lambda: _top(0.001),
    THRESHOLD: lambda: _above(float(THRESHOLD.rpartition("=")[2])),
    "randomk": lambda: _random(0.01),
    "efsignsgd": _signs,
    "qsgd:bits=8": lambda: _quantize(8),
    "qsgd": lambda: _quantize(4),
    "qsgd:bits=2": lambda: _quantize(2),
    "natural": _natural,
    "u8bit": _codebook,
    "thc": _shared_table,
    "sketch": _buckets,
}


def case(operation: str, method: str, buffers: Buffers, payloads: int) -> Case | None:
    """The counterpart of an operation of this method; None where there is none."""
    if method not in CODES:
        return None
    what, encode, decode = CODES[method]()
    x, memory = buffers.x.view(-1), buffers.memory.view(-1)
    if operation == ENCODE:
        return Case(operation, lambda: encode(x), kernels="torch", what=what)
    if operation == FEEDBACK:

        def feedback() -> tuple[Payload, Tensor]:
            p = x + memory
            payload = encode(p)
            return payload, p - decode(payload, p)

        return Case(operation, feedback, kernels="torch", what=what)
    if operation != DECODE:
        return None
    received: list[Payload] = []

    def prepare() -> None:
        start = time.perf_counter()
        while len(received) < payloads:
            if len(received) >= 2 and time.perf_counter() - start > _SETUP_SECONDS:
                received.append(received[len(received) - 2])  # as the codecs' own slow wires
            else:
                received.append(encode(buffers.gradient(len(received)).view(-1)))

    def total() -> Tensor:
        return sum((decode(payload, x) for payload in received), torch.zeros_like(x)) / buffers.workers

    return Case(operation, total, prepare, "torch", what)
