"""Zeros that are + or - by position, rank and step: in captured steps, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import torch
from torch import Tensor

from grace.flags.capturing import CapturedStep, step_word
from grace.random import Stream

T = TypeVar("T", bound="Tensor | tuple[Tensor, object]")


def with_phase(encode: Callable[[int], T], rng: Stream, written: Iterable[Tensor | None] = ()) -> T:
    """``encode(phase)`` with the phase of this rank and step, to which an odd number adds as much as 1.

    A captured step has the number that its replay finds on the device. There both phases are encoded, and what belongs to the
    replay's is kept.

    Args:
        encode: answers with a tensor, or with one and with what does not depend on the phase.
        rng: of the rank and the step.
        written: all tensors, of any shapes, that ``encode`` writes; it may read them before.
    """
    phase, step = (rng.rank or 0) + rng.step, rng.step
    if not isinstance(step, CapturedStep):
        return encode(phase)
    places = [x for x in written if x is not None]
    before = [x.clone() for x in places]
    other = encode(phase + 1)
    others = [x.clone() for x in places]
    for x, old in zip(places, before, strict=True):
        x.copy_(old)
    out = encode(phase)
    clock = step_word(step, (out if isinstance(out, Tensor) else out[0]).device)
    assert isinstance(clock, Tensor)  # of a captured step
    same = (clock.view(()) - int(step)).bitwise_and(1) == 0
    for x, old in zip(places, others, strict=True):
        x.copy_(torch.where(same, x, old))
    if isinstance(out, Tensor):
        return cast(T, torch.where(same, out, cast(Tensor, other)))
    wire, finite = cast("tuple[Tensor, object]", out)
    return cast(T, (torch.where(same, wire, cast("tuple[Tensor, object]", other)[0]), finite))
