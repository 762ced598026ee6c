"""What a method needs besides the gradient."""

from __future__ import annotations

import re
from pathlib import Path

import grace
from grace.verify.inputs import normal
from grace.verify.peak import measure_peak

PAGE = Path(__file__).parents[3] / "docs/concepts/gpu.md"


def test_the_page_says_what_is_counted():
    text = PAGE.read_text(encoding="utf-8").partition("## Memory")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|$", text, flags=re.MULTILINE)
    assert len(rows) == 9
    xs = [normal(256, 256, seed=1)(rank) for rank in range(4)]
    for name, kept, most in rows:
        found = measure_peak(grace.method(name), xs)
        assert (f"{found.kept / 65536:.1f}", f"{found.most / 65536:.1f}") == (kept, most), name


def test_what_is_freed_counts_no_longer():
    xs = [normal(64, 64)(rank) for rank in range(2)]
    first = measure_peak(grace.method("qsgd"), xs)
    assert first == measure_peak(grace.method("qsgd"), xs)
    assert first.kept == 0
    assert measure_peak(grace.method("qsgd:memory=residual"), xs).kept == 4 * 4096
