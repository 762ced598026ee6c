"""The plan says what is exchanged and what that costs; what was hardly meant does not pass in silence."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch

import grace
from grace.errors import ConfigurationError
from grace.run.options import Granularity, Options
from grace.run.plan import ExchangePlan, plan, warn_of_more_than_bf16, warn_uncompressed
from grace.run.session import Session
from tests.unit.networks import Loopback

LIKE = {"fc.weight": torch.empty(64, 64), "fc.bias": torch.empty(64), "out.weight": torch.empty(10, 64)}


def test_it_is_a_table() -> None:
    planned = plan(LIKE, "topk:ratio=0.02", world=4)
    assert [row.name for row in planned] == list(LIKE)
    assert [row.method for row in planned] == ["topk:ratio=0.02", "none", "none"]
    assert [row.shape for row in planned] == [(64, 64), (64,), (10, 64)]
    head, first, *_, last = str(planned).splitlines()
    assert head.split() == ["parameter", "shape", "method", "bytes", "share"]
    assert first.split()[:5] == ["fc.weight", "64", "x", "64", "topk:ratio=0.02"]
    assert last.startswith("1 of 3 compressed; a step sends ")
    assert sum(row.share or 0 for row in planned) == pytest.approx(1)
    assert planned.as_dict()["rows"][0]["method"] == "topk:ratio=0.02"


def test_small_tensors_beside_dgc_have_its_momentum_and_are_not_compressed() -> None:
    planned = plan(LIKE, "dgc", world=4)
    assert [(row.method, row.compressed) for row in planned] == [("dgc", True)] + [("none:memory=dgc", False)] * 2
    assert planned.rows[1].sent_bytes == plan(LIKE, "topk", world=4).rows[1].sent_bytes
    assert "1 of 3 compressed" in str(planned)


def test_what_depends_on_the_data_is_said() -> None:
    planned = plan(LIKE, "threshold", world=4)
    assert planned.rows[0].sent_bytes is None
    assert "by the data" in str(planned)
    assert "and what depends on the data" in str(planned)


@pytest.mark.parametrize("granularity", ["parameter", "bucket", "model"])
def test_it_adds_up_to_what_a_step_sends(granularity: Granularity) -> None:
    like = {name: torch.zeros(x.shape) for name, x in LIKE.items()}
    session = Session(like, "topk:ratio=0.02", Loopback(), Options(granularity=granularity))
    planned = session.plan()
    session.exchange({name: torch.randn(x.shape) for name, x in like.items()})
    assert planned.sent_bytes == session.stats.traffic.sent
    assert sorted(name for row in planned for name in row.members) == sorted(like)


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
    with pytest.warns(grace.UncompressedWarning, match=r"all 2 tensors \(128 numbers\) .*none gets topk") as caught:
        Session(small, method, Loopback())
    assert len(caught) == 1
    assert caught[0].filename == __file__


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


LARGE = {"w": torch.empty(300, 300, device="meta"), "b": torch.empty(300, device="meta")}
OWN = grace.Policy([("w", "none"), ("b", "qsgd")])


@pytest.mark.parametrize(
    ("method", "world", "why"),
    [
        ("topk:ratio=0.6", 2, r"topk:ratio=0\.6 takes as many bytes for each number, or more: take a smaller ratio"),
        ("qsgd", 64, r"qsgd:bits=4 gathers what every worker sends, which grows with their number, 64 here"),
        (grace.Policy([("*", "topk:ratio=0.6")]), 4, r"topk:ratio=0\.6 takes as many bytes"),
    ],
)
def test_what_sends_no_less_than_bf16_is_warned_of(method: grace.Policy | str, world: int, why: str) -> None:
    policy = grace.Policy.of(method)
    with pytest.warns(
        grace.UncompressedWarning, match=rf"nothing is saved: .* bytes in a step.* in bf16: {why}"
    ) as caught:
        warn_of_more_than_bf16(policy, LARGE, world)
    sent, bf16 = (int(text.replace(",", "")) for text in re.findall(r"[\d,]*\d", str(caught[0].message))[:2])
    assert sent == plan(LARGE, policy, world).sent_bytes
    assert bf16 == pytest.approx(2 * 2 * (90_000 + 300) * (world - 1) / world, abs=1)


def test_small_tensors_that_outweigh_what_is_compressed_are_named() -> None:
    many = {f"b{k}": torch.empty(1000, device="meta") for k in range(99)} | {"w": torch.empty(32, 32, device="meta")}
    with pytest.warns(grace.UncompressedWarning, match=r"which a bare method leaves as they are; to compress all"):
        warn_of_more_than_bf16(grace.Policy.of("topk"), many, 2)


@pytest.mark.parametrize(
    ("method", "world"),
    [
        ("topk", 8), ("qsgd", 2), ("none", 8), ("bf16", 8), ("fp16", 8), (OWN, 8), ("topk:ratio=0.6", 1),
        ("threshold", 8), ("topk:lossless=zlib", 8), ("topk:ratio=warmup(0.9->0.01, 9 epochs)", 8), ("topk:memory=ef21", 8),
        ("topk:start=100", 8), (grace.Policy([grace.Rule("*", "qsgd", until_step=9), ("*", "none")]), 64),
        ("qsgd:machine=8", 64),
    ],
)  # fmt: skip
def test_what_saves_or_is_not_known_or_asked_for_is_not_warned_of(method: grace.Policy | str, world: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_more_than_bf16(grace.Policy.of(method), LARGE, world)


def test_few_numbers_are_not_warned_of_and_rows_are_counted_as_they_are_scattered() -> None:
    policy = grace.Policy([("*", "qsgd")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_more_than_bf16(grace.Policy.of("topk:ratio=0.6"), LIKE, 2)
        warn_of_more_than_bf16(policy, {"w": torch.empty(64, 4096, device="meta")}, 64, scattered=True)
    with pytest.warns(grace.UncompressedWarning, match="gathers"):
        warn_of_more_than_bf16(policy, {"w": torch.empty(64, 4096, device="meta")}, 64)


@pytest.mark.parametrize("scatters", [False, True])
def test_a_session_asks_for_it_when_it_is_attached(monkeypatch: pytest.MonkeyPatch, scatters: bool) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("grace.run.session.warn_of_more_than_bf16", lambda *given: asked.append(given))
    session = Session({"w": torch.zeros(300, 300)}, "topk", Loopback(), scatters=scatters)
    assert [(list(like), world, rows) for _, like, world, rows in asked] == [(["w"], 1, scatters)]
    session.switch("qsgd")
    assert len(asked) == 1, "auto switches, and knows what it does"


def test_an_empty_plan_prints() -> None:
    assert str(ExchangePlan((), 1, 0)).endswith("0 of 0 compressed; a step sends 0 bytes")
