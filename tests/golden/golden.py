"""Inputs of the golden bytes: whole numbers and powers of two, and streams that are whole numbers too.

Nothing here depends on a libm or on an order of sums that is not fixed, so that the bytes are the same on every machine.
(Singular vectors and eigenvectors, of atomosvd and gradiveq, are LAPACK's: their numbers are compared to a tolerance.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grace.contract.compressor import Compressor
from grace.contract.knobs import spell_value
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.contract.wrapping import own_fields
from grace.random import Stream
from grace.registry import parse, recipe
from grace.run.simulate import answers

FILE = Path(__file__).with_name("golden.json")

GOLDEN: dict[str, dict[str, Any]] = json.loads(FILE.read_text())


def core(spec: str) -> Method[Any] | Compressor:
    """The class itself with these knobs, without a communicator and a memory."""
    name, knobs = parse(spec)
    made: Method[Any] | Compressor = recipe(name).factory(**knobs)
    return made


CORES = {spec: core(spec) for spec in GOLDEN}
COMPRESSORS = {spec: entry for spec, entry in CORES.items() if isinstance(entry, Compressor)}
METHODS = {spec: entry for spec, entry in CORES.items() if isinstance(entry, Method)}


def example(name: str) -> str:
    """Specification of a method's golden bytes: its first case, but for what goes around it."""
    entry = recipe(name)
    knobs = parse(f"{name}:{entry.cases[0]}" if entry.cases[0] else name)[1]
    own = {knob: value for knob, value in knobs.items() if knob in own_fields(entry.factory)}
    text = ",".join(f"{knob}={spell_value(value)}" for knob, value in own.items())
    return f"{name}:{text}" if text else name


def record(spec: str) -> dict[str, Any]:
    """Record of it: its wire and what that decodes to, or its conversation."""
    implementation = core(spec)
    if isinstance(implementation, Method):
        return conversation(implementation)
    wire = bytes(encoded(implementation).tolist())
    return {"wire": wire.hex(), "decoded": decoded(implementation, wire)}


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
    """Numbers that these bytes decode to."""
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
