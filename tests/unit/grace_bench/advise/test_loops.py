"""Outer loops beside methods, in a prediction: codec times and traffic are given, and no clock is asked."""

import pytest

from grace.errors import ConfigurationError
from grace.predict.links import link
from grace_bench.advise.advice import candidates, rank
from grace_bench.advise.loops import OuterCost, cost_of
from tests.unit.grace_bench.advise.test_advice import STEP, cost, costs

SLOW = link("100mbit")


def loop(text: str) -> OuterCost:
    loop_cost = cost_of(text, lambda method: cost("AllReduce", 32, 0.1))
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


@pytest.mark.parametrize("text", ["onebitadam", "dpsgd:graph=ring", "diloco:every=32,method=auto"])
def test_an_algorithm_that_no_prediction_knows_is_refused(text: str):
    with pytest.raises(ConfigurationError, match="outer loops over them, not "):
        loop(text)
