import os
import threading

import pytest

from grace_bench.files import write_atomically
from grace_bench.workers.scratch import Scratch
from tests.patience import PATIENCE


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


def test_progress_is_read_as_it_was_reported(tmp_path):
    scratch = Scratch(tmp_path)
    assert scratch.read_progress() is None
    scratch.report(1, 20, 50)
    assert scratch.read_progress() == (1, 20, 50)


def test_the_tail_is_what_the_workers_wrote_last(tmp_path):
    scratch = Scratch(tmp_path)
    assert scratch.read_tail() == ""
    scratch.log(0).write_text("")
    scratch.log(1).write_text("one\ntwo\n")
    assert scratch.read_tail(1) == "two"


def check_leaving(folder, seconds):
    """A process that watches leaves within so many seconds once nobody holds the lifeline."""
    scratch, left = Scratch(folder), threading.Event()
    os.mkfifo(scratch.lifeline)
    line = os.open(scratch.lifeline, os.O_RDWR)
    scratch.watch(left.set)
    assert not left.wait(0.2)
    os.close(line)
    assert left.wait(seconds)


def test_who_watches_leaves_once_nobody_holds_the_lifeline(tmp_path):
    check_leaving(tmp_path, PATIENCE)


@pytest.mark.parametrize("defect", ["a worker that outlives its command"])
def test_who_does_not_watch_is_caught(defect, tmp_path, monkeypatch):
    monkeypatch.setattr(Scratch, "watch", lambda self, leave: None)
    with pytest.raises(AssertionError):
        check_leaving(tmp_path, 0.2)


def test_who_comes_too_late_leaves_at_once(tmp_path):
    scratch, left = Scratch(tmp_path), threading.Event()
    os.mkfifo(scratch.lifeline)
    scratch.watch(left.set)
    assert left.wait(PATIENCE)
    gone = threading.Event()
    Scratch(tmp_path / "gone").watch(gone.set)
    assert gone.wait(PATIENCE)
