"""Law 6, fused equals alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

import grace
from grace.contract.method import Method
from grace.run import simulate, together
from grace.verify.inputs import heavy, normal
from grace.verify.outcome import Held, Profile
from grace.verify.running import assert_untouched, copy_tensor, find_grid, make_peer, run, same_bits, snapshot
from grace.verify.subject import Subject
from grace.verify.trials import choose_worlds, list_numbers, make_workers


def fused_equals_alone(methods: Sequence[Method[Any]], inputs: Sequence[Sequence[Tensor]], steps: int = 2) -> None:
    """Exchanged together, tensors get the bits that they get alone. ``inputs``: one list of xs for each method."""
    W = len(inputs[0])
    grid = find_grid(methods, W)
    alone = [[m.init(x) for x in xs] for m, xs in zip(methods, inputs, strict=True)]
    fused = [[m.init(x) for x in xs] for m, xs in zip(methods, inputs, strict=True)]
    for step in range(steps):
        apart = [run(m, xs, s, step=step) for m, xs, s in zip(methods, inputs, alone, strict=True)]
        alone = [[out.state for out in outs] for outs in apart]
        merged = simulate(
            [
                together(
                    [
                        m.exchange(copy_tensor(xs[r]), s[r], make_peer(r, W, step, grid=grid))
                        for m, xs, s in zip(methods, inputs, fused, strict=True)
                    ]
                )
                for r in range(W)
            ],
            grid,
        )
        fused = [[merged[r][i].state for r in range(W)] for i in range(len(methods))]
        for i, method in enumerate(methods):
            for r in range(W):
                assert same_bits(merged[r][i].mean, apart[i][r].mean), f"fused: {method} has another mean than alone"
            assert_untouched(fused[i], snapshot(alone[i]), f"fused: {method}")


def check(subject: Subject, profile: Profile) -> Held:
    """Checks the law; returns the report's entry about it."""
    others = [grace.method("none"), grace.method("powersgd:rank=1,min_rate=0.1")]
    for world in choose_worlds(subject, profile):
        for method in subject.all:
            fused_equals_alone(
                [method, others[0], method, others[1], method],
                [
                    make_workers(make, world)
                    for make in (normal(13, 7), normal(5), heavy(6, 6), normal(6, 5), normal(31))
                ],
            )
    return Held(f"bit for bit, {list_numbers(choose_worlds(subject, profile))} workers")
