"""Memory that a method needs besides the gradient."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import grace
from grace.verify import facts
from grace.verify.inputs import normal
from grace.verify.peak import measure_peak

PAGE = Path(__file__).parents[3] / "docs/concepts/gpu.md"


def test_the_page_says_what_is_counted():
    text = PAGE.read_text(encoding="utf-8").partition("## Memory")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|$", text, flags=re.MULTILINE)
    assert len(rows) == 9
    xs = [normal(256, 256, seed=1)(rank) for rank in range(4)]
    for name, kept, most in rows:
        peak = measure_peak(grace.method(name), xs)
        assert (f"{peak.kept / 65536:.1f}", f"{peak.most / 65536:.1f}") == (kept, most), name


def test_what_is_freed_counts_no_longer():
    xs = [normal(64, 64)(rank) for rank in range(2)]
    first = measure_peak(grace.method("qsgd"), xs)
    assert first == measure_peak(grace.method("qsgd"), xs)
    assert first.kept == 0
    assert measure_peak(grace.method("qsgd:memory=residual"), xs).kept == 4 * 4096


def test_facts_with_memory():
    like = torch.empty(64, 64, device="meta")
    measured = facts("topk:ratio=0.1", like)
    xs = [normal(64, 64, seed=1)(rank) for rank in range(4)]
    assert (measured.kept, measured.peak) == (4 * 4096, measure_peak(grace.method("topk:ratio=0.1"), xs).most)
    declared = grace.method("topk:ratio=0.1").facts(like)
    assert (declared.kept, declared.peak) == (None, None)
    assert measured.payload == declared.payload
    assert facts(grace.TopK(ratio=0.1), torch.tensor(1.0), 1).kept == 0, "without a memory, of a number alone"


@pytest.mark.parametrize(
    ("method", "workers", "message"),
    [
        ("topk:machine=2", 3, "3 workers"),
        ("topk:machine=2", 4, "without machine="),
        ("topk", 0, "workers=0; legal: 1 or more"),
        (3, 4, "not a method"),
        ("topkk", 4, "topkk"),
    ],
)
def test_what_cannot_be_counted_is_refused(method: object, workers: int, message: str):
    with pytest.raises(grace.GraceError, match=message):
        facts(method, torch.empty(8, 8), workers)
