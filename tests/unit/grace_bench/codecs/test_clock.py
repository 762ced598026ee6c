import gc

import torch

from grace.compute import backends
from grace.compute.resources import threads
from grace_bench.codecs.clock import Case, CaseSamples, Clock


def test_samples_are_taken_in_turn_beside_the_yardstick():
    calls = []
    yard = Case("yard", lambda: calls.append("y"))
    cases = [Case("a", lambda: calls.append("a")), Case("b", lambda: calls.append("b"))]
    clock = Clock(10.0, eviction=1 << 12)
    measured = clock.measure(yard, cases, 4, cold=True)
    assert calls[-12:] == list("yabybayabyba")
    for case in cases:
        assert isinstance(measured[case], CaseSamples)
        assert len(measured[case].seconds) == len(measured[case].ratios) == 4
        assert all(seconds >= 0 for seconds in measured[case].seconds)


def test_what_is_prepared_and_cleared_is_not_timed():
    calls = []
    case = Case("a", lambda: calls.append("run"), lambda: calls.append("prepare"))
    case.seconds(lambda: calls.append("clear"))
    assert calls == ["prepare", "clear", "run"]


def test_caches_are_emptied_only_where_that_was_asked_for(monkeypatch):
    cleared = []
    monkeypatch.setattr(Clock, "clear", lambda self: cleared.append(1))
    clock = Clock(10.0, eviction=1 << 12)
    clock.measure(Case("yard", int), [Case("a", int)], 3, cold=False)
    assert cleared == []
    clock.measure(Case("yard", int), [Case("a", int)], 3, cold=True)
    assert len(cleared) >= 6


def test_clearing_writes_the_whole_buffer():
    clock = Clock(1.0, eviction=1 << 12)
    clock.clear()
    assert clock.eviction == 1 << 12
    assert clock._buffer.sum() == clock._buffer.numel() == 1 << 10


def test_a_case_over_the_limit_is_not_sampled():
    runs = []
    case = Case("slow", lambda: runs.append(1))
    measured = Clock(1e-12, eviction=1 << 12).measure(Case("yard", int), [case], 50, cold=True)
    assert isinstance(measured[case], float)
    assert measured[case] > 0
    assert len(runs) < 50
    case.patience = 1e15
    assert isinstance(
        Clock(1e-12, eviction=1 << 12).measure(Case("yard", int), [case], 3, cold=True)[case], CaseSamples
    )


def test_what_is_slow_is_sampled_less_often():
    slow = [Case("ours", lambda: None), Case("other", lambda: None, kernels="torch")]
    clock = Clock(10.0, eviction=1 << 12, budget=1e-9)
    measured = clock.measure(Case("yard", int), slow, 50, cold=True)
    assert [len(measured[case].seconds) for case in slow] == [3, 1]
    assert [len(measured[case].ratios) for case in slow] == [3, 1]
    assert all(ratio > 0 for ratio in measured[slow[1]].ratios)


def test_preparing_counts_for_the_budget_but_not_for_the_time():
    clock = Clock(10.0, eviction=1 << 12, budget=0.02)
    case = Case("a", int, lambda: sum(range(200_000)))
    measured = clock.measure(Case("yard", int), [case], 1000, cold=True)[case]
    assert 3 <= len(measured.seconds) < 1000
    assert min(measured.seconds) < 1e-3


def test_a_case_runs_on_its_own_backend():
    seen = []
    before = backends.active()
    case = Case("a", lambda: seen.append(backends.active()[0]), kernels="reference")
    Clock(10.0, eviction=1 << 12).measure(Case("yard", int), [case], 3, cold=False)
    assert set(seen) == {"reference"}
    assert backends.active() == before


def test_threads_and_the_collector_are_as_before():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    collecting = []
    Clock(10.0, eviction=1 << 12).measure(
        Case("yard", int), [Case("a", lambda: collecting.append(gc.isenabled()))], 3, cold=True
    )
    assert set(collecting) == {False}
    assert gc.isenabled()
