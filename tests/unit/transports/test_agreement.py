"""Errors about ranks that did not come."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import grace
from grace.errors import AbsentError, FingerprintMismatch
from grace.run.options import Options
from grace.run.session import Session
from grace.transports.alone import Alone


class OthersStay(Alone):
    """A transport whose other rank comes at the start, and to nothing that follows."""

    started = False

    def all_gather_text(self, text: str, **how: Any) -> list[str]:
        if self.started:
            raise AbsentError([1], "it did not come")
        self.started = True
        return super().all_gather_text(text, **how)


def test_a_switch_on_one_rank_alone_is_said_to_be_one() -> None:
    session = Session({"w": torch.empty(64, 64)}, "topk", OthersStay(), Options())
    for change in (
        lambda: session.switch("qsgd"),
        lambda: session.offer(["qsgd"]),
        lambda: session.change_knobs(every=2),
    ):
        with pytest.raises(
            FingerprintMismatch, match=r"ranks \[1\] did not switch the method .*all ranks switch"
        ) as told:
            change()
        assert "attach" not in str(told.value)
    assert grace.spell(session.policy.method_for("w", torch.empty(64, 64), 0)) == "topk"
