"""The table of ``python -m benchmarks.auto``."""

from __future__ import annotations

from benchmarks.auto import EVERY, HEADS, Phase, _counted


def test_a_row_says_when_and_how_fast() -> None:
    phase = Phase(
        "10gbit",
        first=100,
        steps=[0.4] * 30 + [0.1] * 70,
        turns={"none": [0.2, 0.2, 0.3], "bf16": [0.25, 0.24]},
        began="topk",
        ended="bf16",
        changes=[30],
        events=[(12, "steps take 400.0 ms, and took 100.0"), (12, "measured the link again, as steps take 400.0 ms")],
    )
    row = dict(zip(HEADS, phase.row(), strict=True))
    assert row["plan"] == "topk -> bf16"
    assert (row["noticed at"], row["looked at"], row["answered after"]) == ("12", "12", "30")
    assert (row["auto, ms"], row["fp32, ms"], row["bf16, ms"]) == ("100", "200", "245")
    assert row["better of them / auto"] == "2.00"
    assert row["slow in a row"] == "30"


def test_steps_after_turns_are_not_counted() -> None:
    done = 0
    for k in range(4 * EVERY):
        done += 1 + (k % EVERY == EVERY // 2)
        assert _counted(done) == k + 1
