"""Numbers of Triton kernels that a step launches for buckets of 3 and of 40 tensors, for every registered method, and how
often the host is asked: as many and as often, but for those that this file and docs/data/launches.md list, each with its
reason.
"""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton", reason="needs the package triton")

import grace
from grace.kernels.random_masks.triton import Subsets
from tests.laws import launches
from tests.laws.launches import LAUNCHES, PAGE, RUN
from tests.laws.test_counted import count_work
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

QUESTIONS = PAGE.parents[1] / "concepts/gpu.md"
HEAD = "| method | 3 tensors | 40 tensors | why |"
FIXED = [spec for spec in LAUNCHES if spec not in RUN]
ASKED_IF_LARGE = {"acpsgd": 1, "atomosvd": 6}  # which are compressed then
GATE = (
    "none", "powersgd:rank=1,min_rate=0.1", "qsgd:norm=l2", "natural:bits=4", "lpc:memory=residual", "topk:memory=none",
    "qsparse:index=delta", "sketchedsgd:cols=1,p2=1",
)  # fmt: skip


def shared(specs: list[str], gate: tuple[str, ...]) -> list[object]:
    """All of them at night, some of them always."""
    return [spec if spec in gate else pytest.param(spec, marks=night) for spec in specs]


def count(spec: str, monkeypatch: pytest.MonkeyPatch, *, runs: bool, what: int = 0) -> tuple[int, int]:
    """Launches of buckets of 3 and of 40 tensors; with ``what`` 1, how often the host is asked."""
    few, many = (count_work(spec, ((3, 5),) * T, monkeypatch, runs=runs)[what] for T in (3, 40))
    return few, many


@pytest.mark.parametrize("spec", shared(FIXED, GATE))
def test_a_bucket_of_many_takes_as_many_as_one_of_few(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count(spec, monkeypatch, runs=False) == (LAUNCHES[spec][0],) * 2


@pytest.mark.parametrize("spec", shared(FIXED, GATE))
def test_it_asks_as_often(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked = LAUNCHES[spec]
    assert count(spec, monkeypatch, runs=False, what=1) == (asked, asked)


@pytest.mark.parametrize("spec", shared(FIXED, ("randomk", "topk", "threshold")))
def test_it_asks_as_often_about_larger_tensors(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels choose another way from 4,096 numbers on, and what goes uncompressed where it is small does no longer."""
    shapes, told = ((300, 240), (100, 50)), None
    if spec.startswith("3lc"):  # one width fits both
        shapes, told = ((300, 240), (240, 300)), 2000
    _, asked = count_work(spec, shapes, monkeypatch, told=told)
    assert asked == ASKED_IF_LARGE.get(spec, LAUNCHES[spec][1])


@night
def test_those_whose_launches_depend_on_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of one worker: their kernels have to run."""
    for spec, (few, many, _) in read_table(PAGE.read_text()).items():
        assert count(spec, monkeypatch, runs=True) == (few, many)


@night
@pytest.mark.parametrize("spec", RUN)
def test_those_that_tell_the_host_how_much_they_send(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = [count_work(spec, ((3, 5),) * T, monkeypatch, runs=True) for T in (3, 40)]
    assert work == [LAUNCHES[spec]] * 2


def read_table(page: str) -> dict[str, tuple[int, int, str]]:
    """The page's table of those that go one by one: (launches of 3, of 40 tensors, why)."""
    lines = page.split(f"{HEAD}\n| --- | --- | --- | --- |\n")[1].split("\n\n")[0].splitlines()
    rows = [re.fullmatch(r"\| `(\S+)` \| (\d+) \| (\d+) \| (.{8,}) \|", line) for line in lines]
    assert all(rows), lines
    return {row[1]: (int(row[2]), int(row[3]), row[4]) for row in rows if row}


def test_every_method_is_in_one_of_two_tables() -> None:
    page = read_table(PAGE.read_text())
    assert set(RUN) <= set(LAUNCHES)
    assert not set(LAUNCHES) & set(page)
    assert set(grace.methods()) <= set(LAUNCHES) | {spec.partition(":")[0] for spec in page}


def read_questions(page: str) -> dict[tuple[str, str], str]:
    """The page's table of who asks the host: of a method, with knobs, how often."""
    table = page.partition("| methods | with | questions | why |\n| --- | --- | --- | --- |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {(name.strip("`"), knobs): often for names, knobs, often, _ in rows for name in names.split(", ")}


def find_knobs(spec: str) -> str:
    """Knobs of a spec that decide how often the host is asked, in the page's words."""
    texts = ["`sample`"] if "sample=" in spec else []
    texts += ["`alternate=true`"] if "alternate=true" in spec else []
    for knob, values in (("index", ("rice", "delta")), ("dist", ("gpareto", "gamma"))):
        if any(f"{knob}={value}" in spec for value in values):
            texts.append(" or ".join(f"`{knob}={value}`" for value in values))
    return " and ".join(texts)


def test_the_page_says_who_asks() -> None:
    page = read_questions(QUESTIONS.read_text(encoding="utf-8"))
    asking = {spec: asked for spec, (_, asked) in LAUNCHES.items() if asked}
    told = {(spec.partition(":")[0], find_knobs(spec)): str(asked) for spec, asked in asking.items()}
    unseen = {key: often for key, often in page.items() if key not in told}
    assert {key: often for key, often in page.items() if key in told} == told
    # Not counted here: by the tables, of the family that writes lists; and what is no bucket's.
    assert unseen.pop(("atomosvd", "")) == "3 for each matrix"
    assert {(knobs, often) for (_, knobs), often in unseen.items()} <= {("`index=rice` or `index=delta`", "3")}


def test_a_method_that_no_table_names_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grace, "methods", lambda: ("topk", "newest"))
    with pytest.raises(AssertionError):
        test_every_method_is_in_one_of_two_tables()


def test_tensors_that_go_one_by_one_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.communicators.one_hop.prepare", lambda *_, **__: None)
    with pytest.raises(AssertionError):
        test_a_bucket_of_many_takes_as_many_as_one_of_few("natural:bits=4", monkeypatch)


def test_a_question_about_larger_tensors_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Subsets.draw

    def ask(subsets: Subsets, step: int) -> None:
        draw(subsets, step)
        if subsets._words.numel() > 1000:
            subsets._words.tolist()

    monkeypatch.setattr(Subsets, "draw", ask)
    with pytest.raises(AssertionError):
        test_it_asks_as_often_about_larger_tensors("randomk", monkeypatch)


def test_what_is_counted_anew_is_written_where_it_was_read() -> None:
    page = PAGE.read_text()
    assert launches.write(page, LAUNCHES) == page
    other = launches.write(page, {**LAUNCHES, "qsgd": (77, 5)})
    assert launches.read(other) == {**LAUNCHES, "qsgd": (77, 5)}
    assert other.count("\n") == page.count("\n")


def test_a_question_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAUNCHES, "qsparse:index=delta", (LAUNCHES["qsparse:index=delta"][0], 0))
    with pytest.raises(AssertionError):
        test_it_asks_as_often("qsparse:index=delta", monkeypatch)
