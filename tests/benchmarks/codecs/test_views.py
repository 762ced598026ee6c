from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.codecs.baseline import compare
from benchmarks.codecs.figure import draw
from benchmarks.codecs.table import view
from grace_bench.codecs.table import number
from tests.benchmarks.codecs.samples import document, goal, other, row


def whole():
    return document(
        row("topk", ratio=1.0, goals=[goal()],
            others=[other("reference", 60.0), other("native-base", 2.0, [goal("baseline", 2.0, limit=3.0)]),
                    other("torch", 30.0, [goal("times faster", 30.0, "times", 15.0)])]),
        row("topk", "decode and sum", 3.0, goals=[goal("decode", 3.0, limit=2.8)]),
        row("topk", "encode with error feedback", 2.0),
        row("powersgd", ratio=40.0),
        row("topk", size=4096, ratio=7.0, goals=[goal("4K", 700.0, "us", 5.0)]),
        row(None, "Elias-Fano encode 1 %", 0.1, goals=[goal("bits", 8.5, "bits per index", 8.7, None)]),
        row("topk", threads=2, ratio=1.3, goals=[goal(value=1.3)]),
        left_out=[{"operation": "encode", "method": "sketchml", "size": 4096, "threads": 1,
                   "why": "a run takes 9 s, more than the limit of 1 s"},
                  {"operation": None, "method": "none", "size": 4096, "threads": 1, "why": "nothing is encoded"}],
        failed=[{"method": "broken", "size": 4096, "threads": 1, "error": "ValueError: no"}],
    )  # fmt: skip


def text_of(what):
    console = Console(width=220, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(what)
    return console.export_text()


def line_of(text, *words):
    (only,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return only


def test_the_table_shows_goals_methods_and_what_is_missing():
    text = text_of(view(whole()))
    met = line_of(text, "top-k exact 1 %", "0.9 to 1.1")
    assert "met" in met
    assert "not met" not in met
    assert "60x" in met
    assert "30x" in met
    assert "not met" in line_of(text, "decode ", "2.7 to 3.3")
    assert "not met" in line_of(text, "top-k exact 1 %", "1.17 to 1.43")
    assert "met" in line_of(text, "baseline ", "1.8 to 2.2")
    assert "3 of 6 goals met" in text
    assert "700 us" in line_of(text, "topk ", "us")
    assert "left out, 4K: a run takes longer than the limit: sketchml encode" in text
    assert "left out, 4K: nothing is encoded: none" in text
    assert "failed: broken, 4096 elements: ValueError: no" in text
    assert "memcpy" in text
    assert "native-avx512 on a processor, 2 cores; torch 2.13.0; 12 s" in text


@pytest.mark.parametrize(("load", "busy"), [(0.4, False), (1.2, True), (None, False)])
def test_a_busy_machine_is_told(load, busy):
    made = document(row())
    made["environment"]["load_before"] = load
    assert ("the machine was busy" in text_of(view(made))) == busy


def test_the_table_shows_what_has_changed():
    then, now = document(row("a"), row("b")), document(row("a", ratio=3.0), row("b", ratio=0.2))
    then["environment"]["torch"] = "1.0"
    text = text_of(view(now, compare(now, then)))
    assert "slower than the baseline, beyond the spread of both: 1" in text
    assert "+200 %" in line_of(text, "encode ", " a ")
    assert "-80 %" in line_of(text, "encode ", " b ")
    assert "against the baseline: 1 slower, 1 faster, 0 within the spread" in text
    assert "note: torch was 1.0, now 2.13.0" in text


@pytest.mark.parametrize(("value", "text"), [(0.12345, "0.123"), (99.94, "99.9"), (99.96, "100"), (12345.6, "12,346")])
def test_numbers(value, text):
    assert number(value) == text


def test_figures_are_drawn(tmp_path: Path):
    paths = draw(whole(), tmp_path)
    assert [path.name for path in paths] == ["codecs.svg", "codecs.png", "codecs-goals.svg", "codecs-goals.png"]
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert "<svg" in path.read_text()[:1000]


def test_the_same_document_gives_the_same_figures(tmp_path):
    first = [path.read_bytes() for path in draw(whole(), tmp_path / "a")]
    assert first == [path.read_bytes() for path in draw(whole(), tmp_path / "b")]


def test_without_goals_or_methods_there_is_less_to_draw(tmp_path):
    assert len(draw(document(row("sketchml", size=4096)), tmp_path)) == 2
    assert draw(document(), tmp_path) == []
