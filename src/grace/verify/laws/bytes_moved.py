"""Law 4, declared facts: rounds and bytes, as the collectives move them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import grace
from grace.collectives import Traffic
from grace.contract.method import Method
from grace.contract.wrapping import find_compressor, layers
from grace.run import Tracer, simulate
from grace.verify.inputs import UGLY
from grace.verify.outcome import Held, Profile
from grace.verify.running import find_grid, make_peer, run
from grace.verify.subject import Subject
from grace.verify.trials import SHAPE, make_some, make_workers


def traffic(method: Method[Any], xs: Sequence[Tensor], keep_rest: bool = False) -> list[Traffic]:
    """The declared rounds and bytes are what the collectives move, for each rank.

    Returns:
        what each rank moved in the last step.
    """
    W = len(xs)
    grid = find_grid([method], W)
    tracers = [Tracer(rank, W, grid.place(rank) if grid else None) for rank in range(W)]
    states = [method.init(x) for x in xs]
    for step in range(2):
        for tracer in tracers:
            tracer.traffic = Traffic()
        outs = run(
            method,
            xs,
            states,
            step=step,
            keep_rest=keep_rest,
            runner=lambda ex, grid=None: simulate([t.trace(e) for t, e in zip(tracers, ex, strict=True)], grid),
        )
        states = [out.state for out in outs]
        for rank, (x, tracer) in enumerate(zip(xs, tracers, strict=True)):
            declared = method.traffic(torch.empty_like(x, device="meta"), make_peer(rank, W, step, keep_rest=keep_rest))
            if declared is None:
                assert varies(method), "traffic: None, though no size depends on the data"
                continue
            assert tracer.traffic == declared, f"traffic: rank {rank} declares {declared}, moved {tracer.traffic}"
    return [tracer.traffic for tracer in tracers]


def varies(method: Method[Any]) -> bool:
    """True if the sizes of its wires depend on the data."""
    compressor = find_compressor(method)
    if compressor is not None:
        return compressor.varies
    core = layers(method)[-1]
    return bool(
        getattr(core, "varies", method.facts(torch.empty(64, 64, device="meta", dtype=torch.float32)).payload is None)
    )


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    for name in ("one element", "empty", "zeros", "f16", "f64"):
        xs = make_workers(UGLY[name], max(2, subject.least_world))
        for method in subject.all:
            traffic(method, xs)
    for method in subject.all:
        moved = traffic(method, make_some(subject))
    moved = traffic(subject.method, make_some(subject))
    most = max(moved, key=lambda traffic: traffic.sent)
    like = torch.empty(SHAPE, device="meta", dtype=torch.float32)
    declared = subject.method.traffic(like, make_peer(moved.index(most), len(moved), 1))
    elements = math.prod(SHAPE)
    measured = f"{_spell_traffic(most)} for {elements:,} numbers, {len(moved)} workers"
    numbers = {"rounds": most.rounds, "sent": most.sent, "elements": elements, "workers": len(moved)}
    return Held(measured, "depends on the data" if declared is None else _spell_traffic(declared), numbers=numbers)


def _spell_traffic(traffic: grace.Traffic) -> str:
    return f"{traffic.rounds} round{'s' * (traffic.rounds != 1)}, {traffic.sent:,} bytes sent"
