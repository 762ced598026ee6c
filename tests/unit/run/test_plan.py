"""The plan says what is exchanged and what that costs; what was hardly meant does not pass in silence."""

from __future__ import annotations

import warnings

import pytest
import torch

import grace
from grace.errors import ConfigurationError
from grace.run.options import Granularity, Options
from grace.run.plan import ExchangePlan, plan, warn_uncompressed
from grace.run.session import Session
from tests.unit.networks import Loopback

LIKE = {"fc.weight": torch.empty(64, 64), "fc.bias": torch.empty(64), "out.weight": torch.empty(10, 64)}


def test_it_is_a_table() -> None:
    found = plan(LIKE, "topk:ratio=0.02", world=4)
    assert [row.name for row in found] == list(LIKE)
    assert [row.method for row in found] == ["topk:ratio=0.02", "none", "none"]
    assert [row.shape for row in found] == [(64, 64), (64,), (10, 64)]
    head, first, *_, last = str(found).splitlines()
    assert head.split() == ["parameter", "shape", "method", "bytes", "share"]
    assert first.split()[:5] == ["fc.weight", "64", "x", "64", "topk:ratio=0.02"]
    assert last.startswith("1 of 3 compressed; a step sends ")
    assert sum(row.share or 0 for row in found) == pytest.approx(1)
    assert found.as_dict()["rows"][0]["method"] == "topk:ratio=0.02"


def test_small_tensors_beside_dgc_have_its_momentum_and_are_not_compressed() -> None:
    found = plan(LIKE, "dgc", world=4)
    assert [(row.method, row.compressed) for row in found] == [("dgc", True)] + [("none:memory=dgc", False)] * 2
    assert found.rows[1].sent_bytes == plan(LIKE, "topk", world=4).rows[1].sent_bytes
    assert "1 of 3 compressed" in str(found)


def test_what_depends_on_the_data_is_said() -> None:
    found = plan(LIKE, "threshold", world=4)
    assert found.rows[0].sent_bytes is None
    assert "by the data" in str(found)
    assert "and what depends on the data" in str(found)


@pytest.mark.parametrize("granularity", ["parameter", "bucket", "model"])
def test_it_adds_up_to_what_a_step_sends(granularity: Granularity) -> None:
    like = {name: torch.zeros(x.shape) for name, x in LIKE.items()}
    session = Session(like, "topk:ratio=0.02", Loopback(), Options(granularity=granularity))
    found = session.plan()
    session.exchange({name: torch.randn(x.shape) for name, x in like.items()})
    assert found.sent_bytes == session.stats.traffic.sent
    assert sorted(name for row in found for name in row.members) == sorted(like)


def test_it_is_of_the_coming_step() -> None:
    policy = grace.Policy([grace.Rule("*", "none", until_step=1), ("*", "bf16")])
    like = {"w": torch.zeros(8)}
    session = Session(like, policy, Loopback())
    before = session.plan()
    session.exchange({"w": torch.ones(8)})
    session.advance()
    assert (before.rows[0].method, session.plan().rows[0].method) == ("none", "bf16")


def test_a_rule_for_no_parameter_ends_the_exchange_before_it_begins() -> None:
    policy = grace.Policy([("fc.wieght", "topk"), ("*", "none")])
    with pytest.raises(ConfigurationError, match=r"nearest: 'fc\.weight'"):
        Session(LIKE, policy, Loopback())
    with pytest.raises(ConfigurationError, match=r"nearest: 'fc\.weight'"):
        plan(LIKE, policy, world=2)
    session = Session(LIKE, "topk", Loopback())
    with pytest.raises(ConfigurationError, match=r"nearest: 'fc\.weight'"):
        session.switch(policy)
    assert session.plan().rows[0].method == "topk"  # as before


@pytest.mark.parametrize(
    "method", ["topk", "topk:memory=dgc", grace.Policy([grace.Rule("*", "topk", min_ndim=3), ("*", "none")])]
)
def test_nothing_compressed_is_warned_of(method: grace.Policy | str) -> None:
    small = {name: torch.zeros(8, 8) for name in "ab"}
    with pytest.warns(grace.UncompressedWarning, match=r"all 2 tensors \(128 numbers\) .*none gets topk") as found:
        Session(small, method, Loopback())
    assert len(found) == 1
    assert found[0].filename == __file__


def test_machines_that_are_one_are_warned_of() -> None:
    policy = grace.Policy.of("topk:machine=4")
    with pytest.warns(grace.UncompressedWarning, match=r"topk:machine=4 goes between machines, and all 4 workers"):
        warn_uncompressed(policy, LIKE, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_uncompressed(policy, {"w": torch.zeros(64, 64)}, 8)
        warn_uncompressed(grace.Policy.of("topk:machine=1"), {"w": torch.zeros(64, 64)}, 1)


def test_no_warning_where_none_was_meant_or_something_is_compressed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Session({"a": torch.zeros(8)}, "none", Loopback())
        Session({"a": torch.zeros(8)}, grace.Policy([grace.Rule("*", "none", until_step=9), ("*", "topk")]), Loopback())


def test_an_empty_plan_prints() -> None:
    assert str(ExchangePlan((), 1, 0)).endswith("0 of 0 compressed; a step sends 0 bytes")
