import io

import pytest
from rich.console import Console

from grace_bench.report.progress import Bar, SweepReporter
from grace_bench.report.tables import comparison, sweep
from grace_bench.runs.config import RunConfig
from grace_bench.runs.record import failure_of
from grace_bench.runs.results import Data
from grace_bench.workers.sweep import RunOutcome
from grace_command.text import amount, share
from tests.unit.grace_bench.documents import document


def text_of(view):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(view)
    return console.export_text()


def test_the_table_shows_methods_notes_and_failures():
    signs = RunConfig("digits", "signsgd")
    text = text_of(comparison([
        document(relative=1.5), document(signs, final=None, why="lr x 0.02"), failure_of(signs, "rank 0 failed", []),
    ]))  # fmt: skip
    assert "signsgd [1]" in text
    assert "[1] lr x 0.02" in text
    assert "diverged" in text
    assert "150 %" in text
    assert "failed: rank 0 failed" in text


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (114_444, "114 kB"), (13_824, "13.8 kB"), (2.1e6, "2.10 MB")],
)
def test_amounts(size, text):
    assert amount(size) == text


@pytest.mark.parametrize(
    ("part", "text"), [(None, "-"), (0.0312, "3.12 %"), (1, "100 %"), (1.0002, "100.02 %"), (12.5, "1,250 %")]
)
def test_shares(part, text):
    assert share(part) == text


def test_without_a_terminal_progress_is_a_line_for_each_run(tmp_path):
    with open(tmp_path / "log", "w+") as file:
        with SweepReporter(Console(file=file, width=100), 1, bar=True) as reporter:
            run = RunOutcome(RunConfig("digits", "none"), document(), seconds=2.0)
            reporter.begin_run(run.config)
            reporter.show_steps(1, 10)
            reporter.end_run(run)
        file.seek(0)
        assert file.read() == "1/1 digits none, 4 workers, none, seed 0: accuracy 0.9000, step 3.0 ms (2 s)\n"


def test_on_a_terminal_progress_is_a_bar():
    console = Console(force_terminal=True, record=True, width=120, file=io.StringIO())
    with Bar(console) as bar:
        bar.draw(1, 7, "agreement", "1 of 7")
        bar._bar.refresh()
    assert "agreement" in console.file.getvalue()
    assert "1 of 7" in console.file.getvalue()


SYNTHETIC = {"data": Data("random batches", True, source="synthetic"), "final": None}


@pytest.mark.parametrize("view", [comparison, sweep])
def test_what_nobody_measured_is_no_divergence(view):
    unmeasured = [document(RunConfig("digits", name), **SYNTHETIC) for name in ("none", "topk:ratio=0.01")]
    text = text_of(view(unmeasured))
    assert "0 of 2 runs measured quality" in text
    assert "diverged" not in text
    assert "quality  " not in text
    assert "test accuracy" not in text
    mixed = text_of(view([*unmeasured, document(RunConfig("digits", "bf16"), final=None)]))
    assert "runs measured quality" not in mixed
    assert mixed.count("not measured") == 2
    assert mixed.count("diverged") == 1


def test_progress_tells_what_was_not_measured_from_what_diverged():
    for changes, told in ((SYNTHETIC, "quality not measured, step"), ({"final": None}, "accuracy diverged, step")):
        out = io.StringIO()
        reporter = SweepReporter(Console(file=out, width=200), 1, bar=False)
        reporter.end_run(RunOutcome(RunConfig("digits", "none"), document(**changes), seconds=1.0))
        assert told in out.getvalue()
