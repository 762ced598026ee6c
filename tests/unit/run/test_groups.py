from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grace.errors import CompositionError, ConfigurationError
from grace.registry import method
from grace.registry.policy import Policy, Rule
from grace.run.groups import Group, form_groups, regroup
from grace.run.options import Options

PARAMETERS: dict[str, Tensor] = {
    "a.weight": torch.zeros(40, 40), "a.bias": torch.zeros(40), "b.weight": torch.zeros(50, 40), "b.bias": torch.zeros(50),
    "c.weight": torch.zeros(60, 40), "half": torch.zeros(64, 64, dtype=torch.bfloat16),
}  # fmt: skip
MODEL = Options(granularity="model")


def test_each_parameter_is_a_group_and_the_policy_stays() -> None:
    policy = Policy.of("topk")
    groups, same = form_groups(PARAMETERS, policy, Options())
    assert same is policy
    assert [group.name for group in groups] == list(PARAMETERS)
    assert groups[0].like(PARAMETERS).shape == (40, 40)


def test_the_whole_model_is_one_group_per_method_and_dtype() -> None:
    groups, policy = form_groups(PARAMETERS, Policy([("b.weight", "qsgd"), *Policy.of("topk").rules]), MODEL)
    by_members = {group.members: group for group in groups}
    assert set(by_members) == {("c.weight", "a.weight"), ("b.weight",), ("half",), ("a.bias",), ("b.bias",)}
    flat = by_members["c.weight", "a.weight"]
    assert policy.method_for(flat.name, flat.like(PARAMETERS), 0) == method("topk")
    assert flat.like(PARAMETERS).shape == (60 * 40 + 40 * 40,)
    alone = by_members["a.bias",]
    assert alone.name == "a.bias"
    assert policy.method_for("a.bias", PARAMETERS["a.bias"], 0) == method("none")


def test_a_bucket_is_closed_once_it_is_full() -> None:
    groups, _ = form_groups(PARAMETERS, Policy.of("topk"), Options(granularity="bucket", bucket_bytes=4 * 60 * 40 + 1))
    assert [group.members for group in groups if "weight" in group.members[0]] == [
        ("c.weight", "b.weight"),
        ("a.weight",),
    ]


def test_what_flat_groups_cannot_do_is_refused() -> None:
    with pytest.raises(CompositionError, match=r"powersgd.*granularity='parameter'"):
        form_groups(PARAMETERS, Policy.of("powersgd"), Options(granularity="bucket", bucket_bytes=1))
    with pytest.raises(ConfigurationError, match="steps"):
        form_groups(PARAMETERS, Policy([Rule("*", "topk", from_step=3), ("*", "none")]), MODEL)


def test_debts_move_between_groups_by_parameter() -> None:
    old = [Group("model.0", ("x", "y"), ((2, 2), (3,))), Group("z", ("z",), ((2,),))]
    new = [Group("g", ("z", "y"), ((2,), (3,))), Group("x", ("x",), ((2, 2),)), Group("w", ("w",), ((1,),))]
    owed = regroup({"model.0": torch.arange(7.0)}, old, new)
    assert owed["g"].tolist() == [0, 0, 4, 5, 6]
    assert owed["x"].tolist() == [[0, 1], [2, 3]]
    assert "w" not in owed
