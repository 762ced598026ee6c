import dataclasses

import pytest

from grace.collectives import Tally
from grace.predict.links import link
from grace_bench.runs.config import RunConfig
from grace_bench.runs.forecast import forecast
from grace_bench.runs.link_model import Work, exchange_seconds, step_seconds
from grace_bench.runs.record import failure_of
from grace_bench.runs.results import CollectiveTerms, Prediction, Terms
from tests.unit.grace_bench.documents import document
from tests.unit.predict.samples import make_timings

WORK = Work(
    compute=1.0, threads=1, ready=(0.5, 0.9), shares=(0.5, 0.5), codec=0.0, moved={"AllReduce": Tally(2, 2.0)},
    cores=1.0, axes={},
)  # fmt: skip


class Given:
    """A network on which all bytes of a step take ``exchange`` seconds, ``moving`` of them of the processor."""

    def __init__(self, exchange=0.0, moving=0.0):
        self.exchange, self.moving = exchange, moving

    def move(self, kind, tally, world):
        return self.moving * tally.bytes / 2, self.exchange * tally.bytes / 2


def step(exchange=0.0, moving=0.0, **changes):
    return step_seconds(dataclasses.replace(WORK, **changes), Given(exchange, moving), 4)


def test_a_large_bucket_takes_what_its_size_takes():
    """Two collectives of 1 MB on average, of which one is nearly all: beyond 1 MB a byte takes twice as long."""
    timings = make_timings()
    line = timings.kinds["AllReduce"]
    line.put(2_000_000, line.seconds[1] + 2 * (line.seconds[1] - line.seconds[0]))
    equal = exchange_seconds(timings, "AllReduce", Tally(2, 2_000_000), (0.5, 0.5))
    assert equal == pytest.approx(2 * line.seconds[1])
    large = exchange_seconds(timings, "AllReduce", Tally(2, 2_000_000), (0.0, 1.0))
    assert large == pytest.approx(1e-3 + line.seconds[2])
    four = exchange_seconds(timings, "AllReduce", Tally(4, 2_000_000), (0.0, 1.0))  # two of each bucket
    assert four == pytest.approx(2e-3 + 2 * line.seconds[1])


def test_nothing_to_exchange():
    assert step(ready=(), shares=()) == pytest.approx(1.0)
    assert step(ready=(), shares=(), cores=0.5) == pytest.approx(2.0)


def test_what_fits_behind_the_backward_pass_is_hidden_up_to_the_last_bucket():
    # the first bucket's 0.2 s end at 0.7; the second begins at 0.9 and ends at 1.1; then the optimizer, 0.1
    assert step(exchange=0.4) == pytest.approx(1.2)


def test_a_slow_network_sets_the_pace():
    # from 0.5 on the link is busy for 2 s, then the optimizer
    assert step(exchange=2.0) == pytest.approx(2.6)


def test_encoding_shares_the_core_with_the_model():
    # all is processor time: 1.0 of compute and 0.4 of codec on one core
    assert step(codec=0.4) == pytest.approx(1.4)
    # with a core of its own, only the last bucket's share shows
    assert step(codec=0.4, cores=2.0) == pytest.approx(1.2)


def test_moving_bytes_slows_the_model_down():
    # 0.4 s of transfer take 0.2 s of the core: while bytes move in the backward pass the model gets half of it
    # 0.5 compute; 0.2 s moving (compute 0.6); until 0.9: 0.3 s; 0.2 s moving; 0.1 optimizer
    assert step(exchange=0.4, moving=0.2) == pytest.approx(0.5 + 0.2 + 0.3 + 0.2 + 0.1)


def make_document(kinds, world=4):
    told = {
        kind: CollectiveTerms(count, count * size, 0.0, 0.0, [4, 1_000_000], [0.0, 1000.0], 0.0)
        for kind, (count, size) in kinds.items()
    }
    terms = Terms(100.0, 100.0, 0.0, 0.0, 0.0, 1.0, 1, [1.0], [1.0], told)
    return document(RunConfig("digits", "none", workers=world, link="1gbit"), prediction=Prediction(1.0, 0.0, terms))


@pytest.mark.parametrize(
    ("kinds", "here", "there"),  # milliseconds of all collectives with 4 and with 8 workers
    [
        ({"AllReduce": (1.0, 1e6)}, 1000, 1000 * (7 / 8) / (3 / 4)),
        ({"AllGather": (1.0, 1e6)}, 1000, 1000 * 7 / 3),
        ({"Broadcast": (4.0, 1e6)}, 4 * 1000, 8 * 1000 * 3 / 2),  # twice as many, and three hops instead of two
        ({"Permute": (3.0, 1e6)}, 3 * 1000, 7 * 1000),  # everyone sends to the server
        # an all-gather beside an all-to-all carries chunks, which shrink
        ({"AllToAll": (1.0, 1e6), "AllGather": (1.0, 2.5e5)}, 1250, 1000 * (7 / 8) / (3 / 4) + 250 * 7 / 3 / 2),
    ],
)  # fmt: skip
def test_forecasts_grow_as_the_algorithms_do(kinds, here, there):
    seconds = forecast(make_document(kinds), 1.0)
    steps = [1000 * seconds(link("1gbit"), workers) for workers in (4, 8)]
    assert steps == pytest.approx([100 + here, 100 + there], rel=1e-3)


def test_a_failed_run_has_no_forecast():
    assert forecast(failure_of(RunConfig("digits", "none"), "", []), 1.0) is None
