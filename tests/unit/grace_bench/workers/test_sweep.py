import dataclasses
import errno

import pytest
from rich.console import Console

from grace_bench.report import tables
from grace_bench.report.progress import SweepReporter, duration
from grace_bench.runs.plan import SweepPlan
from grace_bench.runs.record import failure_of, file_name
from grace_bench.runs.results import decode
from grace_bench.workers.sweep import SpaceError, find_finished, sweep
from tests.unit.grace_bench.documents import document


class Fake:
    """Launches nothing: every method of ``failing`` fails, every other has a result."""

    def __init__(self, *failing):
        self.failing, self.batches = failing, []

    def __call__(self, configs, *, on_progress, command):
        self.batches.append([config.method for config in configs])
        for config in configs:
            on_progress(1, 5)
            failed = config.method in self.failing
            yield failure_of(config, f"{config.method}: why", command) if failed else document(config)


class Seen:
    """Watches a sweep."""

    def __init__(self):
        self.told, self.runs = [], []

    def begin_run(self, config):
        self.told.append(f"started {config.method}")

    def show_steps(self, done, steps):
        self.told.append(f"{done}/{steps}")

    def end_run(self, run):
        self.told.append(f"ended {run.config.method}")
        self.runs.append(run)


def run(configs, out, launcher, watcher=None, **more):
    return sweep(configs, out, watcher or Seen(), launcher=launcher, command=["grace", "bench"], **more)


def small(*methods):
    return SweepPlan(["digits"], methods, (2,), baselines=(), common={"steps": 5}).runs()


def test_runs_share_workers_where_they_can(tmp_path):
    fake = Fake()
    plan = SweepPlan(["digits"], ["none", "topk"], workers=(2, 4), links=("none", "1gbit"), common={"steps": 5})
    run(plan.runs(), tmp_path, fake)
    assert len(fake.batches) == 4


def test_a_failed_run_is_recorded_and_the_others_go_on(tmp_path):
    runs = run(small("none", "topk", "qsgd"), tmp_path, Fake("topk"))
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

    def stop_early(batch, *, on_progress, command):
        yield from list(launch(batch[:2], on_progress=on_progress, command=command))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(configs, tmp_path, stop_early)
    assert find_finished(configs[1], tmp_path) is not None
    assert find_finished(configs[2], tmp_path) is None
    again, seen = Fake(), Seen()
    runs = run(configs, tmp_path, again, seen)
    assert again.batches == [["qsgd"]]
    assert [run.earlier for run in runs] == [True, True, False]
    assert len(seen.runs) == 3
    assert seen.told == ["ended none", "ended topk", "started qsgd", "1/5", "ended qsgd"]


def test_a_failed_run_is_tried_again_and_a_broken_file_too(tmp_path):
    configs = small("none", "topk")
    run(configs, tmp_path, Fake("topk"))
    (tmp_path / "runs" / file_name(configs[0])).write_text("{")
    again = Fake()
    assert all(run.ok for run in run(configs, tmp_path, again))
    assert again.batches == [["none", "topk"]]


def test_another_length_is_another_run(tmp_path):
    config = small("none")[0]
    run([config], tmp_path, Fake())
    assert find_finished(dataclasses.replace(config, steps=6), tmp_path) is None


def test_a_full_disk_ends_the_sweep_and_what_is_finished_stays(tmp_path, monkeypatch):
    configs = small("none", "topk")
    real, calls = sweep.__globals__["write_atomically"], []

    def full(path, content):
        calls.append(path)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr("grace_bench.workers.sweep.write_atomically", full)
    with pytest.raises(SpaceError, match=r"No space left on device; free some space .* is kept"):
        run(configs, tmp_path, Fake())
    assert find_finished(configs[0], tmp_path) is not None
    assert find_finished(configs[1], tmp_path) is None
    assert not list((tmp_path / "runs").glob(".*"))


def render(view):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(view)
        return console.export_text()


def test_tables_tell_quality_times_and_predictions(tmp_path):
    runs = run(small("none", "topk"), tmp_path, Fake("topk"))
    text = render(tables.sweep([run.document for run in runs]))
    assert "+10 %" in text
    assert "failed" in text
    row = {"link": "1gbit", "asked_bits_per_second": 1e9, "measured_bits_per_second": 9.5e8, "relative_error": -0.05}
    assert "-5.0 %" in render(tables.links([row]))


def test_rounds_have_a_table_of_ratios_and_processor_time(tmp_path):
    methods = ["no-communication", "topk"]
    configs = SweepPlan(["digits"], methods, (2,), baselines=(), rounds=2, common={"steps": 5}).runs()
    documents = [run.document for run in run(configs, tmp_path, Fake())]
    text = render(tables.sweep(documents))
    for heading in ("of the limit", "processor ms", "runs", "over the rounds", "1.00"):
        assert heading in text
    assert len([*(tmp_path / "runs").iterdir()]) == len(configs)


def test_time_left(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("grace_bench.report.progress.time.monotonic", lambda: now[0])
    with open("/dev/null", "w") as nowhere:
        reporter = SweepReporter(Console(file=nowhere), 4, bar=False)
        assert reporter.left() == ""
        (ended,) = run(small("none"), tmp_path, Fake())
        reporter.end_run(dataclasses.replace(ended, earlier=True))  # took no time
        assert reporter.left() == ""
        now[0] = 100.0
        reporter.end_run(ended)
        assert reporter.left() == "3 min left"
    assert [duration(s) for s in (45, 720, 7500)] == ["45 s", "12 min", "2 h 5 min"]
