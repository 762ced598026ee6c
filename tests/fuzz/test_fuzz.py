"""A short run of what ``make fuzz`` runs for hours, and proof that it would see a defect."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import grace
from grace.errors import PayloadError
from grace.random import Stream
from tests.fuzz import record
from tests.fuzz.damage import damage
from tests.fuzz.decoders import Decoder
from tests.fuzz.exchanges import Conversation
from tests.fuzz.targets import Outcome, fuzz, names

PAYLOADS, SECONDS, ROWS = 36, 0.25, 12
MANY = 40  # rows, where a defect has to be found


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
    with pytest.raises((AssertionError, IndexError)) as caught:
        Decoder(broken, "reference", rows=MANY).run(1500)
    assert finding in f"{caught.type.__name__}: {caught.value}"


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


def test_a_share_goes_to_the_decoders_that_have_had_least() -> None:
    targets = [("decoder a", "native"), ("decoder b", "native"), ("decoder c", "native"), ("exchange d", "native")]
    tried = {
        "decoder a | native": record.Tried(500, 20, 3), "decoder c | native": record.Tried(record.GOAL, 7, 9),
    }  # fmt: skip
    assert record.choose(targets, tried) == [
        ("decoder b", "native", record.GOAL, 1), ("decoder a", "native", record.GOAL - 500, 4),
    ]  # fmt: skip
    after = tried["decoder a | native"].plus(Outcome("decoder a", "native", 100, 40, 1.0))
    assert after == record.Tried(600, 60, 4)


def test_the_record_is_read_as_it_was_written_and_the_page_says_it(tmp_path: Path) -> None:
    page, file = tmp_path / "page.md", tmp_path / "tried.json"
    page.write_text(f"before\n{record.BEGIN}\nold\n{record.END}\nafter\n")
    tried = {"decoder a | native": record.Tried(record.GOAL, 250_000, 2), "decoder b | native": record.Tried(10, 0, 1)}
    assert record.read(file) == {}
    record.write(tried, file, page)
    assert record.read(file) == tried
    text = page.read_text()
    assert "| native | 2 | 1,000,010 | 10 | 25% | 1 |" in text
    assert text.startswith("before\n")
    assert text.endswith(f"{record.END}\nafter\n")


def test_the_page_says_what_the_record_does() -> None:
    assert record.summary(record.read()) in record.PAGE.read_text()
