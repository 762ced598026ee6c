"""The survey's runs: of real processes, after kills, and what does not run again."""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from grace_bench.runs.results import DocumentError
from grace_bench.survey.archive import add, check_row, read_archive
from grace_bench.survey.estimate import Have
from grace_bench.survey.plan import read_plan
from grace_bench.survey.row import SurveyRow, run_file, same_run
from grace_bench.survey.run import run_all
from grace_bench.workers.local import launch
from tests.distributed.forked import fork_workers
from tests.distributed.processes import SERVER, still_run
from tests.patience import PATIENCE
from tests.unit.grace_bench.survey.tiny import HERE, PLAN, Tiny, call, change, plan

ROOT = Path(__file__).parents[4]


def test_real_processes_train_the_same(whole, monkeypatch):
    """Dropout, running means and private random numbers included."""
    fork_workers(monkeypatch)
    runs = [run.config for run in read_plan(whole[0] / "plan.toml") if run.config.seed == 1]
    rows = [row for row in whole[1] if row.seed == 1]
    for row, result in zip(rows, launch(runs, on_progress=lambda done, steps: None, command=[]), strict=True):
        assert [point.metrics["loss"] for point in result.curve] == row.values
        assert [point.sent_bytes for point in result.curve] == row.sent


def test_a_plan_killed_five_times_gives_the_same_archive(tmp_path, whole):
    runs, draw = read_plan(whole[0] / "plan.toml"), random.Random(0)
    for _ in range(5):
        left = draw.randrange(3, 40)

        def die(done, steps):
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        try:
            run_all(runs, tmp_path, lambda done: None, progress=die)
        except KeyboardInterrupt:
            assert len(list((tmp_path / "runs").glob("*"))) <= len(runs)
    rows = run_all(runs, tmp_path, lambda done: None)
    assert all(map(same_run, rows, whole[1]))
    assert len(rows) == len(whole[1]) == 6


def test_a_run_half_written_is_no_run(tmp_path, whole, monkeypatch):
    """Catches "a run half written": what such a writer leaves behind is noticed, and nothing is built on it."""

    def half(path, content):
        path.parent.mkdir(exist_ok=True)
        path.write_text(content[: len(content) // 2])
        raise KeyboardInterrupt

    runs = read_plan(whole[0] / "plan.toml")[:1]
    with monkeypatch.context() as patched:
        patched.setattr("grace_bench.survey.run.write_atomically", half)
        with pytest.raises(KeyboardInterrupt):
            run_all(runs, tmp_path, lambda done: None)
    with pytest.raises(DocumentError, match="move it away"):
        run_all(runs, tmp_path, lambda done: None)


@pytest.mark.night("a run half written")
def test_the_command_killed_five_times_gives_the_same_archive(tmp_path, whole):
    """SIGKILL at random times, of real processes."""
    draw, ended = random.Random(1), []
    command = [Path(sys.executable).with_name("grace"), "survey", "run", whole[0] / "plan.toml", "--out", tmp_path]
    command += ["--trust", f"{HERE}:Tiny"]
    for _ in range(5):
        run = subprocess.Popen(list(map(str, command)), cwd=ROOT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(draw.uniform(2, 12))
        run.kill()
        run.wait()
        ended.append(len(list((tmp_path / "runs").glob("*.json"))))
    assert ended == sorted(ended)
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True)
    assert add(tmp_path, tmp_path / "a.parquet") == (6, 6)
    add(whole[0], tmp_path / "b.parquet")
    assert all(map(same_run, read_archive(tmp_path / "a.parquet"), read_archive(tmp_path / "b.parquet")))


def _run_two(folder):
    """In a process of its own: runs that take long, two side by side, in processes that are forked."""
    fork = multiprocessing.get_context("fork")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(multiprocessing, "get_context", lambda how: fork)
        run_all(read_plan(plan(folder, PLAN.replace("steps = 3", "steps = 10000000"))), folder, print, jobs=2)


def test_runs_have_the_priority_of_their_command_leave_ctrl_c_to_it_and_none_outlives_it(tmp_path):
    command = SERVER.Process(target=_run_two, args=(tmp_path,))
    command.start()
    try:
        here, deadline = psutil.Process(command.pid), time.monotonic() + PATIENCE
        while len(runs := here.children()) < 2:
            assert command.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while min(run.cpu_times().user for run in runs) < 0.2:  # they run by then
            assert time.monotonic() < deadline
            time.sleep(0.05)
        priorities = [(process.nice(), os.sched_getscheduler(process.pid)) for process in (here, *runs)]
        assert len(set(priorities)) == 1, priorities
        before = [run.cpu_times().user for run in runs]
        for run in runs:  # a terminal sends it to all
            run.send_signal(signal.SIGINT)
        while any(run.cpu_times().user < spent + 0.2 for run, spent in zip(runs, before, strict=True)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        command.kill()
        command.join()
    assert still_run([run.pid for run in runs]) == []


def test_what_has_run_does_not_run_again(whole):
    told = []
    run_all(read_plan(whole[0] / "plan.toml"), whole[0], told.append)
    assert [done.seconds for done in told] == [0.0] * 6


def test_what_an_archive_has_does_not_run(tmp_path, whole):
    runs, told = read_plan(plan(tmp_path, PLAN.replace("[0, 1]", "[0, 1, 2]"))), []
    rows = run_all(runs, tmp_path / "out", told.append, known=whole[1])
    assert [done.run.config.seed for done in told if done.seconds] == [2, 2, 2]
    assert len(rows) == 9
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 3
    add(whole[0], tmp_path / "a.parquet")
    done = call(
        "run", tmp_path / "plan.toml", "--out", tmp_path / "out", "--archive", tmp_path / "a.parquet", "--no-idle"
    )
    assert done.stdout.endswith(f"9 of 9 runs in {tmp_path / 'out' / 'runs'} or {tmp_path / 'a.parquet'}\n")


@pytest.mark.parametrize(
    ("fields", "alike"),
    [
        ({}, True),
        ({"steps": 4}, False),
        ({"workers": 3}, False),
        ({"protocol": "other"}, False),
        ({"seed": 9}, False),
        ({"source": "official"}, False),
        ({"device": "H200"}, False),
    ],
)
def test_a_run_of_an_archive_is_another_one_if_it_differs_in_what_the_plan_says(fields, alike, whole):
    run, row = read_plan(whole[0] / "plan.toml")[0], whole[1][0]
    assert (Have([change(row, **fields)]).row(run) is not None) == alike
    assert Have([change(row, peak_lr=0.3)]).row(replace(run, config=replace(run.config, lr=0.1))) is None


def test_the_start_is_evaluated_once_for_all_methods(tmp_path, monkeypatch):
    monkeypatch.setattr("grace_bench.survey.together._BEGINNINGS", {})
    seen = []

    def evaluate(task, model, real=Tiny.evaluate):
        seen.append(task.steps)
        return real(task, model)

    monkeypatch.setattr(Tiny, "evaluate", evaluate)
    run_all(read_plan(plan(tmp_path)), tmp_path / "out", lambda done: None)
    assert len(seen) == 2 + 6  # at the start for each seed, at the end for each run


def test_divergence_is_a_result(tmp_path):
    text = (
        PLAN.replace("Tiny", "Steep")
        .replace('"none", "topk", "qsgd:bits=4"', '"none"')
        .replace("steps = 3", "steps = 9")
    )
    row = run_all(read_plan(plan(tmp_path, text)), tmp_path, lambda done: None)[0]
    assert row.final is None
    assert row.diverged is not None
    check_row(row)


def test_the_row_says_how_to_repeat_it(whole):
    row = whole[1][0]
    assert row.command == (
        f"grace bench train --tasks {HERE}:Tiny --methods none --baselines '' --workers 2 --seeds 0 --steps 3 "
        "--evaluations 1 --out results"
    )


def test_a_file_that_is_no_row_is_not_overwritten(tmp_path, whole):
    run = read_plan(whole[0] / "plan.toml")[0]
    file = tmp_path / "runs" / run_file(run.protocol, run.config)
    file.parent.mkdir()
    file.write_text("{}")
    with pytest.raises(DocumentError, match="move it away, or take another --out"):
        run_all([run], tmp_path, lambda done: None)
    assert file.read_text() == "{}"


def test_the_commands(tmp_path, whole):
    done = call("run", plan(tmp_path), "--out", whole[0], "--no-idle", "--json")
    assert done.exit_code == 0, done.output
    assert len(msgspec.json.decode(done.stdout, type=list[SurveyRow])) == 6
    done = call("add", whole[0], "--archive", tmp_path / "a.parquet")
    assert done.stdout.endswith("a.parquet: 6 runs added, 6 in all\n")
    assert json.loads(call("add", whole[0], "--archive", tmp_path / "a.parquet", "--json").stdout)["added"] == 0
