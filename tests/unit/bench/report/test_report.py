import pytest
from rich.console import Console

from grace.bench.compare import Outcome
from grace.bench.config import RunConfig
from grace.bench.report.progress import Reporter
from grace.bench.report.tables import amount, comparison, overhead, share
from tests.unit.bench.documents import document


def text_of(view):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(view)
    return console.export_text()


def test_the_table_shows_methods_notes_and_failures():
    text = text_of(comparison([
        Outcome("none", result=document(relative=1.5)),
        Outcome("signsgd", result=document(RunConfig("digits", "signsgd"), final=None, why="lr x 0.02")),
        Outcome("bad", error="rank 0 failed"),
    ]))  # fmt: skip
    assert "signsgd [1]" in text
    assert "[1] lr x 0.02" in text
    assert "diverged" in text
    assert "150 %" in text
    assert "failed: rank 0 failed" in text


def test_overhead_is_shown_with_its_goal():
    row = {"operation": "step", "value": 1.05, "unit": "x", "low": 1.0, "high": 1.1, "goal": 1.1}
    assert "<= 1.1" in text_of(overhead([row]))


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
        with Reporter(Console(file=file, width=100), 1, bar=True) as reporter:
            reporter.started("none")
            reporter.progressed(1, 10)
            reporter.ended(Outcome("none", result=document()))
        file.seek(0)
        assert file.read() == "1/1 none: accuracy 0.9000 (0 s)\n"
