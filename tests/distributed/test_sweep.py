"""``grace bench train`` as a user runs it: sweeps in real processes, over a link where one can be made."""

import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import grace.cli.__main__
from grace.predict.links import link
from grace_bench.network.namespaces import why_not
from grace_bench.runs.results import decode
from tests import blobs
from tests.distributed.processes import torchrun
from tests.distributed.test_train import OWN_TASK, end_all, grace_command, run
from tests.patience import PATIENCE

REFUSED = why_not(link("1gbit"))
permitted = pytest.mark.skipif(REFUSED is not None, reason=f"no links here: {REFUSED}")
BLOBS = "blobs:Blobs"
SHORT = ["--workers", "2", "--evaluations", "1"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "owntask.py").write_text(OWN_TASK)
    shutil.copy(blobs.__file__, tmp_path)
    return tmp_path


def documents(out):
    contents = [json.loads(path.read_text()) for path in sorted((out / "runs").iterdir())]
    return {(document["task"], document["method"]): document for document in contents}


@pytest.mark.usefixtures("forked")
def test_a_sweep_records_failures_and_is_resumed(folder):
    # powersgd needs shapes, which whole-model compression does not keep: it fails, in its workers
    arguments = [
        "bench",
        "train",
        "--task",
        BLOBS,
        "--methods",
        "powersgd,topk",
        "--granularity",
        "model",
        "--steps",
        "6",
    ]
    first = run(*arguments, *SHORT, "--out", "out", cwd=folder)
    assert first.exit_code == 1
    assert "1 of 6 runs failed: powersgd" in first.stderr
    assert "Traceback" not in first.stderr
    written = documents(folder / "out")
    assert {document["status"] for document in written.values()} == {"ok", "failed"}
    assert all(decode(path.read_bytes()) for path in (folder / "out" / "runs").iterdir())
    failed = written[BLOBS, "powersgd"]
    assert failed["status"] == "failed"
    assert "CompositionError" in failed["error"]
    assert all(
        document["status"] == "ok" for key, document in written.items() if key[1] != "powersgd"
    )  # those after it too
    with open(folder / "out" / "runs.csv") as file:
        assert [row["status"] for row in csv.DictReader(file)].count("ok") == 5

    limit, fp32, bf16, low_rank = (
        written[BLOBS, name] for name in ("no-communication", "ddp-fp32", "ddp-bf16", "ddp-powersgd")
    )
    assert limit["traffic"]["sent_bytes_per_step"] == 0
    assert limit["final"] is None
    assert limit["time"]["exposed_ms"] == 0
    assert fp32["traffic"]["relative_to_fp32"] == pytest.approx(1)
    assert bf16["traffic"]["relative_to_fp32"] == pytest.approx(0.5)
    assert 0 < low_rank["traffic"]["relative_to_fp32"] < 0.5
    assert fp32["replicas_agree"]
    assert fp32["final"] == pytest.approx(bf16["final"], abs=0.2)
    for document in (limit, fp32, written[BLOBS, "topk"]):
        assert document["prediction"]["step_ms"] > 0
        assert document["time"]["compute_ms"] > 0

    stamps = {path: path.stat().st_mtime_ns for path in (folder / "out" / "runs").iterdir()}
    again = run(*arguments, *SHORT, "--out", "out", cwd=folder)
    assert again.exit_code == 1
    assert again.stderr.count("(finished earlier)") == 5
    changed = [path.name for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp]
    assert len(changed) == 1
    assert "powersgd" in changed[0]


@permitted
def test_a_link_is_measured_where_the_bytes_pass(folder):
    arguments = ["--task", BLOBS, "--methods", "none", "--baselines", "ddp-fp32", "--link", "100mbit", "--steps", "12"]
    done = run("bench", "train", *arguments, *SHORT, "--out", "out", cwd=folder)
    assert done.exit_code == 0, done.output
    for document in documents(folder / "out").values():
        sent = document["traffic"]["sent_bytes_per_step"]
        assert sent <= document["nic"]["sent_bytes_per_step"] < 2 * sent + 4000  # headers, acknowledgements
        assert document["link"] == {"name": "100mbit", "bits_per_second": 1e8, "latency_seconds": 0.0}
    output = run("bench", "predict", "out", "--link", "1gbit", "--workers", "8", "--json", cwd=folder)
    (table,) = json.loads(output.stdout)["tables"]
    assert (table["workers"], table["measured_workers"]) == (8, 2)
    assert table["dense"] in {"none", "ddp-fp32"}  # whichever was faster here: the same bytes
    assert {row["method"] for row in table["rows"]} == {"none", "ddp-fp32"}


# Killed before its workers run: test_train.py.
KILLED = pytest.param(signal.SIGKILL, marks=pytest.mark.night("a worker that outlives its command"))


def hear_of_ctrl_c():
    """Makes Ctrl-C heard: processes that a shell starts in the background ignore SIGINT, and so does all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("ending", [signal.SIGINT, KILLED])
def test_a_sweep_that_is_ended_keeps_what_is_finished_and_leaves_nothing_else(folder, ending):
    arguments = ["--tasks", f"{BLOBS},owntask:Slow", "--methods", "none", "--baselines", "", "--steps", "60"]
    linked = ["--link", "1gbit"] if REFUSED is None else []
    first = folder / "out" / "runs"
    process = subprocess.Popen(
        grace_command("bench", "train", *arguments, *linked, *SHORT, "--out", "out"), cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(folder)},
        preexec_fn=hear_of_ctrl_c,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        # workers go on to the second run by themselves: the command may not have written the first yet
        while len(pids := [int(p.suffix[1:]) for p in folder.glob("worker.*")]) < 2 or not any(first.glob("*.json")):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        spaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
        process.send_signal(ending)
        if ending == signal.SIGINT:
            _, text = process.communicate(timeout=PATIENCE)
            assert b"Traceback" not in text
        left = end_all(folder)  # a command that was killed is still in the table of processes: nobody has asked for it
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == (130 if ending == signal.SIGINT else -9)
    assert left == []
    if linked:
        assert len(spaces) == 2
        deadline = time.monotonic() + PATIENCE
        # a process that is ending has no command line any more, but still its namespace
        while spaces & namespaces():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert [path.name.split("-")[0] for path in first.iterdir()] == ["blobs_Blobs"]


def namespaces():
    """The network namespaces that some process is in, as far as this one may look."""
    namespaces_found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            namespaces_found.add(os.readlink(f"/proc/{name}/ns/net"))
    return namespaces_found


@pytest.mark.tier("test")
def test_in_workers_that_torchrun_has_started(folder):
    arguments = [
        "bench",
        "train",
        "--task",
        BLOBS,
        "--methods",
        "powersgd:rank=2,topk",
        "--granularity",
        "model",
    ]
    few = ["--baselines", "ddp-fp32", "--steps", "6", "--evaluations", "1", "--out", "out"]
    status, output = torchrun(Path(grace.cli.__main__.__file__), *arguments, *few, workers=2, cwd=folder)
    assert status == 1
    assert "1 of 3 runs failed: powersgd" in output
    written = documents(folder / "out")
    states = {method: document["status"] for (_, method), document in written.items()}
    assert states == {"ddp-fp32": "ok", "powersgd:rank=2": "failed", "topk": "ok"}
    assert all(document["workers"] == 2 for document in written.values())
    assert "CompositionError" in written[BLOBS, "powersgd:rank=2"]["error"]
