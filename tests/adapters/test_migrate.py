"""Scripts that were written for GRACE and Horovod run unchanged, under mpiexec and torchrun."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import grace.cli.__main__
from tests.distributed.processes import ENVIRONMENT, QUIET_TENSORFLOW, fork, mpiexec
from tests.distributed.with_horovod import find_python, horovodrun
from tests.patience import PATIENCE

SCRIPTS = Path(__file__).parents[1] / "grace_dl/scripts"
COMMAND = Path(grace.cli.__main__.__file__)
PLACES = tuple({"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"} for rank in range(2))


def migrate(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Under mpiexec."""
    command = mpiexec(2, [sys.executable, "-m", "grace.cli", "migrate", str(SCRIPTS / script), *arguments])
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=ENVIRONMENT, check=False)


def test_scripts_for_torch_run_under_mpiexec() -> None:
    done = migrate("several.py", "torch_digits.py", "torch_third_party.py")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "size 2 local 2 accuracy 0." in done.stdout
    assert float(done.stdout.split("accuracy ")[1].split()[0]) > 0.3  # of ten classes
    assert [done.stdout.count(f"rank {rank} learns") for rank in range(2)] == [1, 1]  # two processes may share a line
    assert done.stderr.count("runs with a stand-in for Horovod") == 1


def test_scripts_for_torch_run_under_torchrun() -> None:
    """Under its variables, in processes that have imported torch already."""
    arguments = ("migrate", str(SCRIPTS / "torch_digits.py"), "--by", "helper", "--epochs", "1")
    done = fork(COMMAND, *arguments, workers=2, env=PLACES)
    output = "".join(output for _, output in done)
    assert [status for status, _ in done] == [0, 0], output[-4000:]
    assert "size 2 local 2 accuracy 0." in output


def test_scripts_for_torch_run_under_horovodrun() -> None:
    command = ["-m", "grace.cli", "migrate", str(SCRIPTS / "several.py"), "torch_digits.py", "torch_third_party.py"]
    done = subprocess.run(
        horovodrun(2, command, find_python()),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "runs with Horovod 0." in done.stderr
    assert "size 2 local 2 accuracy 0." in done.stdout
    assert done.stdout.count("learns") == 2


def test_scripts_for_tensorflow_and_keras_run_under_horovodrun() -> None:
    command = ["-m", "grace.cli", "migrate", str(SCRIPTS / "several.py"), "tf2_tape.py", "tf2_keras.py"]
    done = subprocess.run(
        horovodrun(2, command, find_python()),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "runs with Horovod 0." in done.stderr
    assert "tape: 2 workers" in done.stdout
    assert "keras: 2 workers" in done.stdout


def test_a_worker_that_is_killed_ends_the_other_which_says_so() -> None:
    (status, output), (killed, _) = fork(COMMAND, "migrate", str(SCRIPTS / "torch_digits.py"), "--die", workers=2)
    assert killed == -9
    assert status == 1
    assert "TransportError: rank 0 of 2" in output


def test_an_error_of_one_ranks_script_ends_all_and_is_told_by_its_lines() -> None:
    done = fork(COMMAND, "migrate", str(SCRIPTS / "torch_digits.py"), "--fail", workers=2)
    output = "".join(output for _, output in done)
    assert 0 not in [status for status, _ in done]
    assert 'raise RuntimeError("the script\'s own error")' in output
    assert "TransportError: rank 0 of 2" in output
    assert "A worker has died" in output


def test_scripts_for_tensorflow_and_keras_run_under_torchrun() -> None:
    """Under its variables."""
    if importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("tf_keras") is None:
        pytest.skip("pip install 'grace-dl[tensorflow]' tf_keras")
    scripts = ("tf2_tape.py", "tf2_keras.py", "tf2_third_party.py")
    places = tuple({**place, **QUIET_TENSORFLOW, "TF_USE_LEGACY_KERAS": "1"} for place in PLACES)
    done = fork(
        COMMAND,
        "migrate",
        str(SCRIPTS / "several.py"),
        *scripts,
        workers=2,
        env=places,
        after="tensorflow",
    )
    output = "".join(output for _, output in done)
    assert [status for status, _ in done] == [0, 0], output[-4000:]
    for line in ("tape: 2 workers", "keras: 2 workers", "third parties: rank 0 learns", "third parties: rank 1 learns"):
        assert line in output
