"""The file of the ways in which kernels are launched says neither less nor more than the tests launch."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton")

from grace import kernels
from grace.compute import backends
from tests.unit.kernels import launched
from tests.unit.kernels.launched import Known, Launch, Way
from tests.unit.kernels.triton_checks import interpreter

__all__ = ["interpreter"]

ADD: Way = (("x", "*fp32"), ("n", "int"), ("key0", "int"), ("CODE", 0), ("TILE", 1024))
LAUNCHES = [
    ("a.py::one", Launch("sums._add", ADD)),
    ("b.py::two", Launch("sums._add", (*ADD[:3], ("CODE", 1), ADD[4]))),
]


def change(way: Way, **given: Any) -> Way:
    return tuple((name, given.get(name, value)) for name, value in way)


def test_a_launch_is_described_as_the_compiler_sees_it() -> None:
    with launched.recorded() as launches, backends.using("triton"):
        kernels.add_scaled_(torch.ones(5), torch.ones(5, dtype=torch.bfloat16), -1.0)
    (launch,) = launches
    assert launch.kernel == "kernels.sums._add_scaled"
    assert dict(launch.way) == {
        "out": "*fp32",
        "x": "*i16",
        "scale": "fp32",
        "n": "int",
        "BFLOAT16": True,
        "TILE": 1024,
    }


def test_what_is_negative_somewhere_is_a_word_everywhere() -> None:
    known = launched.derive([*LAUNCHES, ("b.py::three", Launch("random._walk", (("key0", "word"),)))])
    assert known.words == {"key0"}
    assert dict(known.ways["sums._add"][0][0])["key0"] == "word"


def test_any_two_arguments_that_are_launched_together_are_in_a_way() -> None:
    ways = [change(ADD, x=x, CODE=code, TILE=tile) for x in ("*fp32", "*i16") for code in (0, 1) for tile in (8, 16)]
    some = launched.cover(ways)
    assert len(some) < len(ways)
    assert set().union(*map(launched._pairs, some)) == set().union(*map(launched._pairs, ways))
    assert some == launched.cover(reversed(ways))
    assert len(launched.cover(ways, pairs=False)) == 2


def test_the_file_is_read_as_it_was_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = launched.derive([*LAUNCHES, ("a.py::one", Launch("sums._add", (*ADD, ("num_warps", 4))))])

    monkeypatch.setattr(launched, "FILE", tmp_path / "ways.json")
    launched.FILE.write_text(launched.write(known))
    assert launched.read.__wrapped__() == known
    own = launched.Path(launched.__file__).with_name("compiled_ways.json")
    assert launched.write(launched.read()) == own.read_text(), "written by hand"


def test_each_way_names_a_test_that_is_there() -> None:
    for test in sorted({by.partition("[")[0] for ways in launched.read().ways.values() for _, by in ways}):
        file, _, function = test.partition("::")
        assert f"\ndef {function}(" in (launched.ROOT / file).read_text(encoding="utf-8"), f"{test}: {launched.COMMAND}"


@pytest.mark.parametrize(
    ("way", "test", "told"),
    [
        (ADD, "c.py::other", None),
        (change(ADD, CODE=1), "b.py::two", None),
        (change(ADD, x="*i16"), "c.py::other", r"launched with .*\*i16"),
        (change(ADD, TILE=512), "c.py::other", "launched with .*TILE: 512"),
        (change(ADD, n="word"), "c.py::other", "launched with .*n: 'word'"),
        (change(ADD, CODE=1), "a.py::one", "is not launched in the way .*'CODE': 0"),
    ],
)
def test_a_test_fails_whose_launches_are_not_those_of_the_file(
    way: Way, test: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(launched.RECORD, raising=False)
    known, launches = launched.derive(LAUNCHES), {Launch("sums._add", way)}
    if told is None:
        launched.check(test, launches, known)
        return
    with pytest.raises(pytest.fail.Exception, match=f"{re.escape(launched.COMMAND)} {re.escape(test)}.*{told}"):
        launched.check(test, launches, known)


def test_a_kernel_of_which_the_file_knows_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launched.RECORD, raising=False)
    with pytest.raises(pytest.fail.Exception, match=r"a\._new is launched"):
        launched.check("c.py::other", {Launch("a._new", ADD)}, Known(frozenset(), {}))
