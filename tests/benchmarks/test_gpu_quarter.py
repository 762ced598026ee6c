"""The script for a quarter of an hour on a GPU, with stand-ins for Python and for its stages; and its own table of stages."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SCRIPT, TABLE = ROOT / "benchmarks/gpu_quarter.sh", ROOT / "benchmarks/gpu_quarter.stages"
STAGES = """
# name | seconds | needs | file | command
first  | 20 | -   | first.txt   | echo here; python -m some.module
broken | 20 | -   | broken.txt  | echo before; echo why >&2; exit 3
slow   | 1  | -   | slow.jsonl  | echo '{"row": 1}'; sleep 60
device | 20 | gpu | device.txt  | echo $DEVICE | cat
last   | 20 | -   | last.txt    | ls "$OUT"
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Stands in for Python: it has all that is imported, and a GPU if there is a file of that name."""
    path = tmp_path / "python"
    path.write_text(
        "#!/bin/bash\n"
        'case "$*" in *get_device_name*) cat "$(dirname "$0")/gpu" 2> /dev/null; exit 0 ;; *"import grace,"*) exit '
        '$([ -e "$(dirname "$0")/bare" ] && echo 1 || echo 0) ;; *) echo "$@" ;; esac\n'
    )
    path.chmod(0o755)
    return path


def environment_of(tmp_path: Path, stages: str) -> dict[str, str]:
    """The environment of the script, with these stages."""
    table = tmp_path / "stages"
    table.write_text(stages)
    given = {"PYTHON": tmp_path / "python", "STAGES": table, "ENVIRONMENT": tmp_path / "environment"}
    return {**os.environ, **{name: str(path) for name, path in given.items()}}


def states_of(lines: list[str]) -> dict[str, str]:
    """The state of each stage, in a summary."""
    return {line.split()[0]: line[12:24].strip() for line in lines}


def go(
    tmp_path: Path, *names: str, stages: str = STAGES, out: str = "out", **environment: str
) -> tuple[int, dict[str, str], str]:
    """The script's status, the state of each stage, and what it wrote to stderr."""
    given = {**environment_of(tmp_path, stages), **environment}
    command = ["bash", str(SCRIPT), out, *names]
    run = subprocess.run(command, env=given, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    summary = tmp_path / out / "summary.txt"
    lines = summary.read_text().splitlines() if summary.is_file() else []
    assert run.stdout.splitlines() == lines, "what is printed is what is kept"
    return run.returncode, states_of(lines), run.stderr


@pytest.mark.usefixtures("python")
def test_a_stage_that_fails_or_takes_too_long_stops_no_other(tmp_path: Path) -> None:
    start = time.monotonic()
    status, states, _ = go(tmp_path)
    assert states == {
        "first": "passed", "broken": "failed", "slow": "out of time", "device": "skipped", "last": "passed",
        "all": "not passed",
    }  # fmt: skip
    assert status == 1
    assert time.monotonic() - start < 59, "the slow one was ended"
    out = tmp_path / "out"
    assert (out / "first.txt").read_text() == "here\n-m some.module\n"
    assert (out / "broken.txt").read_text() == "before\n"
    assert (out / "broken.log").read_text() == "why\n"
    assert (out / "slow.jsonl").read_text() == '{"row": 1}\n', "results are written at once"
    assert {"first.txt", "broken.txt", "slow.jsonl", "summary.txt"} <= set((out / "last.txt").read_text().split())


@pytest.mark.usefixtures("python")
def test_on_a_gpu_all_may_pass(tmp_path: Path) -> None:
    (tmp_path / "gpu").write_text("a GPU\n")
    status, states, _ = go(tmp_path, "first", "device", "last")
    assert states == {"first": "passed", "device": "passed", "last": "passed", "all": "passed"}
    assert status == 0
    assert (tmp_path / "out/device.txt").read_text() == "cuda\n"
    assert "a GPU" in (tmp_path / "out/summary.txt").read_text()


@pytest.mark.usefixtures("python")
def test_time_for_all_ends(tmp_path: Path) -> None:
    status, states, _ = go(tmp_path, "first", "last", SECONDS_ALL="0")
    assert (status, states) == (1, {"first": "not begun", "last": "not begun", "all": "not passed"})


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("names", [["frist"], ["last", "frist"]])
def test_a_name_of_no_stage_is_told_before_anything_runs(tmp_path: Path, names: list[str]) -> None:
    status, states, error = go(tmp_path, *names)
    assert (status, states) == (2, {})
    assert "no stage is named so: frist; legal: first broken slow device last" in error


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("out", ["python", "taken"])
def test_a_folder_that_takes_no_files_is_told(tmp_path: Path, out: str) -> None:
    (tmp_path / "taken/summary.txt").mkdir(parents=True)
    status, states, error = go(tmp_path, "first", out=out)
    assert (status, states) == (2, {})
    assert f"OUT={out} is no folder for files" in error


@pytest.mark.usefixtures("python")
def test_a_folder_may_have_a_space_in_its_name(tmp_path: Path) -> None:
    assert go(tmp_path, "first", "last", out="my results")[:2] == (0, dict.fromkeys(("first", "last", "all"), "passed"))


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_the_running_stage(tmp_path: Path, sent: signal.Signals, status: int) -> None:
    stages = "long | 60 | - | long.txt | echo $$; sleep 60; true\nlast | 20 | - | last.txt | true\n"
    command = ["bash", str(SCRIPT), str(tmp_path / "out")]
    run = subprocess.Popen(command, env=environment_of(tmp_path, stages), stdout=subprocess.PIPE, text=True)
    result = tmp_path / "out/long.txt"
    while not (result.exists() and result.read_text().endswith("\n")):
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(sent)
    printed, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == status
    assert states_of(printed.splitlines()) == {"long": "stopped", "all": "not passed"}
    with pytest.raises(ProcessLookupError):
        os.kill(int(result.read_text()), 0)


@pytest.mark.usefixtures("python")
def test_an_environment_that_cannot_be_made_is_no_success(tmp_path: Path) -> None:
    """Stages run with what there is; here the stand-in makes no environment."""
    (tmp_path / "bare").touch()
    stages = "only | 20 | - | only.txt | echo $PYTHONPATH\n"
    status, states, _ = go(tmp_path, stages=stages)
    assert states == {"setup": "failed", "only": "passed", "all": "not passed"}
    assert status == 1
    assert (tmp_path / "out/only.txt").read_text().startswith(f"{ROOT}/src:{ROOT}")


def test_without_a_folder_it_says_how_it_is_called() -> None:
    run = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 2
    assert "usage: benchmarks/gpu_quarter.sh OUT" in run.stderr


def test_the_stages_are_of_this_tree() -> None:
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    rows = [[part.strip() for part in line.split("|", 4)] for line in lines]
    assert all(len(row) == 5 and int(row[1]) > 0 and row[2] in ("-", "gpu") for row in rows)
    for column in (0, 3):
        assert len({row[column] for row in rows}) == len(rows)
    commands = "\n".join(row[4] for row in rows)
    for module in re.findall(r"python -m (\S+)", commands):
        assert importlib.util.find_spec(module), module
    for path in re.findall(r"tests/\S+\.py", commands):
        assert (ROOT / path).exists(), path
