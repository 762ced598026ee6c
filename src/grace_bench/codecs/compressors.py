"""The cases of a compressor: what its communicator calls, on one row."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grace.communicators import Allreduce
from grace.contract.compressor import Compressor
from grace.contract.method import Method
from grace.contract.peer import Peer
from grace.contract.wrapping import find_compressor
from grace.random import Stream
from grace_bench.codecs.buffers import Buffers
from grace_bench.codecs.clock import DECODE, ENCODE, FEEDBACK, Case

_SETUP_SECONDS = 0.5  # a slow method makes fewer different wires, at least two, and repeats them


def compressor_of(method: Method[Any] | None) -> Compressor | None:
    """The compressor of a communicator, with or without a memory around it; None if there is none."""
    return None if method is None else find_compressor(method)


def cases(plain: Method[Any], feedback: Method[Any] | None, buffers: Buffers) -> list[Case]:
    """Encode, encode with error feedback (where ``feedback`` is not None), decode and sum."""
    compressor = compressor_of(plain)
    assert compressor is not None
    out = [Case(ENCODE, _encoder(compressor, buffers), buffers.restore)]
    with_memory = compressor_of(feedback)
    if with_memory is not None:
        out.append(Case(FEEDBACK, _encoder(with_memory, buffers, remember=True), buffers.restore))
    return [*out, _decoder(compressor, buffers, payloads(plain, buffers))]


def payloads(method: Method[Any], buffers: Buffers) -> int:
    """Number of wires that one worker decodes: one where the network has summed them."""
    return 1 if isinstance(method, Allreduce) else buffers.workers


def stream(compressor: Compressor, rank: int, buffers: Buffers) -> Stream:
    """The stream that a communicator hands to the compressor of this worker."""
    peer = Peer(rank, buffers.workers, step=1, name="weight")
    shared = compressor.randomness == "shared"
    return peer.shared(compressor.id) if shared else peer.private(compressor.id).fork(0)


def _encoder(compressor: Compressor, buffers: Buffers, *, remember: bool = False) -> Callable[[], object]:
    rng = stream(compressor, 0, buffers)
    memory, rest = (buffers.memory, buffers.rest) if remember else (None, None)
    return lambda: compressor.encode_(buffers.rows, rng, memory, rest)


def _decoder(compressor: Compressor, buffers: Buffers, count: int) -> Case:
    """Decodes the wires of ``count`` workers, and adds them up. The wires are made when they are first needed, and lie side by
    side, as a collective leaves them.
    """
    wires: list[Tensor] = []
    scale = 1.0 if compressor.aggregation == "majority" else 1 / buffers.workers
    rng = Peer(0, buffers.workers, step=1, name="weight").shared(compressor.id)

    def prepare() -> None:
        start, made = time.perf_counter(), list[Tensor]()
        while not wires and len(made) < count:
            if len(made) >= 2 and time.perf_counter() - start > _SETUP_SECONDS:
                made.extend(itertools.islice(itertools.cycle(list(made)), count - len(made)))
            else:
                rng = stream(compressor, len(made), buffers)
                made.append(compressor.encode_(buffers.gradient(len(made)), rng)[0])
        wires.extend(torch.stack(made) if len({wire.shape for wire in made}) == 1 else made)

    return Case(DECODE, lambda: compressor.aggregate_(wires, buffers.out, scale, rng), prepare)
