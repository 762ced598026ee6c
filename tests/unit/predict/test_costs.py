"""The same number for the same question: whoever asks how long a step takes."""

import dataclasses
import random

import pytest

from grace.collectives import NARROW, Tally
from grace.predict.break_even import break_even
from grace.predict.costs import REPLAYED, Assumed, Cost, Probed, Step, infer, share_out
from grace.predict.links import Link, link
from grace.predict.probe import Timing, Timings
from grace.predict.replay import Replay
from grace.predict.timeline import play
from grace_bench.advise.advice import rank
from grace_bench.codecs.break_even import Exchange, step_of
from grace_bench.report.slower_links import step_seconds as step_elsewhere
from grace_bench.runs.forecast import forecast
from grace_bench.runs.link_model import Work, step_seconds
from grace_bench.runs.results import CollectiveTerms, Prediction, Terms
from tests.unit.grace_bench.documents import RunConfig, document

WORLD, ADD = 4, 0.2e-9


def random_run(seed):
    """A worker's step, its codec in seconds, the collectives of a step, and what they cost."""
    rng = random.Random(seed)
    numbers = tuple(rng.randint(1000, 10_000_000) for _ in range(rng.randint(1, 6)))
    ready = tuple(sorted(rng.uniform(0.3, 0.95) for _ in numbers))
    step = Step(rng.uniform(0.01, 0.5), ready, numbers, rng.choice([0.5, 1.0, 2.0]), ADD, copies=0.0)
    codec = rng.uniform(0, 0.1)
    kinds = rng.sample(["AllReduce", "AllGather", "AllToAll", f"AllReduce{NARROW}"], rng.randint(1, 2))
    moved = {kind: Tally(len(numbers), rng.uniform(0.01, 4) * sum(numbers)) for kind in kinds}
    timings = Timings(link(rng.choice(["none", "1gbit"])), WORLD, 2)
    for kind in kinds:
        slow = rng.uniform(1e-9, 1e-8)
        timings.kinds[kind] = Timing([4, 1 << 20, 1 << 24], [1e-4, slow * (1 << 20), slow * (1 << 25)], 2e-10)
    return step, codec, moved, timings


def cost_of(step, codec, moved, sent=0.0):
    total = sum(step.numbers)
    shares = [numbers / total for numbers in step.numbers]
    adds = tuple(share * codec / (step.add * total) for share in shares)
    return Cost(lambda world: Replay(world, adds, tuple(share_out(moved, shares)), sent))


def work_of(step, codec, moved):
    total = sum(step.numbers)
    shares = tuple(numbers / total for numbers in step.numbers)
    return Work(step.compute, step.threads, step.ready, shares, codec, moved, step.cores, {})


@pytest.mark.parametrize("seed", range(100))
def test_the_step_model_of_runs_is_the_probed_cost(seed):
    step, codec, moved, timings = random_run(seed)
    ours = cost_of(step, codec, moved).seconds(step, Probed(timings), WORLD)
    theirs = step_seconds(work_of(step, codec, moved), Probed(timings), WORLD)
    assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_a_forecast_and_the_report_are_the_probed_cost(seed):
    step, codec, moved, timings = random_run(seed)
    timings.link, timings.cores = link("none"), round(step.cores * WORLD)
    work = work_of(step, codec, moved)
    told = {
        kind: CollectiveTerms(
            moved[kind].count, moved[kind].bytes, 0.0, 0.0, timing.sizes, [1000 * s for s in timing.seconds],
            1e9 * timing.cpu,
        )
        for kind, timing in timings.kinds.items()
    }  # fmt: skip
    terms = Terms(
        1000 * step.seconds, 1000 * step.compute, 1000 * codec, 0.0, 0.0, step.cores, step.threads, list(step.ready),
        list(work.shares), told,
    )  # fmt: skip
    run = document(RunConfig("digits", "none", workers=WORLD), prediction=Prediction(1.0, 0.0, terms))
    there = link("100mbit")
    expected = cost_of(step, codec, moved).seconds(step, Probed(timings, there), WORLD)
    seconds = forecast(run)
    assert seconds is not None
    assert seconds(there, WORLD) == pytest.approx(expected, rel=1e-9)
    assert step_elsewhere(run, there) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["100mbit", "10gbit"])
def test_what_a_codec_is_worth_is_what_advise_says(name):
    """Advice on a step that only exchanges one tensor: the seconds, and the link under which it beats both dense
    all-reduces.
    """
    numbers, there = 1_000_000, link(name)
    step = step_of(numbers, 1, ADD)
    exchanges = {
        "none": Exchange(0.0, {"AllReduce": Tally(1, 4 * numbers)}, step, WORLD),
        "bf16": Exchange(1e-4, {f"AllReduce{NARROW}": Tally(1, 2 * numbers)}, step, WORLD),
        "topk": Exchange(3e-3, {"AllGather": Tally(1, numbers / 20)}, step, WORLD),
    }
    costs = {
        name: cost_of(step, exchange.codec, exchange.moved, exchange.wire_bytes) for name, exchange in exchanges.items()
    }
    advised = {row.method: row for row in rank(step, costs, there, WORLD).rows}
    for method, exchange in exchanges.items():
        assert 1000 * exchange.seconds(there) == pytest.approx(advised[method].step_ms, rel=1e-9)
    speeds = [break_even(exchanges["topk"].seconds, exchanges[dense].seconds) for dense in ("none", "bf16")]
    assert min(speeds) == pytest.approx(advised["topk"].break_even_bits_per_second, rel=1e-4)


def test_each_bucket_pays_for_its_own_bytes():
    """Beyond 1 MB a byte takes twice as long, so two buckets of one size take less than a large and an empty one."""
    timings = Timings(link("1gbit"), 4, 4)
    timings.kinds["AllReduce"] = Timing([4, 1_000_000, 2_000_000], [1e-3, 11e-3, 31e-3])
    moved = {"AllReduce": Tally(2, 2_000_000)}

    def seconds(shares):
        return sum(Probed(timings).move("AllReduce", bucket["AllReduce"], 4)[1] for bucket in share_out(moved, shares))

    assert seconds((0.5, 0.5)) == pytest.approx(22e-3)
    assert seconds((0.0, 1.0)) == pytest.approx(1e-3 + 31e-3, rel=1e-3)


@pytest.mark.parametrize("axis", ["machine", "machines"])
def test_what_goes_along_an_axis_goes_among_its_workers_over_its_link(axis):
    kind = f"AllReduce along {axis}"
    step = Step(0.0, (0.0,), (1000,), 1.0, 0.0, copies=0.0)
    cost = Cost(
        lambda world: Replay(world, (0.0,), ({kind: Tally(1, 1e6)},), 0.0, axes={"machines": world // 2, "machine": 2})
    )
    network = Assumed(link("1gbit"), 0.0, hop=0.0, lines={"machine": Link("none", None)})
    expected = 0.0 if axis == "machine" else 1e6 * 1.5 * 8e-9 * 1514 / 1448
    assert cost.seconds(step, network, 8) == pytest.approx(expected)
    larger = Cost(cost._replay, worlds=(4, 8, 16)).at(64)
    assert larger.axes == {"machines": 32, "machine": 2}


def test_narrow_sums_cost_the_processor_more():
    step = Step(0.0, (0.0,), (1000,), 1.0, ADD, copies=0.0)
    wide, narrow = (
        step.over(link("none")).move(kind, Tally(1, 1e6), 4)[0] for kind in ("AllReduce", f"AllReduce{NARROW}")
    )
    assert narrow > wide > 0


def test_a_step_is_played_on_the_timeline():
    step = Step(0.1, (0.5, 0.5), (1_000_000, 1_000_000), 8.0, ADD)
    cost = Cost(lambda world: Replay(world, (50.0, 50.0), ({"AllGather": Tally(1, 1e6)},) * 2, 0.0))
    network = step.over(link("1gbit"))
    jobs = cost.jobs(step, network, 4)
    assert [len(job) for job in jobs] == [3, 3]
    assert cost.seconds(step, network, 4) == play(step.compute, 8, 8.0, step.ready, jobs)
    more = dataclasses.replace(step, copies=0.0)
    assert cost.seconds(more, network, 4) < cost.seconds(step, network, 4)


def test_more_workers_are_inferred_whole_wires_chunks_and_headers_alike():
    def replay(world):
        tallies = {"AllGather": Tally(1, 100), "AllToAll": Tally(1, 800 + 16 * world), "Broadcast": Tally(world, 50)}
        return Replay(world, (1 + 0.5 * world,), ({**tallies, "AllReduce": Tally(1, 16 + 800 / world)},), 0)

    inferred = infer([replay(world) for world in REPLAYED], 64)
    (moved,) = inferred.moved
    assert inferred.codec == pytest.approx((33,))
    assert (moved["AllGather"].bytes, moved["AllToAll"].bytes) == pytest.approx((100, 800 + 16 * 64))
    assert (moved["AllReduce"].bytes, moved["Broadcast"].count) == pytest.approx((16 + 12.5, 64))
