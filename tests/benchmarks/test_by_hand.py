"""Output of ``python -m benchmarks.by_hand``."""

from __future__ import annotations

import argparse

from benchmarks.by_hand import rows, show, verdicts

ROUNDS = [
    {"auto": 0.10, "none": 0.30, "bf16": 0.20, "topk": 0.099, "qsgd:bits=4": 0.13},
    {"auto": 0.11, "none": 0.30, "bf16": 0.21, "topk": 0.100, "qsgd:bits=4": 0.12},
    {"auto": 0.10, "none": 0.09, "bf16": 0.20, "topk": 0.101, "qsgd:bits=4": 0.12},
]
PAIR = {"auto": (0.2, 0.1), "hand": (0.1, 0.1)}


def test_each_goal_has_a_verdict_and_its_doubts() -> None:
    baseline, by_hand = verdicts(ROUNDS)
    assert baseline.endswith("1.91 (0.90 to 2.00), goal at least 0.98: met; 1 of 3 rounds says otherwise")
    assert by_hand.endswith("by hand, topk: 1.01 (0.99 to 1.10), goal at most 1.05: met; 1 of 3 rounds says otherwise")


def test_the_table_begins_with_the_fastest_and_names_who_was_left_out() -> None:
    record = {
        "rounds": ROUNDS, "pairs": [PAIR] * 2, "first": {"topk": 0.1, "natural": 0.9}, "chosen": "topk",
        "settled": "settled: nothing is left to try", "steps": 80, "spent": 3.2,
        "trials": ["bf16 does not replace topk: much slower"],
    }  # fmt: skip
    lines = rows(record)
    assert [line[0] for line in lines] == ["auto: topk", "topk", "qsgd:bits=4", "bf16", "fp32", "natural"]
    assert lines[-1] == ["natural", "900 at first sight", "left out"]
    assert lines[1][1:] == ["100 (99 to 101)", "1.01 (0.99 to 1.10)"]
    text = show(record, argparse.Namespace(task="vgg16_cifar", link="1gbit", workers=4, steps=2))
    assert "vgg16_cifar over 1gbit, 4 workers, 3 rounds of 2 steps" in text
    assert "bf16 does not replace topk" in text
    assert "the same method's by hand, 2 pairs of turns: 2.00 (2.00 to 2.00); processor seconds 1.00" in text
