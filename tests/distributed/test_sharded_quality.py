"""Quality of a small GPT under fully_shard with top-k of 1 % and error feedback, as docs/data/sharded.md has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.sharded_models import pytestmark
from tests.tiers import ROOT

__all__ = ["pytestmark"]

SETTINGS = (
    "--layers 2 --width 64 --window 64 --windows 512 --batch 2 "
    "--betas 0,0.999 --rate 0.002 --clip 0 --decay 0 --floor 0 --steps 2000 --seed 1"
)


@pytest.mark.night("NeverUpdated")
@pytest.mark.timeout(3600)  # twice 2,000 steps of a world of processes
def test_a_small_gpt_is_within_two_percent_of_plain_fsdp(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    ways = ["--methods", "FSDP2 alone;topk:ratio=0.01", "--out", str(out)]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.sharded", *SETTINGS.split(), *ways], check=True, cwd=ROOT, timeout=3600
    )
    plain, compressed = (row["bits_per_byte"] for row in json.loads(out.read_text()))
    assert 2 < plain < 3.5, "it has learned, and not everything"
    assert compressed < 1.02 * plain
