"""Algorithms beside methods, in a prediction: codec times and traffic are given, and no clock is asked."""

from typing import Any

import pytest

from grace.errors import ConfigurationError
from grace.predict.links import link
from grace.predict.replay import Replayer
from grace_bench.advise.advice import candidates, rank
from grace_bench.advise.loops import OuterCost, cost_of
from tests.unit.grace_bench.advise.test_advice import STEP, cost, costs

SLOW = link("100mbit")


SHAPES = {"w": (64, 48), "b": (64,)}
REPLAYER = Replayer(SHAPES, [["b", "w"]], samples=1)


def loop(text: str) -> OuterCost:
    loop_cost = cost_of(text, lambda method: cost("AllReduce", 32, 0.1), REPLAYER)
    assert isinstance(loop_cost, OuterCost)
    return loop_cost


def waits(text: str) -> float:
    return loop(text).seconds(STEP, STEP.over(SLOW), 4) - STEP.seconds


def test_a_loop_waits_once_in_its_steps_and_sends_once():
    whole = cost("AllReduce", 32, 0.1)
    exchange = sum(seconds for job in whole.jobs(STEP, STEP.over(SLOW), 4) for _, seconds in job)
    assert waits("diloco:every=1") == pytest.approx(exchange)
    assert waits("diloco:every=32") == pytest.approx(exchange / 32)
    assert loop("diloco:every=32").at(4).sent == pytest.approx(whole.at(4).sent / 32)
    assert loop("diloco:every=32").codec_seconds(STEP, 4) == pytest.approx(whole.codec_seconds(STEP, 4) / 32)


def test_steps_beside_an_exchange_hide_it():
    free, hidden = (f"streaming_diloco:every=400,fragments=4,delay={delay}" for delay in (0, 99))
    assert waits(free) == pytest.approx(waits("diloco:every=400"))
    assert waits(hidden) < 0.2 * waits(free)


def test_loops_are_ranked_beside_methods_and_what_they_learn_is_not_known():
    table = rank(STEP, {**costs(), "diloco:every=500": loop("diloco:every=500")}, SLOW, 4)
    row = next(row for row in table.rows if row.method == "diloco:every=500")
    assert row.pays
    assert (row.quality, row.needs.optimizer, row.rank) == (None, "", 1)
    assert "diloco:every=500" in table.verdict.partition("not measured well enough")[2]
    assert candidates(["diloco:every=32", "topk"], 4) == ["none", "bf16", "diloco:every=32", "topk"]


@pytest.mark.parametrize(
    ("text", "method", "every"),
    [
        ("onebitadam", "efsignsgd", 1),
        ("onebitadam:freeze_step=100,method=(topk:ratio=0.01)", "topk", 1),
        ("zerooneadam", "efsignsgd", 16),
        ("zerooneadam:max_interval=4", "efsignsgd", 4),
        ("onebitlamb:freeze_step=5", "efsignsgd", 1),
        ("demo", "TiledTopK", 1),
        ("dion:rank_fraction=0.25", "DionExchange", 1),
        ("torch_post_local_sgd:every=8", "none", 8),
    ],
)
def test_an_optimizer_waits_for_its_method_after_the_backward_pass(text: str, method: str, every: int):
    asked: list[Any] = []
    loop_cost = cost_of(text, lambda policy: (asked.append(policy), cost("AllReduce", 32, 0.1))[1], REPLAYER)
    assert method.lower() in str(asked[0]).lower()
    assert loop_cost.seconds(STEP, STEP.over(SLOW), 4) - STEP.seconds == pytest.approx(waits(f"diloco:every={every}"))


@pytest.mark.parametrize(
    ("text", "neighbours", "share"),
    [
        ("dpsgd:graph=ring", 2, 1.0),
        ("dpsgd:graph=one_peer_exponential", 1, 1.0),
        ("choco:method=(topk:ratio=0.01),gamma=0.1", 2, 0.1),
    ],
)
def test_gossip_sends_to_its_neighbours(text: str, neighbours: int, share: float):
    gossip = cost_of(text, lambda method: cost("AllReduce", 32, 0.1), REPLAYER)
    sent = gossip.at(8).sent
    assert gossip.at(64).sent == pytest.approx(sent, rel=0.02)
    whole = 4 * neighbours * (64 * 48 + 64)
    assert sent < whole * share + 400 if share < 1 else whole <= sent < whole + 200


def test_gossip_that_overlaps_hides_behind_the_next_step():
    here = STEP.__class__(0.1, (0.9,), (64 * 49,), cores=2.0, add=0.2e-9)
    costs = [cost_of(f"dpsgd:overlap={overlap}", lambda method: cost("AllReduce", 32, 0.1), REPLAYER)
             for overlap in (False, True)]  # fmt: skip
    plain, hidden = (cost.seconds(here, here.over(SLOW), 4) for cost in costs)
    assert hidden == here.seconds < plain


def test_a_loop_over_what_chooses_for_itself_is_refused():
    with pytest.raises(ConfigurationError, match="not over one that is chosen while they run: diloco"):
        loop("diloco:every=32,method=auto")
