import os

import pytest

from grace.bench.scratch import Scratch, write_atomically
from grace.errors import TransportError


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "file"
    write_atomically(path, "old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_the_cause_is_told_before_its_consequences(tmp_path):
    scratch = Scratch(tmp_path)
    scratch.fail(0, TransportError("connection lost"))
    scratch.fail(1, ValueError("the cause"))
    error = scratch.error()
    assert error is not None
    assert error.rank == 1
    assert "the cause" in str(error)


REPORT = """Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 4710)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: 4711)  (SIGNAL)
"""


@pytest.mark.parametrize(("status", "killed"), [(-9, (1, "SIGKILL")), (-11, (1, "SIGSEGV")), (-15, None), (1, None)])
def test_a_worker_that_was_killed_is_found_in_the_launchers_report(tmp_path, status, killed):
    scratch = Scratch(tmp_path)
    scratch.log.write_text(REPORT.format(status))
    assert scratch.killed() == killed
