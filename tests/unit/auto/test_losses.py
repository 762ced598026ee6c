"""Compression errors of methods, which all ranks share."""

from __future__ import annotations

import torch

from grace.auto.model import Losses
from grace.contract.peer import Peer


def test_the_largest_of_all_ranks_counts() -> None:
    losses = Losses()
    gradients = {"w": torch.tensor([[3.0, 4.0]]), "v": torch.tensor([[torch.nan]])}
    losses.measure(gradients, ["topk:ratio=0.5"], lambda name: Peer(0, 2, 0, name))
    assert losses.of["topk:ratio=0.5"]["w"] == 0.6
    losses.share(["w", "v", "far"], ["topk:ratio=0.5"], lambda own: [own, [700_000, 5, 250_000]])
    assert losses.of["topk:ratio=0.5"] == {"w": 0.7, "v": 1000.0, "far": 0.25}


def test_where_there_is_nothing_to_measure_nothing_is_told() -> None:
    Losses().share([], ["topk"], lambda own: [][0])
