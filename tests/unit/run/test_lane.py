"""Where exchanges run: both lanes keep the order of submission; a thread overlaps, the inline lane does not."""

from __future__ import annotations

import threading

import pytest
import torch

from grace.run.lane import Inline, Lane, ThreadLane, lane_for


@pytest.mark.parametrize("make", [Inline, lambda: ThreadLane("lane-of-a-test")])
def test_jobs_are_done_in_order(make):
    lane: Lane = make()
    done: list[int] = []
    for number in range(20):
        lane.submit(lambda number=number: done.append(number))
    lane.drain()
    assert done == list(range(20))
    lane.submit(lambda: done.append(20))
    lane.close()
    assert done[-1] == 20


def test_what_a_lane_says_of_overlapping_is_true():
    threads: list[threading.Thread] = []
    for lane in (Inline(), ThreadLane("lane-of-a-test")):
        lane.submit(lambda: threads.append(threading.current_thread()))
        lane.drain()
        assert lane.overlaps == (threads[-1] is not threading.current_thread())
        lane.close()


def test_a_lane_for_each_device():
    assert isinstance(lane_for(torch.device("cuda", 0)), Inline)
    lane = lane_for(torch.device("cpu"))
    assert isinstance(lane, ThreadLane)
    lane.close()
