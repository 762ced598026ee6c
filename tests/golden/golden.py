"""What the golden bytes are made of: whole numbers and powers of two, and streams that are whole numbers too.

Nothing here depends on a libm or on an order of sums that is not fixed, so that the bytes are the same on every machine.
(Singular vectors and eigenvectors, of atomosvd and gradiveq, are LAPACK's: their numbers are compared to a tolerance.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import grace
from grace.compressor import Compressor
from grace.peer import Peer
from grace.random import Stream
from grace.run.simulate import answers

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
    "topk:ratio=0.125": grace.TopK(ratio=0.125, index="raw"),
    **{
        f"topk:ratio=0.125,index={code}": grace.TopK(0.125, index=code)
        for code in ("bitmap", "delta", "elias-fano", "rice")
    },
    "topk:ratio=0.125,values=bfloat16": grace.TopK(ratio=0.125, values="bfloat16"),
    "3lc": grace.ThreeLC(),
    "3lc:zre=false": grace.ThreeLC(zre=False),
    "adaq:ratio=0.25": grace.AdaQ(ratio=0.25),
    "atomo:ratio=0.25": grace.Atomo(ratio=0.25),
    "dgc:ratio=0.125": grace.DGC(ratio=0.125),
    "drive:block=16": grace.DRIVE(block=16),
    "eden:bits=2,block=16": grace.EDEN(bits=2, block=16),
    "fp8:block=16": grace.FP8(block=16),
    "fp8:block=16,fmt=e5m2": grace.FP8(block=16, fmt="e5m2"),
    "gspar:ratio=0.25": grace.GSpar(ratio=0.25),
    "inceptionn": grace.Inceptionn(),
    "lpc:block=16": grace.LPC(block=16),
    "natural": grace.Natural(),
    "natural:bits=4,block=16": grace.Natural(bits=4, block=16),
    "natural:bits=9": grace.Natural(bits=9),
    "onebit:group=16": grace.OneBit(group=16),
    "qsparse:ratio=0.25": grace.Qsparse(ratio=0.25),
    "qsparse:ratio=0.25,quant=3": grace.Qsparse(ratio=0.25, quant=3),
    "rht:block=16": grace.RHT(block=16),
    "signum": grace.Signum(),
    "sketch:quantiles=4": grace.Sketch(quantiles=4),
    "sketchml": grace.SketchML(),
    "strom:tau=2,relative=false": grace.Strom(tau=2.0, relative=False),
    "terngrad:bucket=16": grace.TernGrad(bucket=16),
    "u8bit:block=16": grace.U8bit(block=16),
}
METHODS = {
    "powersgd:rank=2": grace.PowerSGD(rank=2, min_rate=0.1),
    "acpsgd:rank=2": grace.ACPSGD(rank=2, min_rate=0.1),
    "atomosvd:rank=2": grace.AtomoSVD(rank=2, min_rate=0.1),
    "blockrandomk:ratio=0.25,block=8": grace.BlockRandomK(ratio=0.25, block=8),
    "gradiveq:length=8,dims=2,collect=1": grace.GradiVeQ(length=8, dims=2, collect=1),
    "gradzip:rank=2": grace.GradZip(rank=2, min_rate=0.1),
    "sidco:ratio=0.25": grace.SIDCo(ratio=0.25),
    "sketchedsgd:ratio=0.1": grace.SketchedSGD(ratio=0.1),
    "thc:block=16": grace.THC(block=16),
    "varsparse": grace.VarSparse(),
}


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
            sent[f"round {len(sent)}"] = op.buf.flatten().tolist()
            op = run.send(answers([op])[0])
    except StopIteration as stop:
        return {**sent, "mean": stop.value.mean.flatten().tolist()}
