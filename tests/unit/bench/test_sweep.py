import dataclasses
import errno

import pytest
from rich.console import Console

from grace.bench.baselines import BASELINES
from grace.bench.config import RunConfig
from grace.bench.launch import RunError
from grace.bench.record import file_name
from grace.bench.report.runs import SweepReporter, duration, link_table, prediction_table, sweep_table
from grace.bench.results import decode
from grace.bench.sweep import Plan, SpaceError, available_bytes, check, check_memory, finished, sweep
from grace.bench.tasks.digits import Digits
from grace.errors import ConfigurationError, UnknownNameError
from tests.unit.bench.documents import document

PLAN = Plan(["digits"], ["none", "topk"], workers=(2, 4), links=("none", "1gbit"), seeds=(0, 1), common={"steps": 5})


class Fake:
    """Launches nothing: every method of ``failing`` fails, every other has a result."""

    def __init__(self, *failing):
        self.failing, self.batches = failing, []

    def __call__(self, configs, *, on_progress=None, command=None):
        self.batches.append([config.method for config in configs])
        for index, config in enumerate(configs):
            on_progress(index, 1, 5)
            yield RunError(f"{config.method}: why") if config.method in self.failing else document(config)


def small(*methods):
    return Plan(["digits"], methods, (2,), baselines=(), common={"steps": 5}).runs()


def test_a_plan_is_every_combination_and_its_limit_once_for_all_seeds():
    runs = PLAN.runs()
    assert len(runs) == 2 * 2 * (2 * (2 + 3) + 1)
    assert sum(run.method == "no-communication" for run in runs) == 4
    assert len({file_name(run) for run in runs}) == len(runs)
    assert [run.method for run in runs[:1]] == [BASELINES[0]]


def test_a_latency_is_of_the_links_that_are_made():
    plan = Plan(["digits"], ["none"], (2,), ("none", "1gbit"), baselines=(), common={"latency": 1e-3})
    assert [run.network.latency for run in plan.runs()] == [0, 1e-3]


def test_runs_share_workers_where_they_can(tmp_path):
    fake = Fake()
    sweep(PLAN.runs(), tmp_path, launcher=fake)
    assert len(fake.batches) == 4


def test_a_failed_run_is_recorded_and_the_others_go_on(tmp_path):
    runs = sweep(small("none", "topk", "qsgd"), tmp_path, launcher=Fake("topk"), command=["grace", "bench"])
    assert [run.ok for run in runs] == [True, False, True]
    failed = decode(runs[1].file.read_bytes())
    assert failed.error == "topk: why"
    assert failed.family == "sparsification"
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    assert len(lines) == 4
    assert "topk: why" in lines[2]


def test_a_stopped_sweep_goes_on_where_it_was(tmp_path):
    configs = small("none", "topk", "qsgd")
    launch = Fake()

    def stopped(batch, *, on_progress=None, command=None):
        yield from list(launch(batch[:2], on_progress=on_progress))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(configs, tmp_path, launcher=stopped)
    assert finished(configs[1], tmp_path) is not None
    assert finished(configs[2], tmp_path) is None
    again, seen = Fake(), []
    runs = sweep(configs, tmp_path, launcher=again, on_end=seen.append)
    assert again.batches == [["qsgd"]]
    assert [run.earlier for run in runs] == [True, True, False]
    assert len(seen) == 3


def test_a_failed_run_is_tried_again_and_a_broken_file_too(tmp_path):
    configs = small("none", "topk")
    sweep(configs, tmp_path, launcher=Fake("topk"))
    (tmp_path / "runs" / file_name(configs[0])).write_text("{")
    again = Fake()
    assert all(run.ok for run in sweep(configs, tmp_path, launcher=again))
    assert again.batches == [["none", "topk"]]


def test_another_length_is_another_run(tmp_path):
    config = small("none")[0]
    sweep([config], tmp_path, launcher=Fake())
    assert finished(dataclasses.replace(config, steps=6), tmp_path) is None


def test_a_full_disk_ends_the_sweep_and_what_is_finished_stays(tmp_path, monkeypatch):
    configs = small("none", "topk")
    real, calls = sweep.__globals__["write_atomically"], []

    def full(path, content):
        calls.append(path)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr("grace.bench.sweep.write_atomically", full)
    with pytest.raises(SpaceError, match=r"No space left on device; free some space .* is kept"):
        sweep(configs, tmp_path, launcher=Fake())
    assert finished(configs[0], tmp_path) is not None
    assert finished(configs[1], tmp_path) is None
    assert not list((tmp_path / "runs").glob(".*"))


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpaceError, match="cannot write into"):
        check(small("none"), tmp_path / "file")


def test_an_unknown_task_is_told_before_anything_runs(tmp_path):
    with pytest.raises(UnknownNameError, match="digits"):
        check(Plan(["digit"], ["none"], baselines=()).runs(), tmp_path)


@pytest.mark.parametrize(
    "wrong", [{"methods": ["topq"]}, {"links": ["1mb"]}, {"workers": [0]}, {"methods": ["ddp-fp64"]}]
)
def test_a_plan_that_cannot_be(wrong):
    with pytest.raises(ConfigurationError):
        dataclasses.replace(PLAN, **wrong).runs()


@pytest.mark.parametrize(("free", "said"), [(2.5e9, "at most 2 workers fit"), (0.5e9, "not even one")])
def test_more_workers_than_memory_allows(monkeypatch, free, said):
    monkeypatch.setattr(Digits, "worker_bytes", lambda self: 10**9)
    configs = [RunConfig("digits", "none", workers=4)]
    with pytest.raises(ConfigurationError, match=rf"4 workers of digits need at least 4\.0 GB.*{said}"):
        check_memory(configs, int(free))
    check_memory(configs, int(4e9))


def test_free_memory_is_what_the_machine_or_its_control_group_leaves(monkeypatch, tmp_path):
    limit, used = tmp_path / "max", tmp_path / "current"
    limit.write_text("3000\n")
    used.write_text("1000\n")
    monkeypatch.setattr("grace.bench.sweep._CGROUP", (limit, used))
    assert available_bytes() == 2000
    limit.write_text("max\n")
    assert available_bytes() > 10**6


def drawn(view):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(view)
        return console.export_text()


def test_tables_tell_quality_times_and_predictions(tmp_path):
    runs = sweep(small("none", "topk"), tmp_path, launcher=Fake("topk"))
    text = drawn(sweep_table([run.document for run in runs]))
    assert "+10 %" in text
    assert "failed" in text
    row = {"link": "1gbit", "asked_bits_per_second": 1e9, "measured_bits_per_second": 9.5e8, "relative_error": -0.05}
    assert "-5.0 %" in drawn(link_table([row]))
    measured = {"step_ms": 3.0, "workers": 2, "link": "none"}
    row = {"task": "t", "method": "m", "workers": 8, "link": "1gbit", "step_ms": 12.0, "measured": measured}
    assert "12.0" in drawn(prediction_table([row]))


def test_time_left(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("grace.bench.report.runs.time.monotonic", lambda: now[0])
    with open("/dev/null", "w") as nowhere:
        reporter = SweepReporter(Console(file=nowhere), 4, bar=False)
        assert reporter.left() == ""
        (run,) = sweep(small("none"), tmp_path, launcher=Fake())
        reporter.ended(dataclasses.replace(run, earlier=True))  # took no time
        assert reporter.left() == ""
        now[0] = 100.0
        reporter.ended(run)
        assert reporter.left() == "3 min left"
    assert [duration(s) for s in (45, 720, 7500)] == ["45 s", "12 min", "2 h 5 min"]
