"""Law 4, declared facts: the size of a wire, and whether wires can be summed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import grace
from grace.contract.peer import Peer
from grace.verify.inputs import normal
from grace.verify.outcome import Held, Profile, no_promise
from grace.verify.running import make_peer
from grace.verify.subject import Subject
from grace.verify.trials import SHAPE


def payload(compressor: grace.Compressor, rows: Tensor) -> None:
    """The declared payload is the wire's size, unless it varies; several rows have the same wires as each alone."""
    b, n = rows.shape
    stream = Peer(0, 1, name="w").private(compressor.id)
    wire = compressor.compress_(rows.clone(), stream, False)
    declared = compressor.facts(n).payload
    assert (declared is None) == compressor.varies, f"payload: {declared} declared, but varies={compressor.varies}"
    size = wire.shape[1] * wire.element_size()
    assert wire.shape[0] == b, f"payload: {wire.shape[0]} wires for {b} rows"
    assert declared in (None, size), f"payload: {declared} bytes declared, {size} encoded"


def summable(compressor: grace.Compressor, rows: Tensor) -> None:
    """If the compressor is declared summable, the sum of wires decodes to the sum of what they decode to."""
    if not compressor.summable:
        return
    stream = Peer(0, 1, name="w").shared(compressor.id)
    wire = compressor.compress_(rows.clone(), stream, False)
    each, whole = torch.zeros_like(rows), torch.zeros_like(rows[:1])
    compressor.decompress_add_(wire, each, 1.0, stream)
    compressor.decompress_add_(wire.sum(0, keepdim=True), whole, 1.0, stream)
    legal = 4 * len(rows) * torch.finfo(wire.dtype).eps * float(each.abs().max())
    error = float((whole - each.sum(0, keepdim=True)).abs().max())
    assert error <= legal, f"summable: the sum of wires decodes {error:.3g} off the sum, legal {legal:.3g}"


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    if subject.compressor is None:
        return no_promise("it has its own exchange")
    for n in (1, 2, 5, 31, 257):
        payload(subject.compressor, normal(3, n)(0))
        summable(subject.compressor, normal(3, n)(0))
    n = math.prod(SHAPE)
    x = normal(1, n)(0)
    stream = make_peer(0, 1).private(subject.compressor.id)
    wire = subject.compressor.compress_(x, stream, False)
    size = wire.numel() * wire.element_size()
    promised = subject.compressor.facts(n).payload
    words = "; wires can be summed" if subject.compressor.summable else ""
    declared = "depends on the data" if promised is None else f"{promised:,} bytes"
    measured = f"{size:,} bytes, {8 * size / n:.3g} bits per number"
    return Held(measured, declared + words, numbers={"bytes": size, "elements": n})
