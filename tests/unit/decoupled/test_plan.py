from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from grace.decoupled.plan import Plan
from grace.decoupled.settings import SyncerSettings
from grace.errors import ConfigurationError, FingerprintMismatch, PayloadError

PARAMETERS = {"a": torch.zeros(40, 30), "b": torch.zeros(7), "c": torch.zeros(50, 30)}


def plan(**more: object) -> Plan:
    return Plan.of(PARAMETERS, **{"every": 10, "fragments": 2, **more})  # type: ignore[arg-type]


def test_fragments_have_equal_sizes_and_places_in_order():
    sizes = [1000, 10, 500, 500, 7, 300, 690, 3]
    made = Plan.of(
        {str(n): torch.zeros(n) for n in dict.fromkeys(sizes)} | {"z": torch.zeros(500)}, every=3, fragments=3
    )
    loads = [sum(made.sizes(p)) for p in range(3)]
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) <= 20
    assert all(places == sorted(places) for places in made.fragments)


def test_fragments_are_staggered():
    staggered = plan(every=10)
    assert [staggered.first_due(p) for p in range(2)] == [5, 10]
    assert plan(every=3, fragments=3).first_due(0) == 1
    assert math.prod(staggered.sizes(0)) == 1500


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"every": 0}, "every=0 is out of range"),
        ({"fragments": 0}, "fragments=0"),
        ({"fragments": 4}, "the number of parameters"),
        ({"fragments": 3, "every": 2}, "so that each has a step of its own"),
        ({"overlap": -1}, "overlap=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"up": "powersgd"}, "is a conversation"),
        ({"up": "signsgd"}, "takes a vote"),
        ({"up": "topk:beta=0.9"}, "sets beta"),
        ({"down": "topk:memory=dgc"}, "sets memory"),
        ({"down": "nonesuch"}, "unknown method"),
        ({"up": "topk:ratio=warmup(0.25->0.001, 4 epochs)"}, "has a schedule"),
    ],
)
def test_what_cannot_be_is_refused_at_once(more: dict[str, object], text: str):
    with pytest.raises(ConfigurationError, match=text):
        plan(**more)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"learners": 4, "quorum": 5}, "quorum=5 of learners=4: legal: 1 to 4"),
        ({"learners": 4, "quorum": 0}, "quorum=0"),
        ({"learners": 0}, "learners=0"),
        ({"learners": 2, "lr": 0.0}, "lr=0.0"),
        ({"learners": 2, "momentum": 1.0}, "momentum=1.0"),
        ({"learners": 2, "margin": 1.0}, "margin=1.0"),
        ({"learners": 2, "average": "median"}, "average='median'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], text: str):
    with pytest.raises(ConfigurationError, match=text):
        SyncerSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (plan(every=12), "every: 12, here 10"),
        (plan(up="qsgd"), "up: 'qsgd:bits=4', here 'none'"),
        (Plan.of({**PARAMETERS, "d": torch.zeros(3)}, every=10, fragments=2), "has also d"),
        (Plan.of({"a": PARAMETERS["a"], "c": PARAMETERS["c"]}, every=10, fragments=2), "lacks b"),
        (Plan.of({**PARAMETERS, "b": torch.zeros(8)}, every=10, fragments=2), r"shape of 'b': \[8\], here \[7\]"),
        (plan(fragments=3), "fragments: 3, here 2"),
        (plan(plain=["a"]), "how its parameters are cut or averaged"),
        (Plan.of(dict(reversed(PARAMETERS.items())), every=10, fragments=2), "in another order"),
    ],
)
def test_a_learner_of_another_model_is_refused_and_told_why(other: Plan, text: str):
    with pytest.raises(FingerprintMismatch, match=f"learner 'x' differs from this run in .*{text}"):
        plan().refuse_other(other, "learner 'x'")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"names": []}, "one shape and one flag"),
        ({"names": ["a", "a", "c"]}, "whose names differ"),
        ({"shapes": [[40, 30], [-7], [50, 30]]}, "negative size"),
        ({"shapes": [[1 << 30, 1 << 30], [7], [50, 30]]}, "more than"),
        ({"fragments": [[0, 1], [1, 2]]}, "in one fragment"),
        ({"fragments": [[0, 1, 2], []]}, "an empty fragment"),
        ({"every": 1}, "a schedule that cannot be"),
        ({"up": "nonesuch.py:Evil"}, "a codec that cannot be used"),
        ({"down": "os:system"}, "a codec that cannot be used"),
    ],
)
def test_a_plan_from_the_network_is_checked(change: dict[str, object], text: str):
    plan().check("learner 'x'")
    with pytest.raises(PayloadError, match=f"the plan of learner 'x' .*{text}"):
        dataclasses.replace(plan(), **change).check("learner 'x'")
