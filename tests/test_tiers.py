"""What goes to the night leaves something that `make test` catches; groups are found; a record is written."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiers
from tests.seconds import Recorder, used


def item(name: str, *marks: Any, fixtures: tuple[str, ...] = (), spread: bool = False, **params: Any) -> Any:
    """A test, as far as tiers look at it."""
    file, _, function = name.partition("::")
    by_name = {mark.name: mark for mark in marks}
    return SimpleNamespace(
        nodeid=name, name=function, originalname=function, path=tiers.ROOT / file, fixturenames=fixtures,
        module=SimpleNamespace(SPREAD=spread), callspec=SimpleNamespace(params=params),
        get_closest_marker=by_name.get, iter_markers=lambda kind: [m for m in marks if m.name == kind],
    )  # fmt: skip


# ---- nothing is lost ------------------------------------------------------------------------------------------------
def test_every_defect_is_one_that_its_test_runs_over() -> None:
    for defect, test in tiers.CAUGHT.items():
        file, function = test.split("::")
        text = (tiers.ROOT / file).read_text(encoding="utf-8")
        before = text.partition(f"def {function}(")
        assert before[1], f"{test} is not there"
        assert "mark.night" not in before[0].rpartition("\n\n\n")[2], f"{test} is left to the night"
        if file == "tests/laws/test_mutants.py":
            assert f"mutants.{defect}(" in text, f"{test} has no mutant {defect}"
        else:
            assert f'"{defect}"' in text, f"{test} knows no {defect!r}"


@pytest.mark.parametrize("names", [(), ("no such defect",), ("raw gradient", "no such defect")])
def test_a_test_cannot_go_to_the_night_without_a_defect_that_is_caught(names: tuple[str, ...]) -> None:
    with pytest.raises(pytest.UsageError, match="give defects that make test catches"):
        tiers.check_marks([item("tests/unit/test_wire.py::test_it", pytest.mark.night(*names).mark)])
    tiers.check_marks([item("tests/unit/test_wire.py::test_it", pytest.mark.night("raw gradient").mark)])


# ---- groups ---------------------------------------------------------------------------------------------------------
def test_groups_are_those_of_the_mark_the_pools_the_function_the_file() -> None:
    name = "tests/distributed/test_ddp.py::test_it"
    assert tiers.find_group(item(name)) == "tests/distributed/test_ddp.py"
    assert tiers.find_group(item(name, fixtures=("pair", "pools"))) == tiers.POOLS
    assert tiers.find_group(item(name, pytest.mark.xdist_group("browser").mark, fixtures=("pools",))) == "browser"
    assert tiers.find_group(item(name, spread=True)) == name


def test_the_longest_groups_begin() -> None:
    names = ["src/grace/wire.py::grace.wire", "tests/laws/test_laws.py::a", "tests/distributed/test_ddp.py::b"]
    items = [item(name, fixtures=("pools",) if name.endswith("b") else ()) for name in names]
    assert set(tiers.arrange(items).values()) == {"src/grace/wire.py", "tests/laws/test_laws.py", tiers.POOLS}
    assert [one.nodeid for one in items] == names[::-1]


def test_a_scheduler_keeps_a_group_together_whatever_is_appended_to_its_names(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "groups.json").write_text('{"a.py::x[@]": "pools", "a.py::y": "a.py"}')
    scheduler = tiers.make_scheduler(SimpleNamespace(getvalue=lambda name: ["popen"]), None, tmp_path / "groups.json")
    split = [scheduler._split_scope(name) for name in ("a.py::x[@]", "a.py::x[@]@pools", "a.py::y")]
    assert split == ["pools", "pools", "a.py"]


# ---- a record -------------------------------------------------------------------------------------------------------
def test_a_record_has_the_seconds_of_every_test_dearest_first(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "there" / "seconds.tsv")
    for name, cpu in (("a.py::cheap", 0.5), ("a.py::dear@a.py", 3.0)):
        recorder.pytest_runtest_logreport(
            SimpleNamespace(nodeid=name, user_properties=[("seconds", (cpu, 2 * cpu))])  # type: ignore[arg-type]
        )
    recorder.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))  # type: ignore[arg-type]
    lines = (tmp_path / "there" / "seconds.tsv").read_text().splitlines()
    assert [re.split("\t", line) for line in lines] == [["3.00", "6.00", "a.py::dear"], ["0.50", "1.00", "a.py::cheap"]]


def test_the_seconds_are_those_of_the_processor() -> None:
    before, numbers = used(), 0
    while used() - before < 0.02:
        numbers += sum(range(10_000))
    assert numbers > 0
