"""``grace train`` and ``grace compare`` as a user runs them: a command, its launcher and its workers."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from typer.testing import CliRunner

from grace.cli.app import app
from tests.distributed.processes import still_run
from tests.patience import PATIENCE

OWN_TASK = '''
from grace_bench.tasks.digits import Digits

class Slow(Digits):
    """Says where its workers are, and takes its time."""
    def loss(self, model, batch):
        import os, pathlib, time
        pathlib.Path(f"worker.{os.getpid()}").touch()
        time.sleep(0.2)
        return super().loss(model, batch)

class Failing(Digits):
    def loss(self, model, batch):
        import os
        if os.environ["RANK"] == "1":
            raise ValueError("the third drawer is empty")
        return super().loss(model, batch)

class Killed(Digits):
    def loss(self, model, batch):
        import os, signal
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)
'''


def grace_command(*arguments):
    return [sys.executable, "-m", "grace.cli", *arguments]


def run(*arguments, cwd):
    """The command in this process, as its own would first import torch; launcher and workers have theirs."""
    before = os.getcwd()
    os.chdir(cwd)
    try:
        return CliRunner().invoke(app, arguments)
    finally:
        os.chdir(before)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "owntask.py").write_text(OWN_TASK)
    return tmp_path


@pytest.mark.usefixtures("forked")
def test_algorithms_train_beside_methods_and_an_outer_loop_sends_less_by_its_steps(folder):
    methods = (
        "diloco:every=4,local_sgd:every=8,method=(topk:ratio=0.05),dpsgd:graph=ring,onebitadam:lr=0.01,freeze_step=8,"
        "torch_post_local_sgd:every=4,warmup_steps=4"
    )
    arguments = [
        "--methods",
        methods,
        "--workers",
        "2",
        "--steps",
        "16",
        "--evaluations",
        "2",
        "--baselines",
        "ddp-fp32",
    ]
    done = run("bench", "train", "--tasks", "digits", *arguments, "--out", "out", "--json", cwd=folder)
    assert done.exit_code == 0, done.output
    plain, diloco, local, gossip, adam, torchs = documents = json.loads(done.stdout)
    families = [document["family"] for document in documents]
    assert families == ["baseline", "outer loop", "outer loop", "gossip", "optimizer", "torch"]
    assert diloco["traffic"]["sent_bytes_per_step"] == pytest.approx(
        plain["traffic"]["sent_bytes_per_step"] / 4, rel=0.01
    )
    assert 0 < local["traffic"]["sent_bytes_per_step"] < diloco["traffic"]["sent_bytes_per_step"]
    assert all(document["replicas_agree"] and document["final"] > 0.2 for document in documents)
    assert gossip["traffic"]["sent_bytes_per_step"] == pytest.approx(plain["traffic"]["sent_bytes_per_step"], rel=0.01)
    assert adam["traffic"]["sent_bytes_per_step"] < plain["traffic"]["sent_bytes_per_step"]
    assert diloco["prediction"] is None
    assert torchs["traffic"]["sent_bytes_per_step"] == pytest.approx(
        plain["traffic"]["sent_bytes_per_step"] / 4, rel=0.01
    )


@pytest.mark.usefixtures("forked")
def test_compare_writes_everything_and_goes_on_after_a_failure(folder):
    # powersgd needs shapes, which whole-model compression does not keep: it fails, in its workers
    arguments = [
        "--methods",
        "powersgd,topk:ratio=0.05,signsgd",
        "--workers",
        "2",
        "--steps",
        "6",
        "--granularity",
        "model",
    ]
    done = run("compare", "--task", "digits", *arguments, "--out", "out", "--json", cwd=folder)
    assert done.exit_code == 1, done.output
    results = json.loads(done.stdout)
    assert [(result["method"], result["status"]) for result in results] == [
        ("none", "ok"), ("powersgd", "failed"), ("topk:ratio=0.05", "ok"), ("signsgd", "ok"),
    ]  # fmt: skip
    assert "CompositionError" in results[1]["error"]
    assert "Traceback" not in results[1]["error"]
    assert "1 of 4 runs failed: powersgd" in done.stderr
    out = folder / "out"
    table = {"runs.parquet"} if importlib.util.find_spec("pyarrow") is not None else set()
    assert {path.name for path in out.iterdir()} == table | {
        "runs", "runs.csv", "curves.csv", "comparison.png", "comparison.svg",
    }  # fmt: skip
    assert len(list((out / "runs").iterdir())) == 4
    none, _, topk, votes = results
    assert none["traffic"]["relative_to_fp32"] == 1
    assert topk["traffic"]["relative_to_fp32"] < 0.5
    assert none["schema"] == "grace.result"
    assert none["version"] == 3
    assert none["replicas_agree"]
    assert [point["step"] for point in none["curve"]] == [0, 1, 2, 3, 4, 5, 6]
    assert none["curve"][-1]["sent_bytes"] == 6 * none["traffic"]["sent_bytes_per_step"]
    # not the task's own optimizer: a vote takes a smaller step, without momentum
    assert votes["optimizer"]["peak_lr"] == pytest.approx(0.02 * none["optimizer"]["peak_lr"])
    assert votes["optimizer"]["momentum"] == 0
    assert none["time"]["step_ms"]["low"] <= none["time"]["step_ms"]["median"] <= none["time"]["step_ms"]["high"]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("task", "message"), [("Failing", "the third drawer is empty"), ("Killed", "SIGKILL")])
def test_a_workers_own_error_is_shown(folder, task, message):
    done = run("train", "--task", f"owntask:{task}", "--method", "none", "--workers", "2", "--json", cwd=folder)
    assert done.exit_code == 1
    (failed,) = json.loads(done.stdout)
    assert failed["status"] == "failed"
    assert message in done.stderr
    assert done.stderr.startswith("error: none:") or "error: none:" in done.stderr


# SIGINT ends a command the same way, and SIGKILL without it: test_sweep.py.
@pytest.mark.night("a worker that outlives its command")
def test_no_worker_outlives_a_command_that_is_terminated(folder):
    arguments = grace_command("train", "--task", "owntask:Slow", "--method", "topk", "--workers", "2")
    process = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + PATIENCE
        while len(pids := [int(p.suffix[1:]) for p in folder.glob("worker.*")]) < 2:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 143, text
    assert b"Traceback" not in text
    assert still_run(pids) == []


def processes_of(folder):
    """Processes that were told of this folder; those that have ended are not, even if nobody has asked how."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                processes.append(process)
    return processes


def test_a_command_that_is_killed_before_its_workers_run_leaves_no_process_and_no_folder(folder):
    process = subprocess.Popen(
        grace_command("train", "--task", "owntask:Slow", "--method", "none", "--workers", "2"), cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while not processes_of(folder):  # a worker
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)  # and nobody waits for it: it stays in the table of processes
        left = end_all(folder)
    finally:
        process.kill()
        process.wait()
    assert left == []


def end_all(folder):
    """Ends the processes that are left of a killed command after some time; returns them, and folders."""
    deadline = time.monotonic() + PATIENCE
    while (left := [*processes_of(folder), *folder.glob("grace-*")]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for remaining in left:
        if isinstance(remaining, psutil.Process):
            with contextlib.suppress(psutil.NoSuchProcess):
                remaining.kill()
    return left
