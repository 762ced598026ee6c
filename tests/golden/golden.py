"""What the golden bytes are made of: whole numbers and powers of two, and streams that are whole numbers too.

Nothing here depends on a libm or on the order of a sum, so that the bytes are the same on every machine. (PowerSGD's
first subspace comes from Box-Muller and its factors from a QR: its numbers are compared to a tolerance.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import grace
from grace.collectives import AllReduce
from grace.method import Compressor, Peer
from grace.random import Stream

FILE = Path(__file__).with_name("golden.json")

COMPRESSORS: dict[str, Compressor] = {
    "none": grace.Identity(),
    "fp16": grace.FP16(),
    "bf16": grace.BF16(),
    "efsignsgd": grace.EFSignSGD(),
    "efsignsgd:block=8": grace.EFSignSGD(block=8),
    "qsgd": grace.QSGD(),
    "qsgd:bits=8,bucket=16": grace.QSGD(bits=8, bucket=16),
    "qsgd:levels=1": grace.QSGD(levels=1),
    "qsgd:levels=4": grace.QSGD(levels=4),
    "qsgd:bits=3,bucket=16,norm=l2,shrink=true": grace.QSGD(bits=3, bucket=16, norm="l2", shrink=True),
    "randomk:ratio=0.25": grace.RandomK(ratio=0.25),
    "randomk:ratio=0.25,scale=false": grace.RandomK(ratio=0.25, scale=False),
    "signsgd": grace.SignSGD(),
    "signsgd:zero=abstain": grace.SignSGD(zero="abstain"),
    "signsgd:zero=plus": grace.SignSGD(zero="plus"),
    "threshold:v=4": grace.Threshold(v=4.0),
    "threshold:v=100": grace.Threshold(v=100.0),
    "threshold:v=0.1": grace.Threshold(v=0.1),
    "topk:ratio=0.125": grace.TopK(ratio=0.125),
}
METHODS = {"powersgd:rank=2": grace.PowerSGD(rank=2, min_rate=0.1)}


def numbers(n: int = 37) -> Tensor:
    """``[n]``: m 2^e with small whole m, of both signs, with zeros and ties."""
    i = torch.arange(n)
    x = ((i * 7 + 3) % 13 - 6).float()  # -6 ... 6
    return torch.ldexp(x, (i % 5) - 2)


def stream(compressor: Compressor) -> Stream:
    """The same for all time."""
    rank = None if compressor.randomness == "shared" else 1
    return Stream(seed=12345, method=compressor.id, tensor="fc.weight", rank=rank, step=17)


def encoded(compressor: Compressor) -> Tensor:
    """The wire, as bytes."""
    return compressor.compress_(numbers()[None], stream(compressor), False).view(torch.uint8)[0]


def decoded(compressor: Compressor, wire: bytes) -> list[float]:
    """What these bytes say."""
    like = compressor.compress_(numbers()[None], stream(compressor), False)
    out = torch.zeros(1, numbers().numel())
    raw = torch.tensor(list(wire), dtype=torch.uint8)
    compressor.decompress_add_(raw.view(like.dtype).view(1, -1), out, 1.0, stream(compressor))
    return [float(v) for v in out[0]]


def conversation(method: Any) -> dict[str, list[float]]:
    """The buffers that one lone worker sends, and the mean."""
    x = numbers(48).view(8, 6)
    run = method.exchange(x.clone(), method.init(x), Peer(0, 1, 17, "fc.weight", 12345))
    sent = {}
    try:
        op = next(run)
        while True:
            assert isinstance(op, AllReduce)
            sent[f"round {len(sent)}"] = op.buf.flatten().tolist()
            op = run.send(op.buf.clone())
    except StopIteration as stop:
        return {**sent, "mean": stop.value.mean.flatten().tolist()}
