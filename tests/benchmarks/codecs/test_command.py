import json
import os
import signal
import sys

import pytest
from typer.testing import CliRunner

from benchmarks.codecs.board import Board
from benchmarks.codecs.command import app
from grace_bench.codecs import bench

SMALL = ("--methods", "qsgd:bits=8", "--sizes", "1000", "--threads", "1", "--samples", "3")


def call(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_help_has_an_example():
    done = call("--help")
    assert done.exit_code == 0
    assert "Example: python -m benchmarks.codecs" in " ".join(done.stdout.split())
    assert "--json" in done.stdout


def test_json_is_json_only_and_files_are_written(tmp_path):
    done = call(*SMALL, "--json", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["baseline"] is None
    assert document == json.loads((tmp_path / "codecs.json").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"codecs.json", "codecs.png", "codecs.svg"}


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """Document of an earlier run."""
    out = tmp_path_factory.mktemp("before")
    assert call(*SMALL, "--out", str(out)).exit_code == 0
    return out / "codecs.json"


def times(file, factor, out):
    """The same document, with other ratios."""
    document = json.loads(file.read_text())
    for row in document["rows"]:
        row["ratio"], row["low"], row["high"] = factor, 0.9 * factor, 1.1 * factor
    path = out / "then.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_a_faster_run_passes(before, tmp_path):
    done = call(*SMALL, "--baseline", times(before, 1e6, tmp_path), "--fail-slower", "50")
    assert done.exit_code == 0, done.output
    assert "3 faster" in done.stdout


def test_a_slower_run_fails_only_if_that_was_asked_for(before, tmp_path):
    then = times(before, 1e-6, tmp_path)
    done = call(*SMALL, "--baseline", then, "--fail-slower", "50")
    assert done.exit_code == 1
    assert "error: 3 slower than" in done.stderr
    assert "by more than 50 %" in done.stderr
    done = call(*SMALL, "--baseline", then, "--json")
    assert done.exit_code == 0
    assert {row["verdict"] for row in json.loads(done.stdout)["baseline"]["rows"]} == {"slower"}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--methods", "topkk"], 1, "did you mean 'topk'?"),
        (["--sizes", "4X"], 1, "legal: such as 4096, 256K or 6.5M"),
        (["--threads", "0"], 1, "threads=(0,) is out of range"),
        (["--samples", "1"], 1, "samples=1 is out of range"),
        (["--baseline", "/no/such/file.json"], 1, "cannot be read"),
        (["--fail-slower", "5"], 1, "needs a --baseline"),
        (["--out", "/etc/passwd/timings"], 1, "/etc/passwd is not a folder"),
    ],
)
def test_errors_are_told_before_anything_is_measured(arguments, status, message, monkeypatch):
    monkeypatch.setattr(Board, "measure", lambda *_, **__: pytest.fail("measured"))
    done = call(*arguments)
    assert done.exit_code == status, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""


def test_what_draws_is_asked_for_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(Board, "measure", lambda *_, **__: pytest.fail("measured"))
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    done = call(*SMALL, "--out", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert "pip install 'grace-dl[bench]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_method_that_failed_gives_a_status(monkeypatch):
    def variants(name):
        raise ValueError("broken")

    monkeypatch.setattr(bench, "variants", variants)
    done = call(*SMALL)
    assert done.exit_code == 1
    assert "error: failed: qsgd:bits=8; the first: ValueError: broken" in done.stderr


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("end", "status"),
    [(interrupt, 130), (lambda: os.kill(os.getpid(), signal.SIGTERM), 143)],
    ids=["ctrl-c", "sigterm"],
)
def test_what_was_measured_survives_an_interruption(end, status, monkeypatch, tmp_path):
    real = Board.run_job

    def run_job(self, name, buffers, count):
        real(self, name, buffers, count)
        if name == "topk":
            end()

    monkeypatch.setattr(Board, "run_job", run_job)
    before = signal.getsignal(signal.SIGTERM)
    done = call(*SMALL[2:], "--methods", "qsgd:bits=8,topk,threshold", "--json", "--out", str(tmp_path))
    assert done.exit_code == status, done.output
    assert "error: stopped after" in done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "codecs.json").read_text())
    assert document["complete"] is False
    assert [row["method"] for row in document["rows"][:3]] == ["qsgd:bits=8"] * 3
    assert {path.name for path in tmp_path.iterdir()} == {"codecs.json"}
    assert signal.getsignal(signal.SIGTERM) == before


def test_it_says_first_how_long_it_will_take():
    done = call(*SMALL, "--json")
    assert "measuring 1 methods: about 1 s\n" in done.stderr
    assert json.loads(done.stdout)["complete"] is True
