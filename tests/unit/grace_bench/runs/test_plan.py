import dataclasses

import pytest

from grace.errors import ConfigurationError, UnknownNameError
from grace_bench.runs.baselines import BASELINES
from grace_bench.runs.config import RunConfig
from grace_bench.runs.plan import SweepPlan, add_baseline, check, check_memory
from grace_bench.runs.record import file_name
from grace_bench.tasks.digits import Digits

PLAN = SweepPlan(
    ["digits"], ["none", "topk"], workers=(2, 4), links=("none", "1gbit"), seeds=(0, 1), common={"steps": 5}
)


def test_a_plan_is_every_combination_and_its_limit_once_for_all_seeds():
    runs = PLAN.runs()
    assert len(runs) == 2 * 2 * (2 * (2 + 3) + 1)
    assert sum(run.method == "no-communication" for run in runs) == 4
    assert len({file_name(run) for run in runs}) == len(runs)
    assert [run.method for run in runs[:1]] == [BASELINES[0]]


def test_rounds_run_everything_once_and_then_again():
    runs = dataclasses.replace(PLAN, workers=(2,), links=("none",), rounds=3).runs()
    once = [dataclasses.replace(run, round=0) for run in runs[: len(runs) // 3]]
    assert runs == [dataclasses.replace(run, round=number) for number in range(3) for run in once]
    assert len({file_name(run) for run in runs}) == len(runs)
    assert file_name(once[0]) == file_name(PLAN.runs()[0])


def test_a_latency_is_of_the_links_that_are_made():
    plan = SweepPlan(["digits"], ["none"], (2,), ("none", "1gbit"), baselines=(), common={"latency": 1e-3})
    assert [run.network.latency for run in plan.runs()] == [0, 1e-3]


def test_an_unknown_task_is_told_before_anything_runs():
    with pytest.raises(UnknownNameError, match="digits"):
        check(SweepPlan(["digit"], ["none"], baselines=()).runs())


@pytest.mark.parametrize(
    "wrong", [{"methods": ["topq"]}, {"links": ["1mb"]}, {"workers": [0]}, {"methods": ["ddp-fp64"]}]
)
def test_a_plan_that_cannot_be(wrong):
    with pytest.raises(ConfigurationError):
        dataclasses.replace(PLAN, **wrong).runs()


@pytest.mark.parametrize(("free", "message"), [(2.5e9, "at most 2 workers fit"), (0.5e9, "not even one")])
def test_more_workers_than_memory_allows(monkeypatch, free, message):
    monkeypatch.setattr(Digits, "worker_bytes", lambda self: 10**9)
    configs = [RunConfig("digits", "none", workers=4)]
    with pytest.raises(ConfigurationError, match=rf"4 workers of digits need at least 4\.0 GB.*{message}"):
        check_memory(configs, int(free))
    check_memory(configs, int(4e9))


def test_the_baseline_comes_first_and_no_method_twice():
    assert add_baseline(["topk:ratio=0.01", "none", "topk", "qsgd:bits=4,bucket=64"]) == [
        "none",
        "topk:ratio=0.01",
        "qsgd:bits=4,bucket=64",
    ]
