"""The state of one fragment at its learner."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grace.decoupled.codec import FragmentCodec, as_numbers
from grace.decoupled.saved import read_tensors
from grace.run.saved import read_count


class Fragment:
    """The state of one fragment at its learner.

    Args:
        names: of its parameters. sizes: numbers of each.
        up, down: codecs.

    debt: e, None if nothing is owed. reference: None before the fragment has come. sent: contributions so far. unsaved: those
    of them that a death of the syncer would undo, by number; work: their steps and tokens; marks: theirs, and that of the one
    before. serial: of the last update. steps, tokens: since then. steps_back, tokens_back: of contributions that did not
    count, and are owed again. pulled: whether Δ was sent since then. returning: whether the next update is the first since the
    learner was welcomed; keeps: whether what it has done before counts.
    """

    def __init__(self, names: list[str], sizes: list[int], up: FragmentCodec, down: FragmentCodec):
        self.sizes = sizes
        self.names, self.up, self.down = names, up, down
        self.debt: list[Tensor] | None = None
        self.reference: list[Tensor] | None = None
        self.unsaved: dict[int, list[bytes]] = {}
        self.work: dict[int, tuple[int, int]] = {}
        self.marks = {0: 0}
        self.sent = self.serial = self.steps = self.tokens = self.steps_back = self.tokens_back = 0
        self.pulled, self.returning, self.keeps = False, True, False

    def owe(self) -> list[Tensor]:
        """e, to be added to: zeros where nothing was owed."""
        if self.debt is None:
            self.debt = [torch.zeros(n, dtype=torch.float32, device="cpu") for n in self.sizes]
        return self.debt

    @property
    def norm(self) -> float:
        """The norm of e."""
        return math.sqrt(sum(float(e.double().square().sum()) for e in self.debt or []))

    def forget(self, saved: int) -> None:
        """Nobody will ask for these contributions again."""
        self.unsaved = {number: wires for number, wires in self.unsaved.items() if number > saved}
        self.work = {number: self.work[number] for number in self.unsaved}
        self.marks = {number: mark for number, mark in self.marks.items() if number >= saved}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers; tensors are copied."""
        return {
            "debt": None if self.debt is None else [e.clone() for e in self.debt],
            "reference": None if self.reference is None else [x.clone() for x in self.reference],
            "marks": dict(self.marks),
            "unsaved": {number: [as_numbers(w, torch.uint8) for w in wires] for number, wires in self.unsaved.items()},
            "work": {number: list(work) for number, work in self.work.items()},
            **{key: getattr(self, key) for key in (*_COUNTS, *_FLAGS)},
        }

    def read(self, state: Any) -> dict[str, Any]:
        """The attributes that a state says, under :func:`~grace.decoupled.saved.reading`; changes nothing."""
        values: dict[str, Any] = {key: read_count(state[key], key) for key in _COUNTS}
        values |= {key: bool(state[key]) for key in _FLAGS}
        for key in ("debt", "reference"):
            values[key] = None if state[key] is None else read_tensors(state[key], self.sizes, key)
        values["marks"] = {int(number): int(mark) for number, mark in state["marks"].items()}
        values["unsaved"] = {
            read_count(number, "contribution"): [x.numpy().tobytes() for x in wires]
            for number, wires in state["unsaved"].items()
        }
        values["work"] = {
            number: (read_count(steps, "steps"), read_count(tokens, "tokens"))
            for number, (steps, tokens) in ((number, state["work"][number]) for number in values["unsaved"])
        }
        return values


_COUNTS = ("sent", "serial", "steps", "tokens", "steps_back", "tokens_back")
_FLAGS = ("pulled", "returning", "keeps")
