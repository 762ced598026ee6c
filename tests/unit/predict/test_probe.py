import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from grace.collectives import NARROW
from grace.errors import ConfigurationError, TransportError
from grace.predict import probe as probe_module
from grace.predict.links import link
from grace.predict.probe import Probe, Timing, Timings, middle
from grace.transports.alone import Alone
from tests.unit.networks import Loopback, Threads, in_threads, run_threads
from tests.unit.predict.samples import make_timings

FRAME = 1514 / 1448


def test_the_line_counts_headers():
    assert link("1gbit").seconds_per_byte == pytest.approx(8e-9 * FRAME)
    assert link("none").seconds_per_byte == 0


def test_between_and_beyond_measured_sizes_time_is_on_a_line():
    timing = Timing([0, 100, 200], [1.0, 2.0, 5.0])
    assert timing.at(50) == pytest.approx(1.5)
    assert timing.at(150) == pytest.approx(3.5)
    assert timing.at(300) == pytest.approx(8.0)
    assert Timing([4], [1.0]).at(1e9) == 1.0


def test_a_smaller_buffer_takes_no_longer_than_a_larger_one():
    """Measured on a machine with other work: 4 bytes took 7.4 ms, and a hundred thousand times as many 0.3 ms."""
    busy = Timing([4, 1000, 2000, 3000], [7.4e-3, 0.4e-3, 1.9e-3, 0.3e-3])
    assert [busy.at(size) for size in (4, 1000, 1500, 2000, 3000, 9000)] == pytest.approx([0.3e-3] * 6)
    assert busy.latency == 0.3e-3
    once = Timing([4, 1000, 2000, 3000], [1e-3, 9e-3, 3e-3, 5e-3])
    assert [once.at(size) for size in (4, 502, 1000, 2000, 2500, 4000)] == pytest.approx(
        [1e-3, 2e-3, 3e-3, 3e-3, 4e-3, 7e-3]
    )


def test_here_it_is_what_was_measured():
    assert make_timings().seconds("AllReduce", 1_000_000) == pytest.approx(1e-3 + 1e6 * 1.5 * 8e-9 * FRAME)


def test_a_tenth_of_the_speed_takes_ten_times_as_long_beyond_latency():
    slow = make_timings().seconds("AllReduce", 1_000_000, link=link("100mbit"))
    assert slow == pytest.approx(1e-3 + 1e6 * 1.5 * 8e-8 * FRAME, rel=1e-3)


def test_what_an_algorithm_loses_it_loses_at_any_speed():
    slow = make_timings(efficiency=0.5).seconds("AllReduce", 1_000_000, link=link("100mbit"))
    assert slow == pytest.approx(1e-3 + 2 * 1e6 * 1.5 * 8e-8 * FRAME, rel=1e-3)


def test_no_line_is_faster_than_the_cores():
    fast = make_timings().seconds("AllReduce", 1_000_000, link=link("400gbit"))
    assert fast == pytest.approx(1e-3 + 1e6 * 1e-9)


def test_more_workers_need_more_hops_and_a_latency_counts_for_each():
    more = make_timings().seconds("AllReduce", 4, world=8, link=link("1gbit", "1ms"))
    assert more == pytest.approx(14 * (1e-3 / 6 + 1e-3), rel=1e-3)


def test_what_goes_along_an_axis_counts_its_workers_and_keeps_its_link():
    timings = make_timings()
    timings.axes = {"machine": 2}
    timings.kinds["AllReduce along machine"] = Timing([4, 1_000_000], [1e-4, 1.1e-3])
    assert timings.size_of("AllReduce along machine") == 2
    assert timings.seconds("AllReduce along machine", 1e6, 2, link("100mbit")) == pytest.approx(1.1e-3)


def learn(member, rank):
    probe = Probe(member, cores=2, repeats=lambda size: 2)
    for kind in ("AllReduce", f"AllReduce{NARROW}", "AllGather", "AllToAll", "ReduceScatter", "Broadcast", "Permute"):
        probe.learn(kind, 70_000)
    probe.learn_copying()
    return probe.timings, (probe.last, probe.spent)


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_learn_the_same(world):
    learned = in_threads(world, learn)
    (first, kept), *others = learned
    assert first.kinds["AllReduce"].sizes == [4, 1 << 14, 70_000]
    assert all(timing.seconds[-1] > 0 and timing.cpu > 0 for timing in first.kinds.values())
    assert first.copying > 0
    assert len(kept[0]) == world
    assert kept[1] >= max(kept[0]) > 0
    for timings, same in others:
        assert (timings.kinds, same) == (first.kinds, kept)


def test_what_is_known_is_not_asked_again():
    network = Loopback()
    probe = Probe(network, 1)
    probe.learn("AllGather", 20_000)
    asked = len(network.asked)
    probe.learn("AllGather", 20_100)
    assert len(network.asked) == asked
    assert asked == 3 * (4 * 2 + 1), "three sizes: four times a meeting and a gather, then what each has measured"


def test_sizes_that_would_take_too_long_are_left_out():
    probe = Probe(Alone(), 1, link("1mbit"), most_seconds=1.0)
    probe.learn("AllReduce", 1 << 22)
    assert probe.timings.kinds["AllReduce"].sizes == [4, 1 << 14]


def test_a_network_that_fails_says_so():
    with pytest.raises(TransportError, match="a worker died"):
        Probe(Loopback(fail_at=3), 1).learn("AllReduce", 4)


@pytest.mark.parametrize("kind", ["Gossip", "AllReduce along machine"])
def test_other_kinds_are_refused(kind):
    with pytest.raises(ConfigurationError, match=f"kind of collective '{kind}'; legal: AllReduce, "):
        Probe(Alone(), 1).learn(kind, 4)


def test_the_middle_is_one_of_them():
    assert [middle(values) for values in ([3, 1, 2], [1, 2], [5])] == [2, 2, 5]


def test_timings_start_empty():
    assert Timings(link("none"), 2, 2).kinds == {}
    assert math.isclose(Timing([4, 8], [1.0, 3.0]).at(2), 1.0)


# ---- several lines ----------------------------------------------------------------------------------------------------
def told_on_lines() -> list[Any]:
    """Numbers that each of four workers, on two lines of two, hears when each tells its own."""
    lines, across = [Threads(2), Threads(2)], [Threads(2), Threads(2)]

    def tell(rank: int) -> Any:
        place, line = divmod(rank, 2)
        probe = Probe(lines[line].member(place), 1, beside=across[place].member(line))
        return probe.all_gather_numbers([10 * place + line, 7])

    return run_threads(4, tell, *lines, *across)


def test_all_lines_hear_the_same() -> None:
    assert told_on_lines() == [[[0, 7], [1, 7], [10, 7], [11, 7]]] * 4


@pytest.mark.parametrize("defect", ["lines that decide alone"])
def test_lines_that_decide_alone_are_caught(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    def alone(probe: Probe, values: Sequence[int]) -> list[list[int]]:
        return probe_module._gather(probe.transport, values)

    monkeypatch.setattr(Probe, "all_gather_numbers", alone)
    heard = told_on_lines()
    assert heard[0] != heard[1], defect


def test_numbers_are_told_on_the_device_that_the_network_takes():
    network = Loopback()
    answer = probe_module.gather_numbers([3, 4], network, device=torch.device("meta"))
    assert network.asked[0].buf.device.type == "meta"
    assert answer.shape == (1, 2)
    Probe(network, 1, device=torch.device("meta")).meet()
    assert network.asked[1].buf.device.type == "meta"
