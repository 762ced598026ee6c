"""The plan that a state was saved under."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from grace.auto.choices import Buckets, parts_of, read_methods
from grace.auto.planner import Part
from grace.errors import StateError
from grace.registry.policy import Policy

LIKE = {"wide": torch.empty(64, 64), "small": torch.empty(8), "deep": torch.empty(32, 64)}
BUCKETS = Buckets((("deep",), ("wide", "small")), {name: tuple(x.shape) for name, x in LIKE.items()})
METHODS = ["none", "bf16", "topk"]


def told(policy: Policy, lacks: Sequence[str]) -> list[int]:
    """Answer of a rank that has no part of some tensors."""
    heard: list[int] = []

    def tell(values: Sequence[int]) -> list[Sequence[int]]:
        heard.extend(values)
        return [values]

    parts_of(policy, BUCKETS, METHODS, {name: x for name, x in LIKE.items() if name not in lacks}, tell)
    return heard


def test_what_a_rank_has_no_part_of_the_others_know() -> None:
    policy = Policy([("deep", "topk"), ("wide", "bf16"), ("*", "none")])
    assert told(policy, ["deep"]) == [-1, 1]
    assert told(policy, ["wide", "small"]) == [2, -1]
    parts = parts_of(policy, BUCKETS, METHODS, {"wide": LIKE["wide"]}, lambda own: [own, [2, -1]])
    assert parts == [Part(0, 1, "topk"), Part(1, 2, "bf16")]


def test_a_method_that_was_not_measured_makes_no_plan() -> None:
    policy = Policy([("deep", "topk:ratio=0.5"), ("*", "none")])
    assert parts_of(policy, BUCKETS, METHODS, LIKE, lambda own: [own]) is None


def test_what_is_no_state_is_refused() -> None:
    assert read_methods({"methods": {"w": "topk"}}) == {"w": "topk"}
    for damage in ({"methods": {"w": 3}}, {}, 3):
        with pytest.raises(StateError, match="the method of each tensor"):
            read_methods(damage)
