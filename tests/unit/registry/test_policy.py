"""The first rule that matches decides."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

import grace
from grace import Policy, Rule
from grace.errors import ConfigurationError

TOPK, NONE, QSGD = grace.method("topk"), grace.method("none"), grace.method("qsgd")


def test_the_first_match_wins():
    policy = Policy([("*.bias", "none"), ("embed*", TOPK), ("*", QSGD)])
    like = torch.empty(8, 8)
    assert policy.method_for("embed.bias", like, 0) == NONE
    assert policy.method_for("embed.weight", like, 0) is TOPK
    assert policy.method_for("fc.weight", like, 0) is QSGD
    assert policy.method_for("EMBED", like, 0) is QSGD, "patterns mind the case"


@pytest.mark.parametrize(
    ("limits", "shape", "matches"),
    [
        ({"min_size": 6}, (2, 3), True),
        ({"min_size": 7}, (2, 3), False),
        ({"max_size": 6}, (2, 3), True),
        ({"max_size": 5}, (2, 3), False),
        ({"max_size": 0}, (0,), True),
        ({"min_ndim": 2}, (2, 3), True),
        ({"min_ndim": 3}, (2, 3), False),
        ({"max_ndim": 1}, (2, 3), False),
        ({"max_ndim": 0}, (), True),
    ],
)
def test_limits_are_inclusive(limits: dict[str, Any], shape: tuple[int, ...], matches: bool):
    assert Rule("*", NONE, **limits).matches("w", torch.empty(shape), 0) is matches


def test_steps_begin_inclusive_and_end_exclusive():
    policy = Policy([Rule("*", TOPK, from_step=2, until_step=4), Rule("*", NONE)])
    matches = [policy.method_for("w", torch.empty(3), step) is TOPK for step in range(6)]
    assert matches == [False, False, True, True, False, False], "a policy with steps is not cached over them"
    assert not policy.timeless


def test_the_default_leaves_small_and_flat_tensors_alone():
    policy = Policy.of("topk")
    assert policy.timeless
    assert policy.method_for("w", torch.empty(32, 32), 0) == TOPK
    assert policy.method_for("w", torch.empty(33, 31), 0) == NONE, "1,023 elements"
    assert policy.method_for("w", torch.empty(100_000), 0) == NONE
    assert policy.method_for("w", torch.tensor(1.0), 0) == NONE
    assert policy.method_for("w", torch.empty(2, 0), 0) == NONE


def test_of_a_policy_is_itself_and_its_own_rules_have_no_default():
    own = Policy([("*", "topk")])
    assert Policy.of(own) is own
    assert own.method_for("b", torch.empty(3), 0) == TOPK


def test_one_name_with_two_shapes_is_not_confused():
    policy = Policy.of("topk")
    assert policy.method_for("w", torch.empty(64, 64), 0) == TOPK
    assert policy.method_for("w", torch.empty(64), 0) == NONE


def test_nothing_matches():
    with pytest.raises(ConfigurationError, match=r"no rule of the policy matches 'fc.weight' \(2, 3\) at step 7"):
        Policy([("conv*", "topk")]).method_for("fc.weight", torch.empty(2, 3), 7)


@pytest.mark.parametrize("rules", [[], [("*",)], ["*"], [("*", "topk", "none")], [3]])
def test_rules_that_cannot_be_read(rules: Any):
    with pytest.raises(ConfigurationError, match=r"a rule is|a policy needs at least one rule"):
        Policy(rules)


@pytest.mark.parametrize(
    "limits",
    [
        {"min_size": -1},
        {"min_size": 5, "max_size": 4},
        {"min_ndim": 2, "max_ndim": 1},
        {"from_step": 3, "until_step": 2},
    ],
)
def test_limits_that_match_nothing(limits: dict[str, int]):
    with pytest.raises(ConfigurationError, match="matches nothing"):
        Rule("*", NONE, **limits)  # type: ignore[arg-type]


def test_a_pattern_is_a_string():
    with pytest.raises(ConfigurationError, match="pattern must be a string"):
        Rule(3, NONE)  # type: ignore[arg-type]


def test_an_unknown_method_in_a_rule():
    with pytest.raises(ConfigurationError, match="did you mean 'topk'"):
        Policy([("*", "topkk")])


def test_repr_is_what_ranks_compare():
    policy = Policy([Rule("*.bias", "none", max_ndim=1), ("*", "topk:ratio=0.5")])
    assert repr(policy) == "Policy('*.bias' -> none max_ndim=1; '*' -> topk:ratio=0.5)"
    assert repr(Policy([Rule("*", "none", max_size=0), ("*", "topk")])) != repr(Policy([("*", "none"), ("*", "topk")]))


def test_policies_compare_by_their_rules_also_after_pickling() -> None:
    policy = Policy([("*.bias", "none"), ("*", "topk:ratio=0.02")])
    twin = pickle.loads(pickle.dumps(policy))
    assert twin == policy
    assert hash(twin) == hash(policy)
    assert policy != Policy([("*", "topk:ratio=0.02")])
    assert policy != "topk"


LIKE = {"fc1.weight": torch.empty(8, 8), "fc1.bias": torch.empty(8), "fc2.weight": torch.empty(8, 8)}


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("fc1.weigth", r"rule 1 of the policy, 'fc1.weigth' -> topk, .*nearest: 'fc1.weight'"),
        ("FC1.weight", "nearest: 'fc1.weight'"),
        ("module.fc*", "names come without 'module.'; write 'fc\\*'"),
        ("_orig_mod.fc1.bias", "names come without '_orig_mod.'; write 'fc1.bias'"),
        ("zzz", "there are 'fc1.weight', 'fc1.bias', 'fc2.weight', ..."),
    ],
)
def test_a_rule_for_no_tensor_names_the_nearest(pattern: str, hint: str) -> None:
    rules = [(pattern, "topk"), ("*", "none")]
    with pytest.raises(ConfigurationError, match=hint):
        Policy(rules).check_names(LIKE)
    Policy(rules, strict=False).check_names(LIKE)


def test_defaults_and_rules_of_steps_are_for_some_tensor() -> None:
    Policy.of("topk").check_names(["conv"])
    Policy([Rule("*", "none", until_step=3), Rule("conv", "topk", from_step=3)]).check_names(["conv"])
    Policy([Rule("*", "none", min_size=10**9), ("*", "topk")]).check_names(["conv"])


def test_all_methods_that_a_tensor_gets_at_some_step() -> None:
    late = Rule("fc*", "topk", from_step=5)
    policy = Policy([Rule("*.bias", NONE), Rule("*", "bf16", until_step=5), late, ("fc*", "qsgd"), ("*", "fp16")])
    methods = {name: [grace.spell(method) for method in policy.methods_for(name, x)] for name, x in LIKE.items()}
    assert methods == {name: ["bf16", "topk", "qsgd:bits=4"] for name in LIKE} | {"fc1.bias": ["none"]}


def test_equal_methods_are_one_object():
    policy = Policy.of("qsgd:bits=4")
    assert policy.method_for("w", torch.empty(64, 64), 0) is not policy.method_for("b", torch.empty(64), 0)
    policy = Policy.of("none")
    assert policy.method_for("w", torch.empty(64, 64), 0) is policy.method_for("b", torch.empty(64), 0)
