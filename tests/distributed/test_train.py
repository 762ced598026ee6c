"""``grace train`` and ``grace compare`` as a user runs them: a process, its launcher and its workers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

OWN_TASK = '''
from grace.bench.tasks.digits import Digits

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
    return subprocess.run(grace_command(*arguments), capture_output=True, text=True, timeout=200, cwd=cwd)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "owntask.py").write_text(OWN_TASK)
    return tmp_path


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_compare_writes_everything_and_goes_on_after_a_failure(folder):
    # powersgd needs shapes, which whole-model compression does not keep: it fails, in its workers
    arguments = ["--methods", "powersgd,topk:ratio=0.05", "--workers", "2", "--steps", "6", "--granularity", "model"]
    done = run("compare", "--task", "digits", *arguments, "--out", "out", "--json", cwd=folder)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert [(one["method"], one["status"]) for one in found] == [
        ("none", "ok"), ("powersgd", "failed"), ("topk:ratio=0.05", "ok"),
    ]  # fmt: skip
    assert "CompositionError" in found[1]["error"]
    assert "Traceback" not in found[1]["error"]
    assert "1 of 3 methods failed: powersgd" in done.stderr
    out = folder / "out"
    assert {path.name for path in out.iterdir()} == {
        "runs", "runs.csv", "curves.csv", "comparison.png", "comparison.svg",
    }  # fmt: skip
    assert len(list((out / "runs").iterdir())) == 3
    none, _, topk = found
    assert none["traffic"]["relative_to_fp32"] == 1
    assert topk["traffic"]["relative_to_fp32"] < 0.5
    assert none["schema"] == "grace.result"
    assert none["version"] == 3
    assert none["replicas_agree"]
    assert [point["step"] for point in none["curve"]] == [0, 1, 2, 3, 4, 5, 6]
    assert none["curve"][-1]["sent_bytes"] == 6 * none["traffic"]["sent_bytes_per_step"]
    assert none["time"]["step_ms"]["low"] <= none["time"]["step_ms"]["median"] <= none["time"]["step_ms"]["high"]


def test_train_says_when_the_optimizer_is_not_the_tasks_own(folder):
    done = run("train", "--method", "signsgd", "--workers", "2", "--steps", "2", "--out", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "[1] lr x 0.02, momentum 0" in done.stdout
    (path,) = (folder / "out" / "runs").iterdir()
    result = json.loads(path.read_text())
    assert result["optimizer"]["peak_lr"] == pytest.approx(0.002)
    assert result["optimizer"]["momentum"] == 0


@pytest.mark.parametrize(("task", "said"), [("Failing", "the third drawer is empty"), ("Killed", "SIGKILL")])
def test_a_workers_own_error_is_shown(folder, task, said):
    done = run("train", "--task", f"owntask:{task}", "--method", "none", "--workers", "2", "--json", cwd=folder)
    assert done.returncode == 1
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("error: none:") or "error: none:" in done.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_command(folder, ending):
    arguments = grace_command("train", "--task", "owntask:Slow", "--method", "topk", "--workers", "2")
    process = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 100
        while len(pids := [int(p.suffix[1:]) for p in folder.glob("worker.*")]) < 2:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(ending)
        _, text = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
    assert process.returncode == expected[ending], text
    assert b"Traceback" not in text
    deadline = time.monotonic() + 15
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left


def processes_of(folder):
    """Processes that were told of this folder; those that have ended are not, even if nobody has asked how."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if any(str(folder) in word for word in process.cmdline()):
                found.append(process)
    return found


@pytest.mark.parametrize("workers_run", [False, True], ids=["before the workers run", "while they run"])
def test_a_command_that_is_killed_leaves_no_process_and_no_folder_even_if_nobody_asks(folder, workers_run):
    process = subprocess.Popen(
        grace_command("train", "--task", "owntask:Slow", "--method", "none", "--workers", "2"), cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    started = "worker.*" if workers_run else "grace-*/launcher.log"
    deadline = time.monotonic() + 100
    while not list(folder.glob(started)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert processes_of(folder)
    os.kill(process.pid, signal.SIGKILL)  # and nobody waits for it: it stays in the table of processes
    deadline = time.monotonic() + 60
    while (left := [*processes_of(folder), *folder.glob("grace-*")]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for one in left:
        if isinstance(one, psutil.Process):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()
    assert left == []
