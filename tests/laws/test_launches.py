"""How many Triton kernels a step launches for buckets of 3 and of 40 tensors, for every registered method, and how often the
host is asked: as many and as often, but for those that this file and docs/concepts/gpu-buckets.md list, each with its reason.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs the package triton")

import grace
from grace.kernels.subsets.triton import Subsets
from tests.laws import test_counted, test_many
from tests.laws.test_counted import count_work
from tests.unit.kernels.triton_checks import interpreter, night

__all__ = ["interpreter"]

PAGE = Path(__file__).parents[2] / "docs/concepts/gpu-buckets.md"
QUESTIONS = PAGE.with_name("gpu.md")
HEAD = "| method | 3 tensors | 40 tensors | why |"
# Variants of methods of whose defaults the other two files count the launches.
VARIANTS = {
    "none": 0, "qsgd:norm=l2": 4, "qsgd:levels=1": 4, "qsgd:memory=residual": 4, "natural:bits=4": 3, "onebit:tau=0.1": 5,
    "signum": 5, "fp8:memory=momentum": 5, "randomk:memory=ef21": 5, "topk:memory=ef21": 15, "fp8:memory=ef21m": 4,
    "efsignsgd:memory=distef": 6, "topk:communicator=broadcast": 15, "qsgd:bits=16": 3, "natural:bits=9": 3,
    "qsparse:quant=200": 19, "terngrad:clip=2.5": 5, "efsignsgd:communicator=parameterserver": 10,
    "fp8:stochastic=true": 3, "fp8:memory=residual": 4, "lpc:memory=residual": 4, "signsgd:zero=abstain": 3,
    "drive:memory=residual": 8, "eden:memory=residual": 8, "rht:memory=residual": 9, "rht:inner=fp8": 6,
    "rht:inner=drive": 9, "rht:inner=(eden:rotation=shared)": 10,
    "rht:inner=(eden:bits=2),memory=residual": 12, "rht:inner=(rht:inner=fp8)": 9, "rht:inner=topk": 17,
    "thc:memory=none": 7, "randomk:memory=none": 4, "topk:memory=none": 14,
    "topk:memory=dgc,clip=1": 18, "sidco:dist=gpareto": 13, "sidco:dist=gamma": 13, "topk:values=bfloat16": 15,
    "qsparse:quant=4": 19, "qsparse:index=delta": 24, "threshold:values=bfloat16": 12, "powersgd": 6,
    "powersgd:rank=1,min_rate=0.1,warm_start=false": 14,
    "strom:quanta=9": 13, "strom:relative=false": 12, "adaq:joint=true": 20, "adaq:memory=none": 19,
    "powersgd:rank=1,min_rate=0.1": 13, "powersgd:rank=1,min_rate=0.1,memory=none": 11, "acpsgd": 6,
    "efsignsgd:beta=0.5": 6, "fp8:memory=residual,gamma=2": 5, "topk:follow_lr=true": 16,
    "drive:memory=residual,follow_lr=true": 9, "powersgd:follow_lr=true": 6, "efsignsgd:memory=distef,follow_lr=true": 7,
    "acpsgd:rank=1,min_rate=0.1": 14, "acpsgd:rank=1,min_rate=0.1,memory=none": 11, "3lc:zre=false": 5,
    "inceptionn:p=6,memory=residual": 9, "gspar:epsilon=1": 21, "gspar:rounds=0,memory=residual": 16,
    "gradzip": 6, "gradzip:rank=1,min_rate=0.1": 23, "gradzip:rank=1,min_rate=0.1,alternate=true": 17,
    "gradzip:rank=1,min_rate=0.1,memory=none": 20, "atomosvd": 0, "gradiveq": 6, "gradiveq:collect=1": 15,
    "gradiveq:memory=none": 2,
    "3lc:memory=none": 10, "sketch": 8, "sketch:memory=none": 6, "sketchedsgd": 17,
    "sketchedsgd:cols=1,p2=1": 36, "sketchedsgd:rows=1,cols=1,p2=1,memory=residual": 26, "sketchml:memory=none": 19,
}  # fmt: skip
FIXED = {**test_many.LAUNCHES, **test_counted.LAUNCHES, **VARIANTS}
# What goes one by one: launches of 3 and of 40 tensors of 15 numbers, of one worker. Of methods that look at numbers: their
# kernels have to run.
UNEVEN = {"atomosvd:rank=1,min_rate=0.1": (12, 160)}
# And those whose kernels have to run, but take as many for any number of tensors that send something, and ask the host as
# often: launches and questions.
TOLD = {
    "threshold:v=1.5,index=rice": (15, 3), "threshold:v=1.5,index=delta": (16, 3), "dgc:index=delta": (34, 3),
    "strom:index=rice": (16, 3), "adaq:index=rice": (23, 3), "varsparse:alpha=0.5,index=rice": (15, 3),
    "gspar:ratio=0.7,index=rice": (27, 3), "gspar:ratio=0.7,index=delta": (29, 3),
    "atomo:ratio=0.3,index=rice": (21, 3), "atomo:ratio=0.3,index=delta": (23, 3),
    "sketchml:index=rice": (26, 3), "sketchml:index=delta": (27, 3),
    "adaq:sample=4": (21, 2), "adaq:sample=4,joint=true,index=rice": (24, 4),
}  # fmt: skip
# How often the host is asked in a step of those of which it is, whose sizes depend on the data or on the step before.
ASKED = {
    **dict.fromkeys(
        (
            *test_counted.LAUNCHES,
            "qsparse:index=delta",
            "threshold:values=bfloat16",
            "3lc:memory=none",
            "strom:quanta=9",
            "strom:relative=false",
            "adaq:joint=true",
            "adaq:memory=none",
            "gspar:epsilon=1",
            "gspar:rounds=0,memory=residual",
        ),
        1,
    ),
    **dict.fromkeys(("inceptionn:p=6,memory=residual", "sketchml:memory=none"), 1),
    **dict.fromkeys(("gradiveq", "gradiveq:collect=1", "gradiveq:memory=none"), 1),
    **dict.fromkeys((spec for spec in VARIANTS if "alternate" in spec), 1),
    **dict.fromkeys(("acpsgd:rank=1,min_rate=0.1", "acpsgd:rank=1,min_rate=0.1,memory=none"), 1),
    **test_counted.QUESTIONS,
    "sidco:dist=gpareto": 3,
    "sidco:dist=gamma": 3,
}
ASKED_IF_LARGE = {"acpsgd": 1, "atomosvd": 6}  # which are compressed then
GATE = (
    "none", "powersgd:rank=1,min_rate=0.1", "qsgd:norm=l2", "natural:bits=4", "lpc:memory=residual", "topk:memory=none",
    "qsparse:index=delta", "sketchedsgd:cols=1,p2=1",
)  # fmt: skip


def shared(specs: dict[str, object], gate: tuple[str, ...]) -> list[object]:
    """All of them at night, some of them always."""
    return [spec if spec in gate else pytest.param(spec, marks=night) for spec in specs]


def count(spec: str, monkeypatch: pytest.MonkeyPatch, *, runs: bool, what: int = 0) -> tuple[int, int]:
    """Launches of buckets of 3 and of 40 tensors; with ``what`` 1, how often the host is asked."""
    few, many = (count_work(spec, ((3, 5),) * T, monkeypatch, runs=runs)[what] for T in (3, 40))
    return few, many


@pytest.mark.parametrize("spec", shared(dict(FIXED), GATE))
def test_a_bucket_of_many_takes_as_many_as_one_of_few(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count(spec, monkeypatch, runs=False) == (FIXED[spec], FIXED[spec])


@pytest.mark.parametrize("spec", shared(dict(FIXED), GATE))
def test_it_asks_as_often(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ASKED.get(spec, 0)
    assert count(spec, monkeypatch, runs=False, what=1) == (asked, asked)


@pytest.mark.parametrize("spec", shared(dict(FIXED), ("randomk", "topk", "threshold")))
def test_it_asks_as_often_about_larger_tensors(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels choose another way from 4,096 numbers on, and what goes uncompressed where it is small does no longer."""
    shapes, told = ((300, 240), (100, 50)), None
    if spec.startswith("3lc"):  # one width fits both
        shapes, told = ((300, 240), (240, 300)), 2000
    _, asked = count_work(spec, shapes, monkeypatch, told=told)
    assert asked == ASKED.get(spec, ASKED_IF_LARGE.get(spec, 0))


@night
@pytest.mark.parametrize("spec", UNEVEN)
def test_those_whose_launches_depend_on_the_numbers(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count(spec, monkeypatch, runs=True) == UNEVEN[spec]


@night
@pytest.mark.parametrize("spec", TOLD)
def test_those_that_tell_the_host_how_much_they_send(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = [count_work(spec, ((3, 5),) * T, monkeypatch, runs=True) for T in (3, 40)]
    assert work == [TOLD[spec]] * 2


def read_table(page: str) -> dict[str, tuple[int, int, str]]:
    """The page's table of those that go one by one: (launches of 3, of 40 tensors, why)."""
    lines = page.split(f"{HEAD}\n| --- | --- | --- | --- |\n")[1].split("\n\n")[0].splitlines()
    rows = [re.fullmatch(r"\| `(\S+)` \| (\d+) \| (\d+) \| (.{8,}) \|", line) for line in lines]
    assert all(rows), lines
    return {row[1]: (int(row[2]), int(row[3]), row[4]) for row in rows if row}


def test_every_method_is_in_one_of_two_tables() -> None:
    page = read_table(PAGE.read_text())
    assert {spec: row[:2] for spec, row in page.items()} == UNEVEN
    assert not set(FIXED) & set(page)
    assert set(grace.methods()) <= set(FIXED) | set(page)


def read_questions(page: str) -> dict[tuple[str, str], str]:
    """The page's table of who asks the host: of a method, with knobs, how often."""
    table = page.partition("| methods | with | questions | why |\n| --- | --- | --- | --- |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {(name.strip("`"), knobs): often for names, knobs, often, _ in rows for name in names.split(", ")}


def find_knobs(spec: str) -> str:
    """What of a spec's knobs matters to how often the host is asked, in the page's words."""
    said = ["`sample`"] if "sample=" in spec else []
    said += ["`alternate=true`"] if "alternate=true" in spec else []
    for knob, values in (("index", ("rice", "delta")), ("dist", ("gpareto", "gamma"))):
        if any(f"{knob}={value}" in spec for value in values):
            said.append(" or ".join(f"`{knob}={value}`" for value in values))
    return " and ".join(said)


def test_the_page_says_who_asks() -> None:
    page = read_questions(QUESTIONS.read_text(encoding="utf-8"))
    found = {**ASKED, **{spec: asked for spec, (_, asked) in TOLD.items()}}
    told = {(spec.partition(":")[0], find_knobs(spec)): str(asked) for spec, asked in found.items()}
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
    monkeypatch.setattr("grace.communicators.one_hop.prepare", lambda *_: None)
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


def test_a_question_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ASKED, "qsparse:index=delta")
    with pytest.raises(AssertionError):
        test_it_asks_as_often("qsparse:index=delta", monkeypatch)
