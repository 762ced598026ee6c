"""Each test has one tier; what goes to the night leaves something that the gate catches; groups are found; a record is
written.
"""

from __future__ import annotations

import ast
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
        user_properties=[], get_closest_marker=by_name.get, iter_markers=lambda kind: [m for m in marks if m.name == kind],
    )  # fmt: skip


# ---- nothing is lost ------------------------------------------------------------------------------------------------
def names_in(text: str) -> str:
    """Texts and names in a file, but for those of marks that send tests to the night, one a line."""
    names, rest = list[str](), [ast.parse(text)]
    while rest:
        node: Any = rest.pop()
        if isinstance(node, ast.Call) and str(getattr(node.func, "attr", getattr(node.func, "id", ""))) in NIGHTS:
            continue
        names += [
            str(getattr(node, key)) for key in ("value", "attr", "name") if isinstance(getattr(node, key, 0), str)
        ]
        rest += ast.iter_child_nodes(node)
    return "\n".join(names)


NIGHTS = ("night", "by_night")


def test_every_defect_is_one_that_its_test_runs_over() -> None:
    for defect, test in tiers.CAUGHT.items():
        file, function = test.split("::")
        text = (tiers.ROOT / file).read_text(encoding="utf-8")
        before = text.partition(f"def {function}(")
        assert before[1], f"{test} is not there"
        assert "mark.night" not in before[0].rpartition("\n\n\n")[2], f"{test} is left to the night"
        assert re.search(rf"\b{re.escape(defect)}\b", names_in(text)), f"{test} knows no {defect!r}"


def test_a_mark_is_no_test_of_its_defect() -> None:
    marked = '@pytest.mark.parametrize("spec", by_night("raw gradient", of=[pytest.mark.night("last tensor skipped")]))'
    assert not {"raw gradient", "last tensor skipped"} & {*names_in(f"{marked}\ndef test_it(): ...").splitlines()}
    assert {"raw gradient", "Hasty"} <= {*names_in('CASES = [("raw gradient", mutants.Hasty)]').splitlines()}


@pytest.mark.parametrize("names", [(), ("no such defect",), ("raw gradient", "no such defect")])
def test_a_test_cannot_go_to_the_night_without_a_defect_that_is_caught(names: tuple[str, ...]) -> None:
    with pytest.raises(pytest.UsageError, match="give defects that the gate catches"):
        tiers.check_marks([item("tests/unit/test_wire.py::test_it", pytest.mark.night(*names).mark)])
    tiers.check_marks([item("tests/unit/test_wire.py::test_it", pytest.mark.night("raw gradient").mark)])


# ---- tiers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("file", "tier"),
    [
        ("tests/unit/test_wire.py", "test"),
        ("tests/unit/kernels/test_stochastic_levels.py", "test"),
        ("src/grace/wire.py", "test"),
        ("tests/unit/kernels/test_triton_tensor_list.py", "triton"),
        ("tests/adapters/test_keras.py", "doors"),
        ("tests/distributed/test_of_a_door_that_is_new.py", "doors"),
        ("tests/unit/grace_bench/report/test_page.py", "bench-test"),
    ],
)
def test_a_file_is_of_the_tier_that_its_path_says(file: str, tier: str) -> None:
    assert tiers.find_tier_of_file(tiers.ROOT / file) == tier
    assert tiers.find_tier(item(f"{file}::test_it")) == tier


def test_a_test_is_of_one_tier_the_marks_before_the_interpreters_before_the_paths() -> None:
    name, moved = "tests/distributed/test_ddp.py::test_it", pytest.mark.tier("test").mark
    assert tiers.find_tier(item(name, fixtures=("interpreter",))) == "triton"
    assert tiers.find_tier(item(name, moved, fixtures=("interpreter",))) == "test"
    for wrong in (pytest.mark.tier("no such tier"), pytest.mark.tier(), pytest.mark.tier("test", "doors")):
        with pytest.raises(pytest.UsageError, match="names none of"):
            tiers.find_tier(item(name, wrong.mark))


def test_each_test_of_the_gate_runs_in_exactly_one_tier() -> None:
    names = ["tests/unit/test_wire.py::a", "tests/unit/kernels/test_triton.py::b", "tests/distributed/test_ddp.py::c"]
    runs = [test.nodeid for tier in tiers.TIERS for test in tiers.keep([item(name) for name in names], tier)]
    assert sorted(runs) == sorted(names)
    assert [test.nodeid for test in tiers.keep([item(name) for name in names], None)] == names


def test_a_file_is_not_read_for_a_tier_that_it_has_nothing_of() -> None:
    read = {
        tier: {
            str(f.relative_to(tiers.ROOT))
            for f in tiers.ROOT.glob("tests/**/test_*.py")
            if not tiers.leaves_out(f, tier)
        }
        for tier in tiers.TIERS
    }
    assert "tests/adapters/test_migrate.py" in read["doors"]
    assert not any("tests/adapters/test_migrate.py" in read[tier] for tier in ("test", "triton", "laws", "bench-test"))
    assert {"tests/unit/kernels/test_triton_skipped.py"} < read["test"] & read["triton"], (
        "a case of each kernel is in make test"
    )
    assert "tests/unit/test_wire.py" in read["test"] - read["triton"] - read["doors"]


def test_a_test_that_would_not_be_found_is_refused() -> None:
    hidden = item("tests/adapters/test_migrate.py::test_it", pytest.mark.tier("test").mark)
    with pytest.raises(pytest.UsageError, match="is of test: say so in its file"):
        tiers.keep([hidden], "test")


def test_a_run_says_what_became_of_each_tier() -> None:
    of = [SimpleNamespace(user_properties=[("tier", tier)]) for tier in ("doors", "test", "doors")]
    assert tiers.count({"passed": of, "failed": of[:1], "": of, "warnings": [object()]}) == {
        "test": {"passed": 1},
        "doors": {"failed": 1, "passed": 2},
    }


@pytest.mark.parametrize("tier", tiers.TIERS)
def test_each_tier_has_its_command(tier: str) -> None:
    assert f"--tier {tier}" in (tiers.ROOT / "Makefile").read_text().partition(f"\n{tier}: ")[2].partition("\n\n")[0]


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
    assert [item.nodeid for item in items] == names[::-1]


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
