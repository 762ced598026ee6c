"""Count of the numbers that a ratio keeps, of n."""

from __future__ import annotations

import torch

from grace.methods.common.counts import KeptOfEach, count_kept


def test_what_is_kept_is_the_rule_for_one_number() -> None:
    counts = torch.cat((torch.arange(200), torch.tensor([10**6, 2**31 - 1])))
    for ratio in (1.0, 1 / 3, 0.1, 1e-3, 1e-9):
        want = [count_kept(ratio, m) if m else 0 for m in counts.tolist()]
        assert KeptOfEach(ratio)(counts).tolist() == want
