"""A short run of what ``make fuzz`` runs for hours, and proof that it would see a defect."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import grace
from grace.errors import PayloadError
from grace.random import Stream
from tests.fuzz.damage import damage
from tests.fuzz.decoders import Decoder
from tests.fuzz.exchanges import Conversation
from tests.fuzz.targets import fuzz, names

PAYLOADS, SECONDS, ROWS = 120, 0.25, 40


@pytest.mark.parametrize(("target", "backend"), names())
def test_damaged_payloads_are_refused_or_decoded(target: str, backend: str) -> None:
    outcome = fuzz(target, backend, PAYLOADS if target.startswith("decoder") else 10, SECONDS, 7, ROWS)
    assert outcome.payloads > 0
    assert outcome.failure == ""


class Trusting(grace.TopK):
    """A decoder that believes what it is told."""

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        try:
            grace.TopK.decompress_add_(self, wire, out, scale, rng)
        except PayloadError as error:
            raise IndexError("index out of range") from error


class Credulous(grace.EFSignSGD):
    """A decoder that takes any scale."""

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        try:
            grace.EFSignSGD.decompress_add_(self, wire, out, scale, rng)
        except PayloadError:
            out.fill_(torch.inf)


class Slow(grace.QSGD):
    """A decoder whose work follows a number in the wire: the clock that is lent to it goes on by a minute."""

    clock: ClassVar[float] = 0.0

    def decompress_add_(self, wire: Tensor, out: Tensor, scale: float, rng: Stream) -> None:
        try:
            grace.QSGD.decompress_add_(self, wire, out, scale, rng)
        except PayloadError:
            Slow.clock += 60.0
            raise


class Silent(grace.Allgather):
    """An exchange that says finite whatever came."""

    def exchange(self, x: Tensor, state: object, peer: grace.Peer):  # type: ignore[no-untyped-def]
        out = yield from grace.Allgather.exchange(self, x, state, peer)
        return grace.Exchanged(out.mean, out.rest, out.state, True)


@pytest.mark.parametrize(
    ("broken", "finding"),
    [(Trusting(0.2, index="raw"), "IndexError"), (Credulous(), "inf or NaN"), (Slow(), "s of work")],
)
def test_a_broken_decoder_is_found(broken: grace.Compressor, finding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.tally.thread_time", lambda: Slow.clock)
    with pytest.raises((AssertionError, IndexError)) as found:
        Decoder(broken, "reference", rows=ROWS).run(1500)
    assert finding in f"{found.type.__name__}: {found.value}"


def test_a_flag_that_lies_is_found() -> None:
    with pytest.raises(AssertionError, match="flagged finite"):
        Conversation(Silent(grace.TopK(0.5))).run(500)


def test_damage_changes_what_it_says() -> None:
    dice, whole = np.random.default_rng(0), np.zeros((50, 90), dtype=np.uint8)
    sizes, changed = set(), 0
    for _ in range(200):
        out, count = damage(whole, dice)
        sizes.add(out.shape[1])
        changed += int((out[:, :90] != 0).any(axis=1).sum()) <= count
    assert not whole.any()
    assert changed == 200
    assert min(sizes) < 90 < max(sizes)
